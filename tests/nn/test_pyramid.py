"""The pyramid against loops over one example at a time; padding and company change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.nn import PyramidEncoder
from tests.nn import loops
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close, assert_exactly_zero

RNG = np.random.default_rng(3)
LENGTHS = np.array([13, 0, 8, 1])
INPUTS = RNG.normal(size=(4, 13, 3))


def pyramid(**options):
    return randomized(PyramidEncoder(3, 5, rngs=nnx.Rngs(0), **options))


def convolved(convolution, inputs):
    """Width 3, stride 2: position i sees 2i - 1, 2i and 2i + 1."""
    kernel, bias = loops.value(convolution.kernel), loops.value(convolution.bias)
    padded = np.concatenate(
        [np.zeros((1, inputs.shape[1])), inputs, np.zeros((2, inputs.shape[1]))]
    )
    rows = [
        sum(padded[2 * i + offset] @ kernel[offset] for offset in range(3)) + bias
        for i in range(-(-len(inputs) // 2))
    ]
    return np.maximum(np.array(rows).reshape(-1, len(bias)), 0)


def by_loops(encoder, inputs):
    for convolution in encoder.convolutions:
        inputs = convolved(convolution, inputs)
    for level, layer in enumerate(encoder.layers):
        if level:
            even = np.concatenate([inputs, np.zeros((len(inputs) % 2, inputs.shape[1]))])
            inputs = even.reshape(-1, 2 * inputs.shape[1])
        inputs, summary = loops.encoder(layer, inputs)
    return inputs, summary


@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 3, "convolutions": 1, "cell": "lstm"}, {"convolutions": 0, "layers": 2}],
    ids=["convolutions", "both", "Listen, Attend and Spell"],
)
def test_each_example_is_its_own_loop_whatever_pads_it(options):
    encoder = pyramid(**options)
    graphdef, state = nnx.split(encoder)
    hostile = np.where(np.arange(13)[None, :, None] < LENGTHS[:, None, None], INPUTS, np.nan)
    longer = np.concatenate([hostile, np.full((4, 4, 3), np.inf)], axis=1)

    @jax.jit
    def encoded(state, inputs):
        def total(state):
            found = nnx.merge(graphdef, state)(inputs, LENGTHS)
            return jnp.sum(jnp.sin(found.memory)) + jnp.sum(jnp.sin(found.summary)), found

        gradient, found = jax.grad(total, has_aux=True)(state)
        return found, gradient

    found, gradient = encoded(state, hostile)
    other, same = encoded(state, longer)
    assert_close(other.memory[:, : found.memory.shape[1]], found.memory)
    for one, another in zip(jax.tree.leaves(gradient), jax.tree.leaves(same), strict=True):
        assert np.isfinite(one).all()
        assert_close(one, another)
    for i, length in enumerate(LENGTHS):
        memory, summary = by_loops(encoder, INPUTS[i, :length])
        assert found.length[i] == len(memory) == encoder.memory_length(int(length))
        assert_close(found.memory[i, : len(memory)], memory)
        assert_exactly_zero(found.memory[i, len(memory) :])
        assert_close(found.summary[i], summary)


def test_half_precision_is_computed_in_single_and_dropout_is_for_training():
    encoder = pyramid(dropout=0.5)
    plain = encoder(INPUTS.astype(np.float16), LENGTHS)
    assert plain.memory.dtype == jnp.float64  # of the parameters
    dropped = encoder(INPUTS, LENGTHS, rng=jax.random.key(0)).memory
    assert np.abs(dropped - encoder(INPUTS, LENGTHS).memory).max() > 0.01


@pytest.mark.usefixtures("without_shape_hook")
def test_mistakes_are_named():
    with pytest.raises(ValueError, match="convolutions must not be negative"):
        pyramid(convolutions=-1)
    with pytest.raises(ValueError, match="layers must be a positive integer"):
        pyramid(layers=0)
    with pytest.raises(ValueError, match="inputs must have 3 features"):
        pyramid()(INPUTS[..., :2], LENGTHS)
    with pytest.raises(ValueError, match="length must be at most 13"):
        pyramid()(INPUTS, LENGTHS + 1)
