"""Flax NNX modules: they hold parameters and wire pure functions together."""

from attn_jax.nn.kernel_regression import Fixed, NadarayaWatson
