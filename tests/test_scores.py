"""scores.py: each score is its formula, differentiable, and refuses arrays that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Additive, Bilinear, Cosine, Dot, Kernel, ScaledDot, attention_weights, scores
from tests import oracles
from tests.members import KERNELS, SCORES, SIZES, inputs
from tests.tolerance import assert_close, assert_derivatives, assert_exactly_zero

COMPACT = {f"kernel_{row.name}" for row in KERNELS if row.compact}
each_score = pytest.mark.parametrize("member", SCORES, ids=str)


def pairs(score, query, key):
    """An oracle's score of every pair [q, k]."""
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    return np.array([[score(q, k) for k in key] for q in query]).reshape(len(query), len(key))


@each_score
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_score_is_the_formula(member, dtype):
    query, key, _ = inputs(dtype=dtype)
    got = member.slot(dtype=dtype)(query, key)
    arrays = {n: np.asarray(a, dtype) for n, a in member.arrays().items()}
    assert got.dtype == dtype
    assert_close(
        got,
        pairs(member.oracle(arrays), query, key),
        tolerance=1e-12 if dtype == "float64" else 2e-5,
    )


@each_score
@pytest.mark.parametrize("sizes", [{"q": 1, "k": 1, "d": 1, "e": 1}, SIZES | {"k": 0}], ids=str)
def test_smallest_sizes(member, sizes):
    query, key, _ = inputs(sizes)
    arrays = member.arrays(sizes)
    expected = pairs(member.oracle(arrays), query, key)
    assert_close(member.slot(arrays)(query, key), expected)


@pytest.mark.parametrize("member", [m for m in SCORES if m.name not in COMPACT], ids=str)
def test_derivatives(member):
    query, key, _ = inputs()
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(SIZES["q"], SIZES["k"])))

    def loss(query, key, arrays):
        return (member.slot(arrays)(query, key) * cotangent).sum()

    assert_derivatives(loss, query, key, member.arrays())


@each_score
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_scores_are_accumulated_in_float32(member, dtype):
    """A weight of half inputs is as exact as float32 allows."""
    query, key, _ = inputs(dtype=dtype)
    arrays = {n: np.asarray(jnp.asarray(a, dtype), np.float64) for n, a in member.arrays().items()}
    got = attention_weights(query, key, score=member.slot(arrays, dtype))
    assert got.dtype == jnp.float32
    expected = oracles.attention_weights(query, key, score=member.oracle(arrays))
    assert_close(got, expected, tolerance=2e-5)


def test_float16_dot_products_do_not_overflow():
    query = jnp.full((1, 64), 60.0, "float16")
    key = jnp.stack([query[0], query[0] - jnp.float16(0.03125)])  # scores 230400 and 230280
    np.testing.assert_array_equal(attention_weights(query, key, score=Dot()), [[1, 0]])


def test_bilinear_compares_different_features():
    rng = np.random.default_rng(4)
    query, key, weight = (jnp.asarray(rng.normal(size=shape)) for shape in [(5, 3), (7, 2), (3, 2)])
    expected = pairs(oracles.Bilinear(np.asarray(weight)), query, key)
    assert_close(Bilinear(weight)(query, key), expected)


def test_cosine_ignores_lengths_also_extreme_ones():
    query, key, _ = inputs()
    expected = Cosine()(query, key)
    for length in (1e-6, 1e6, 1e100):
        assert_close(Cosine()(query * length, key / length), expected)


def test_cosine_of_a_zero_vector_is_zero_with_finite_gradient():
    query, key, _ = inputs()
    query, key = query.at[1].set(0), key.at[2].set(0)
    with jax.debug_nans(True):
        got = Cosine()(query, key)
        gradients = jax.grad(lambda q, k: Cosine()(q, k).sum(), (0, 1))(query, key)
    assert_exactly_zero((got[1], got[:, 2]))
    assert all(np.isfinite(g).all() for g in gradients)


def test_pairwise_lifts_a_function_of_two_vectors():
    query, key, _ = inputs()

    def manhattan(q, k):
        return -jnp.abs(q - k).sum()

    expected = -np.abs(np.asarray(query)[:, None] - np.asarray(key)).sum(-1)
    assert_close(scores.pairwise(manhattan)(query, key), expected)
    weights = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    assert_close(attention_weights(query, key, score=scores.pairwise(manhattan)), weights)


def test_pairwise_differentiates_what_the_function_closes_over():
    query, key, _ = inputs()

    def loss(power):
        score = scores.pairwise(lambda q, k: -(jnp.abs(q - k) ** power).sum())
        return (attention_weights(query, key, score=score) ** 2).sum()

    assert_derivatives(loss, jnp.array([1.3, 2.0, 3.1]))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: Bilinear(jnp.ones((2, 3))), r"weight.*\D2, 3\D"),
        (lambda: Bilinear(jnp.ones((3, 2))), r"weight.*\D3, 2\D"),
        (lambda: Bilinear(jnp.ones(3)), r"weight.*\D3,?\D"),
        (lambda: Additive(jnp.ones(2)), r"weight.*\D2,?\D"),
        (lambda: Additive(jnp.ones((3, 3))), r"weight.*\D3, 3\D"),
        (lambda: Additive(1.0), r"weight.*1\.0"),
        (lambda: ScaledDot(jnp.ones(3)), r"scale.*\D3,?\D"),
        (lambda: Cosine(jnp.ones(5)), r"scale.*\D5,?\D"),
    ],
)
def test_array_that_does_not_fit_is_named(score, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        attention_weights(jnp.ones((5, 3)), jnp.ones((7, 3)), score=score())


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    "score",
    [Dot(), ScaledDot(), Cosine(), Additive(jnp.ones(3)), Kernel()],
    ids=lambda s: type(s).__name__,
)
def test_unequal_features_are_named(score):
    message = r"(?s)query.*key.*features.*\(5, 3\).*\(7, 2\)"
    with pytest.raises(ValueError, match=message):
        attention_weights(jnp.ones((5, 3)), jnp.ones((7, 2)), score=score)


def test_every_score_has_a_name():
    arrays = {"bilinear": [jnp.ones((3, 3))], "additive": [jnp.ones(3)]}
    made = {type(make(*arrays.get(name, []))) for name, make in scores.BY_NAME.items()}
    assert made == {Additive, Bilinear, Cosine, Dot, Kernel, ScaledDot}
