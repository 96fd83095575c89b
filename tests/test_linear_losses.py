"""Cross-entropy of a linear layer in chunks is that of its logits, and so are its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import metrics
from attn_jax.metrics import linear_losses
from tests.tolerance import assert_close, assert_trees_close

ROWS, D, V = (7, 29), 5, 11
RNG = np.random.default_rng(5)
INPUTS, KERNEL, BIAS = (jnp.asarray(RNG.normal(size=shape)) for shape in ((*ROWS, D), (D, V), (V,)))
MOVES = tuple(jnp.asarray(RNG.normal(size=each.shape)) for each in (INPUTS, KERNEL, BIAS))
LABELS = jnp.asarray(RNG.integers(0, V, ROWS))
REAL = jnp.asarray(RNG.random(ROWS) < 0.4)


def by_logits(inputs, kernel, bias, real=REAL, smoothing=0.0):
    logits = inputs @ kernel + bias[None, None]
    how = {"where": real, "label_smoothing": smoothing}
    return metrics.mean_cross_entropy(logits, LABELS, **how)[0]


def in_chunks(inputs, kernel, bias, real=REAL, smoothing=0.0):
    how = {"where": real, "label_smoothing": smoothing}
    return metrics.linear_cross_entropy(inputs, kernel, bias, LABELS, **how)[0]


@pytest.mark.parametrize("stored", [64 * V, 2**20], ids=["chunks", "one chunk"])
def test_value_and_derivatives(stored, monkeypatch):
    """Of 203 rows 80 are real: two chunks of 64 rows hold them, two are skipped."""
    monkeypatch.setattr(linear_losses, "STORED", stored)

    def outcome(loss):
        def all_of_it(*arrays):
            def value(*arrays):
                return loss(*arrays, smoothing=0.1)

            def slope(*arrays):
                gradient = jax.grad(value, (0, 1, 2))(*arrays)
                return sum(jnp.vdot(*each) for each in zip(gradient, MOVES, strict=True))

            first = jax.value_and_grad(value, (0, 1, 2))(*arrays)
            return first, jax.jvp(value, arrays, MOVES)[1], jax.grad(slope, (0, 1, 2))(*arrays)

        return jax.jit(all_of_it)(INPUTS, KERNEL, BIAS)

    assert_trees_close(outcome(in_chunks), outcome(by_logits))


def test_counts():
    _, counts = metrics.linear_cross_entropy(INPUTS, KERNEL, BIAS, LABELS, where=REAL)
    logits = INPUTS @ KERNEL + BIAS[None, None]
    assert counts["tokens"] == REAL.sum()
    assert_close(counts["accuracy"], metrics.token_accuracy(logits, LABELS, where=REAL))


def test_rows_that_are_not_real_are_deleted():
    """NaN among them, and no real row at all."""
    bad = jnp.where(REAL[..., None], INPUTS, jnp.nan)
    grad = jax.jit(jax.value_and_grad(in_chunks, (0, 1, 2)))
    assert_trees_close(grad(bad, KERNEL, BIAS), grad(INPUTS, KERNEL, BIAS))
    value, gradient = jax.value_and_grad(in_chunks)(INPUTS, KERNEL, BIAS, jnp.zeros(ROWS, bool))
    assert value == 0
    assert not gradient.any()


def test_rows_that_are_not_real_take_no_tangent():
    @jax.jit
    def moved(*moves):
        def change(*arrays):
            return jax.jvp(in_chunks, arrays, moves)[1]

        arrays = (INPUTS, KERNEL, BIAS)
        return change(*arrays), jax.jvp(change, arrays, moves)[1], jax.grad(change)(*arrays)

    bad = jnp.where(REAL[..., None], MOVES[0], jnp.nan)
    assert_trees_close(moved(bad, *MOVES[1:]), moved(*MOVES))


@pytest.mark.parametrize(
    "dtypes",
    [
        ("float64", "float64", "float32"),
        ("float32", "float32", "float64"),
        ("float32", "float64", "float16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "bfloat16", "float16"),
    ],
    ids="-".join,
)
def test_the_dtype_is_that_of_the_logits(dtypes):
    arrays = [
        each.astype(dtype) for each, dtype in zip((INPUTS, KERNEL, BIAS), dtypes, strict=True)
    ]
    got, expected = (
        jax.eval_shape(jax.value_and_grad(loss, (0, 1, 2)), *arrays)
        for loss in (in_chunks, by_logits)
    )
    assert jax.tree.map(lambda each: each.dtype, got) == jax.tree.map(
        lambda each: each.dtype, expected
    )
    if dtypes[0] == "float64":
        assert_close(in_chunks(*arrays), by_logits(*arrays))


def test_half_precision_is_summed_in_float32():
    arrays = tuple(each.astype(jnp.bfloat16) for each in (INPUTS, KERNEL, BIAS))
    value, gradient = jax.value_and_grad(in_chunks)(*arrays)
    assert (value.dtype, gradient.dtype) == (jnp.float32, jnp.bfloat16)
    wide = tuple(each.astype(float) for each in arrays)
    expected = jax.value_and_grad(by_logits)(*wide)
    assert_close(value, expected[0], tolerance=1e-5)
    assert_close(gradient, expected[1], tolerance=1e-3)


def test_no_array_of_all_logits(monkeypatch):
    monkeypatch.setattr(linear_losses, "STORED", 64 * V)
    program = jax.make_jaxpr(jax.grad(in_chunks, (0, 1, 2)))(INPUTS, KERNEL, BIAS)
    assert f"{LABELS.size},{V}]" not in str(program)
    assert f"64,{V}]" in str(program)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": KERNEL[1:]}, r"inputs, kernel and bias must be .* Got \(7, 29, 5\), \(4, 11\)"),
        ({"labels": LABELS[0]}, "labels must be integers, one for each row"),
        ({"labels": LABELS + V}, "labels must be tokens, 0 to 10 here"),
        ({"where": REAL * 1.0}, "where must be booleans"),
        ({"label_smoothing": 1.0}, "label_smoothing must be a number, at least 0 and below 1"),
    ],
)
def test_mistakes_are_named(change, message):
    given = {"inputs": INPUTS, "kernel": KERNEL, "bias": BIAS, "labels": LABELS} | change
    with pytest.raises(ValueError, match=message):
        metrics.linear_cross_entropy(**given)
