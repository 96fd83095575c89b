"""Recurrent layers and encoders against float64 loops over one unpadded example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.dropout import drop_units
from attn_jax.nn import GRU, LSTM, ConvolutionalEncoder, RecurrentEncoder
from tests.nn import loops
from tests.nn.compiled import compiled
from tests.tolerance import assert_close, assert_exactly_zero, assert_trees_close

LENGTHS = np.array([5, 2, 0, 3])
INPUTS = np.random.default_rng(0).normal(size=(4, 5, 3))


def randomized(module):
    """Every parameter random: a bias of zero hides what it is added to. Slots are as given."""
    rng = np.random.default_rng(1)
    state = nnx.state(module, nnx.All(nnx.Param, lambda path, _: "slots" not in path))
    nnx.update(module, jax.tree.map(lambda p: jnp.asarray(rng.normal(0, 0.7, p.shape)), state))
    return module


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layer", [GRU, LSTM])
def test_layer_is_the_loop(layer, reverse):
    module = randomized(layer(3, 7, rngs=nnx.Rngs(0)))
    outputs, final = jax.jit(lambda *rows: module(*rows, reverse=reverse))(INPUTS, LENGTHS)
    for example, (inputs, length) in enumerate(zip(INPUTS, LENGTHS, strict=True)):
        shown, state = loops.layer(module, inputs[:length], reverse=reverse)
        assert_close(outputs[example, :length], shown)
        assert_exactly_zero(outputs[example, length:])
        got = jax.tree.map(lambda each, e=example: each[e], final)
        assert_close(jnp.stack(jax.tree.leaves(got)), np.stack(state).reshape(-1, 7))


ENCODERS = {
    "one layer": {},
    "one direction": {"bidirectional": False},
    "deep": {"layers": 3},
    "deep lstm": {"layers": 2, "cell": "lstm", "residual": False},
}


@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
def test_encoder_is_the_loop(options):
    encoder = randomized(RecurrentEncoder(3, 7, rngs=nnx.Rngs(0), **options))
    encoded = compiled(encoder)(INPUTS, LENGTHS)
    assert encoded.memory.shape[-1] == encoder.memory_features
    for example, (inputs, length) in enumerate(zip(INPUTS, LENGTHS, strict=True)):
        memory, summary = loops.encoder(encoder, inputs[:length])
        assert_close(encoded.memory[example, :length], memory)
        assert_exactly_zero(encoded.memory[example, length:])
        assert_close(encoded.summary[example], summary)


def convolution(width=3):
    return randomized(ConvolutionalEncoder(3, 7, layers=2, width=width, rngs=nnx.Rngs(0)))


EVERY_ENCODER = {
    "recurrent": lambda: randomized(RecurrentEncoder(3, 7, layers=2, rngs=nnx.Rngs(0))),
    "convolutional": convolution,
}


@pytest.mark.parametrize("build", EVERY_ENCODER.values(), ids=EVERY_ENCODER)
def test_what_shares_the_batch_and_the_padding_change_nothing(build):
    """Padding holds anything, NaN too."""
    encoder = compiled(build())
    encoded = encoder(INPUTS, LENGTHS)
    garbage = np.where(np.arange(5)[None, :, None] < LENGTHS[:, None, None], INPUTS, np.nan)
    longer = np.concatenate([garbage, np.full((4, 2, 3), -7.0)], axis=1)
    order = np.array([2, 3, 1, 0])
    other = encoder(longer[order], LENGTHS[order])
    assert_close(other.memory[:, :5], encoded.memory[order])
    assert_exactly_zero(other.memory[:, 5:])
    assert_close(other.summary, encoded.summary[order])


MODULES = {
    "gru": lambda: GRU(3, 7, rngs=nnx.Rngs(0)),
    "lstm": lambda: LSTM(3, 7, rngs=nnx.Rngs(0)),
    "deep": lambda: RecurrentEncoder(3, 7, layers=2, cell="lstm", rngs=nnx.Rngs(0)),
    "convolutional": convolution,
}


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_padding_gets_no_gradient(build):
    """Nor do parameters get one from it: NaN times 0 would be NaN."""
    graphdef, state = nnx.split(randomized(build()))

    def loss(state, inputs):
        results = nnx.merge(graphdef, state)(inputs, LENGTHS)
        return sum((each**3).sum() for each in jax.tree.leaves(results))

    slopes = jax.jit(jax.grad(loss, (0, 1)))
    parameters, gradient = slopes(state, INPUTS)
    for example, length in enumerate(LENGTHS):
        assert_exactly_zero(gradient[example, length:])
        assert (gradient[example, :length] != 0).all()
    garbage = np.where(np.arange(5)[None, :, None] < LENGTHS[:, None, None], INPUTS, np.nan)
    assert_trees_close(slopes(state, garbage), (parameters, gradient))


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
def test_half_precision_inputs_meet_wider_parameters(build):
    """They are what they are in float64, and so is all that follows."""
    half = jnp.asarray(INPUTS, jnp.bfloat16)
    got, expected = (build()(each, LENGTHS) for each in (half, half.astype(float)))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, tolerance=1e-12)


def test_a_convolution_sees_its_width():
    """Two layers of width 3: two neighbours on each side, and its own position."""
    encoder = convolution()
    encoded = encoder(INPUTS[:1], LENGTHS[:1]).memory[0]
    changed = INPUTS[:1].copy()
    changed[0, 0] += 1
    moved = np.abs(encoder(changed, LENGTHS[:1]).memory[0] - encoded).max(axis=1) > 0
    assert moved.tolist() == [True, True, True, False, False]
    same = np.broadcast_to(INPUTS[:1, :1], INPUTS[:1].shape)
    assert np.ptp(np.asarray(encoder(same, LENGTHS[:1]).memory[0])[2:3]) > 0
    assert np.abs(np.diff(encoder(same, LENGTHS[:1]).memory[0], axis=0)).min() > 0


def test_training_drops_units():
    encoder = randomized(RecurrentEncoder(3, 7, layers=2, dropout=0.5, rngs=nnx.Rngs(0)))
    once, again, other = (
        encoder(INPUTS, LENGTHS, rng=jax.random.key(seed)).memory for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - other).max() > 0.1
    np.testing.assert_array_equal(
        encoder(INPUTS, LENGTHS).memory, encoder(INPUTS, LENGTHS, rng=None).memory
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_dropped_units(rate):
    """Each number is 0 or rescaled, and right on average; the rate is a multiple of 1/256."""
    got = np.asarray(drop_units(jnp.ones((101, 1009)), rate, jax.random.key(0)))
    exact = int(rate * 256) / 256
    assert {0.0, 1 / (1 - exact)} == set(np.unique(got).tolist())
    assert abs((got == 0).mean() - exact) < 0.01
    shared = np.asarray(drop_units(jnp.ones((101, 1009)), rate, jax.random.key(0), shared=(0,)))
    assert (shared == shared[:1]).all()
    assert len(np.unique(shared)) == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda r: GRU(3, 0, rngs=r), "features must be a positive integer. Got 0"),
        (lambda r: LSTM(2.5, 1, rngs=r), "in_features must be a positive integer. Got 2.5"),
        (lambda r: RecurrentEncoder(3, 7, cell="rnn", rngs=r), r"cell must be one of .*Got 'rnn'"),
        (lambda r: RecurrentEncoder(3, 7, layers=0, rngs=r), "layers must be a positive integer"),
        (lambda r: RecurrentEncoder(3, 7, dropout=1.0, rngs=r), "dropout must be at least 0 and"),
        (lambda r: ConvolutionalEncoder(3, 7, width=2, rngs=r), "width must be odd. Got 2"),
        (lambda r: ConvolutionalEncoder(0, 4, rngs=r), "in_features must be a positive integer"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_bad_input_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build(nnx.Rngs(0))


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (INPUTS, LENGTHS + 1, r"length must be at most 5, .*Got \[6 3 1 4\]"),
        (INPUTS, LENGTHS - 1, "length must not be negative"),
        (INPUTS, LENGTHS * 1.0, "length must be integers, one for each of the 4 examples"),
        (INPUTS, LENGTHS[:1], "length must be integers, one for each of the 4 examples"),
        (INPUTS[0], LENGTHS, r"inputs must have shape \[batch, length, features\]"),
        (INPUTS[..., :2], LENGTHS, "inputs must have 3 features"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_inputs_and_lengths_that_do_not_fit_are_refused(build, inputs, lengths, message):
    with pytest.raises(ValueError, match=message):
        build()(inputs, lengths)
