"""Encoders of padded sources: recurrent in one or both directions, and convolutional.

An example's result, and every gradient, depends on its own `length` entries alone, as in
`attn_jax.nn.recurrent`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    require_flags,
    require_rate,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.recurrent import CELLS, CellName, run
from attn_jax.position_encodings import sinusoids
from attn_jax.recurrence import real_times


class Encoded(NamedTuple):
    """What a decoder gets of a source."""

    memory: Float[Array, "b s e"]  # zero on padding
    length: Int[Array, " b"]
    summary: Float[Array, "b c"]  # one vector for the whole
    tokens: Int[Array, "b s"] | None = None  # of the source, where they may be copied


def averaged(outputs: Float[Array, "b s e"], length: Int[Array, " b"]) -> Encoded:
    """The outputs as a memory, and their mean as its summary."""
    memory = without_padding(outputs, length)
    count = jnp.maximum(length, 1)[:, None].astype(memory.dtype)
    return Encoded(memory, length, memory.sum(axis=1) / count)


def memory_length(encoder: nnx.Module, length: Int[ArrayLike, "*b"]) -> Int[ArrayLike, "*b"]:
    """How many positions an encoder's memory has: as the source, unless it says otherwise."""
    return encoder.memory_length(length) if hasattr(encoder, "memory_length") else length


class RecurrentEncoder(nnx.Module):
    """Layers of GRU or LSTM over a source, in both directions or in one. (Bahdanau et al. 2014.)

    Args:
      in_features: of the inputs.
      features: of each direction.
      layers: how many, one after the other.
      cell: "gru" or "lstm".
      bidirectional: whether each layer also runs from the end to the start.
      residual: whether each layer from the second on adds its input to its output.
      dropout: rate between layers.
      rngs: a seed for the parameters.

    The summary is the last hidden state of each direction.

    >>> encoder = RecurrentEncoder(2, 3, rngs=nnx.Rngs(0))
    >>> [each.shape for each in encoder(jnp.ones((1, 5, 2)), jnp.array([4]))[:3]]
    [(1, 5, 6), (1,), (1, 6)]
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        layers: int = 1,
        cell: CellName = "gru",
        bidirectional: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        require(cell in CELLS, "cell", f"be one of {sorted(CELLS)}", repr(cell))
        in_features, features, layers = sizes_of(
            in_features=in_features, features=features, layers=layers
        )
        require_flags(bidirectional=bidirectional, residual=residual)
        require_rngs(rngs)
        require_rate(dropout)
        directions = 2 if bidirectional else 1
        self.memory_features = self.summary_features = directions * features
        self.residual, self.dropout = residual, dropout
        self.layers = nnx.List(
            nnx.List(
                CELLS[cell](self.memory_features if level else in_features, features, rngs=rngs)
                for _ in range(directions)
            )
            for level in range(layers)
        )

    def __call__(
        self,
        inputs: Float[ArrayLike, "b s d"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode; with `rng`, in training, some units are dropped."""
        inputs = rows_of("inputs", inputs, self.layers[0][0].input_kernel.shape[0])
        length = lengths_of("length", length, *inputs.shape[:2])
        real = real_times(length, inputs.shape[1])
        outputs = jnp.swapaxes(without_padding(inputs, length), 0, 1)
        for level, layer in enumerate(self.layers):
            below = outputs
            if level:
                outputs = drop_units(outputs, self.dropout, fold(rng, level))
            both = [
                run(direction, outputs, real, reverse=bool(number))
                for number, direction in enumerate(layer)
            ]
            outputs = jnp.concatenate([each for each, _ in both], axis=-1)
            if level and self.residual:
                outputs = outputs + below
        ends = [cell.hidden(final) for cell, (_, final) in zip(layer, both, strict=True)]
        return Encoded(jnp.swapaxes(outputs, 0, 1), length, jnp.concatenate(ends, axis=-1))


class ConvolutionalEncoder(nnx.Module):
    """Gated convolutions over a source, each added to its input. (Gehring et al. 2017.)

    Positions are added as sines and cosines (Vaswani et al. 2017, §3.5): a convolution has none.
    The summary is the mean over the source.

    Args:
      in_features: of the inputs.
      features: of the memory.
      layers: how many convolutions.
      width: of each convolution's kernel, an odd number.
      dropout: rate before each convolution.
      rngs: a seed for the parameters.

    >>> encoder = ConvolutionalEncoder(2, 4, rngs=nnx.Rngs(0))
    >>> [each.shape for each in encoder(jnp.ones((1, 5, 2)), jnp.array([4]))[:3]]
    [(1, 5, 4), (1,), (1, 4)]
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        layers: int = 4,
        width: int = 3,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        in_features, features, layers, width = sizes_of(
            in_features=in_features, features=features, layers=layers, width=width
        )
        require_rngs(rngs)
        require(width % 2 == 1, "width", "be odd", width)
        require_rate(dropout)
        self.memory_features = self.summary_features = features
        self.dropout = dropout
        self.inputs = nnx.Linear(in_features, features, param_dtype=float, rngs=rngs)
        self.convolutions = nnx.List(
            nnx.Conv(features, 2 * features, (width,), param_dtype=float, rngs=rngs)
            for _ in range(layers)
        )

    def __call__(
        self,
        inputs: Float[ArrayLike, "b s d"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode; with `rng`, in training, some units are dropped."""
        inputs = rows_of("inputs", inputs, self.inputs.in_features)
        length = lengths_of("length", length, *inputs.shape[:2])
        outputs = self.inputs(without_padding(inputs, length))
        outputs = outputs + sinusoids(inputs.shape[1], self.memory_features)[None]
        for level, convolution in enumerate(self.convolutions):
            kept = drop_units(outputs, self.dropout, fold(rng, level))
            outputs = outputs + jax.nn.glu(convolution(without_padding(kept, length)))
        return averaged(outputs, length)
