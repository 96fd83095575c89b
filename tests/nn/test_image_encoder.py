"""The encoder of pictures against loops over cells, and what padding and position change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.nn import Decoder, ImageEncoder, Seq2Seq
from tests.nn.compiled import compiled
from tests.nn.loops import value
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close, assert_exactly_zero, assert_trees_close

RNG = np.random.default_rng(2)
LENGTHS = np.array([11, 0, 5, 1])
PATCH, WIDTH, CHANNELS = 2, 7, 3
IMAGES = RNG.random((4, 11, WIDTH, CHANNELS))
ROWS = np.arange(11)[None, :, None, None] < LENGTHS[:, None, None, None]


def encoder(stages=(3, 5, 7), **options):
    sizes = {"channels": CHANNELS, "patch": PATCH}
    return randomized(ImageEncoder(WIDTH, stages, **sizes | options, rngs=nnx.Rngs(0)))


def normed(module, grid):
    """Each cell has mean 0 and variance 1, then a factor and a term for each channel."""
    mean, deviation = grid.mean(-1, keepdims=True), np.sqrt(grid.var(-1, keepdims=True) + 1e-6)
    return (grid - mean) / deviation * value(module.scale) + value(module.bias)


def convolved(module, grid, stride):
    """Cell by cell, 3 × 3, with zeros around the grid."""
    kernel, bias = value(module.kernel), value(module.bias)
    rows, columns = (-(-side // stride) for side in grid.shape[:2])
    around = np.pad(grid, [(1, 1), (1, 1), (0, 0)])
    out = np.zeros((rows, columns, len(bias)))
    for i in range(rows):
        for j in range(columns):
            seen = around[stride * i : stride * i + 3, stride * j : stride * j + 3]
            out[i, j] = np.einsum("abc,abcd->d", seen, kernel) + bias
    return out


def loop(module, image):
    """The cells [rows · columns, features] of one picture without padding."""
    rows, columns = (-(-side // PATCH) for side in image.shape[:2])
    pixels = np.zeros((rows * PATCH, columns * PATCH, CHANNELS))
    pixels[: image.shape[0], : image.shape[1]] = 2 * image - 1
    kernel, bias = value(module.inputs.kernel), value(module.inputs.bias)
    grid = np.zeros((rows, columns, len(bias)))
    for i in range(rows):
        for j in range(columns):
            patch = pixels[PATCH * i : PATCH * (i + 1), PATCH * j : PATCH * (j + 1)]
            grid[i, j] = patch.reshape(-1) @ kernel + bias
    stages = len(module.halvings)
    for stage in range(stages):
        below = np.maximum(normed(module.norms[stage], grid), 0)
        grid = convolved(module.halvings[stage], below, 2)
        inner = np.maximum(normed(module.norms[stages + stage], grid), 0)
        grid = grid + convolved(module.convolutions[stage], inner, 1)
    grid = normed(module.norms[-1], grid)
    features = grid.shape[-1]
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            for first, count, place in (
                (0, features // 2, i),
                (features // 2, -(-features // 2), j),
            ):
                half = -(-count // 2)
                for f in range(count):
                    angle = place * 100.0 ** -(f % half / half)
                    grid[i, j, first + f] += np.sin(angle) if f < half else np.cos(angle)
    return grid.reshape(-1, features)


@pytest.mark.parametrize("stages", [(5,), (3, 5, 7)], ids=["patches", "two stages"])
def test_each_cell_is_the_loops(stages):
    module = encoder(stages)
    encoded = compiled(module)(IMAGES, LENGTHS)
    assert encoded.memory.shape[-1] == module.memory_features == stages[-1]
    np.testing.assert_array_equal(encoded.length, module.memory_length(LENGTHS))
    for example, (image, length) in enumerate(zip(IMAGES, LENGTHS, strict=True)):
        cells = module.memory_length(int(length))
        assert_exactly_zero(encoded.memory[example, cells:])
        if length:
            expected = loop(module, image[:length])
            assert_close(encoded.memory[example, :cells], expected, tolerance=1e-10)
            assert_close(encoded.summary[example], expected.mean(0), tolerance=1e-10)


def test_what_shares_the_batch_and_the_padding_change_nothing():
    """Padding holds anything, NaN too, and gets no gradient."""
    graphdef, state = nnx.split(encoder())

    @jax.jit
    def slopes(state, images, lengths):
        def loss(state, images):
            encoded = nnx.merge(graphdef, state)(images, lengths)
            return (encoded.memory**3).sum() + encoded.summary.sum(), encoded

        return jax.grad(loss, (0, 1), has_aux=True)(state, images)

    (parameters, pixels), encoded = slopes(state, IMAGES, LENGTHS)
    assert_exactly_zero(np.where(ROWS, 0, pixels))
    assert (np.where(ROWS, pixels, 1) != 0).all()
    garbage = np.where(ROWS, IMAGES, np.nan)
    longer = np.concatenate([garbage, np.full((4, 5, WIDTH, CHANNELS), -7.0)], axis=1)
    (again, _), other = slopes(state, longer, LENGTHS)
    assert_trees_close(again, parameters, tolerance=1e-10)
    assert_close(other.memory[:, : encoded.memory.shape[1]], encoded.memory, tolerance=1e-10)
    assert_close(other.summary, encoded.summary, tolerance=1e-10)


def test_bytes_are_numbers_from_0_to_1():
    module = compiled(encoder())
    pixels = RNG.integers(0, 256, IMAGES.shape).astype(np.uint8)
    assert_close(module(pixels, LENGTHS).memory, module(pixels / 255, LENGTHS).memory)


def test_cells_of_one_colour_are_told_apart_by_their_places():
    memory = np.asarray(encoder((7,))(np.ones((1, 4, WIDTH, CHANNELS)), np.array([4])).memory[0])
    apart = np.abs(memory[:, None] - memory[None]).max(-1) > 1e-3
    assert (apart | np.eye(len(memory), dtype=bool)).all()


def test_training_drops_units():
    module = compiled(encoder(dropout=0.5))
    once, again, other = (
        module(IMAGES, LENGTHS, rng=jax.random.key(seed)).memory for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - other).max() > 0.1


def test_a_decoder_looks_at_the_grid():
    rngs = nnx.Rngs(0)
    module = encoder()
    widths = module.memory_features, module.summary_features
    decoder = Decoder(9, *widths, embedding=2, features=3, gate=True, rngs=rngs)
    model = Seq2Seq(None, module, decoder, rngs=rngs)
    batch = {"source": IMAGES, "source_length": LENGTHS}
    batch |= {"target": jnp.full((4, 2), 5), "target_length": np.array([2, 1, 2, 0])}
    loss, numbers = model.loss(batch, start=2, doubly_stochastic=1.0)
    assert np.isfinite(loss)
    assert int(numbers["tokens"]) == 5
    weights = decoder.weights(batch["target"], model.encode(IMAGES, LENGTHS))
    assert_close(weights.sum(-1)[np.array([0, 2, 3])], np.ones((3, 2)))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encoder(()), "stages must have one number of channels at least"),
        (lambda: encoder((3, 0)), "stages must be a positive integer. Got 0"),
        (lambda: encoder(patch=0), "patch must be a positive integer"),
        (lambda: encoder(dropout=1.0), "dropout must be at least 0 and below 1"),
        (lambda: encoder()(IMAGES[0], LENGTHS), "images must have shape"),
        (lambda: encoder()(IMAGES[:, :, :5], LENGTHS), r"images must have rows of \(7, 3\)"),
        (lambda: encoder()(IMAGES, LENGTHS + 1), "length must be at most 11"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
