"""normalizers.py: each one is its definition, on every axis and at every edge, and so its slope."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attn_jax import (
    Entmax,
    Sigmoid,
    Softmax,
    Sparsemax,
    attention_weights,
    entmax,
    entmax15,
    normalizers,
    sigmoid,
    softmax,
    sparsemax,
)
from attn_jax.normalizers import logsumexp
from tests import oracles
from tests.members import NORMALIZERS
from tests.tolerance import (
    assert_close,
    assert_derivatives,
    assert_exactly_zero,
    assert_trees_close,
)

each_normalizer = pytest.mark.parametrize("member", NORMALIZERS, ids=str)
ON_THE_SIMPLEX = [m for m in NORMALIZERS if "sigmoid" not in m.name and "sink" not in m.name]
each_simplex = pytest.mark.parametrize("member", ON_THE_SIMPLEX, ids=str)
FUNCTIONS = {
    softmax: (Softmax(), oracles.Softmax()),
    sparsemax: (Sparsemax(), oracles.Sparsemax()),
    entmax15: (Entmax(1.5), oracles.Entmax(1.5)),
    functools.partial(entmax, alpha=1.3): (Entmax(1.3), oracles.Entmax(1.3)),
    sigmoid: (Sigmoid(), oracles.Sigmoid()),
}
each_function = pytest.mark.parametrize(
    "function", FUNCTIONS, ids=["softmax", "sparsemax", "entmax15", "entmax", "sigmoid"]
)
RNG = np.random.default_rng(13)
SCORES = RNG.normal(size=(5, 7)) * 1.5
COTANGENT = RNG.normal(size=(5, 7))
ALL = np.ones((5, 7), bool)
WHERE = RNG.random((5, 7)) < 0.6
WHERE[3] = False


@jax.jit
def weigh(normalizer, scores, where=None):
    """Compiled once for each normalizer and shape, whatever its arrays hold: tests share shapes."""
    return normalizer(scores, where=where)


@jax.jit
def gradients(normalizer, scores, where, cotangent):
    """Of the weights · cotangent: by the scores, and by the normalizer as a normalizer."""
    return jax.grad(lambda n, s: (n(s, where=where) * cotangent).sum(), (1, 0))(normalizer, scores)


@jax.jit
def jacobians(normalizer, scores):
    """By reverse and by forward mode."""
    return jax.jacrev(normalizer)(scores), jax.jacfwd(normalizer)(scores)


# The definition


@each_normalizer
@pytest.mark.parametrize("where", [ALL, WHERE], ids=["all", "where"])
def test_weights_are_the_definition(member, where):
    got = weigh(member.slot(), SCORES, where)
    assert_close(got, oracles.normalize(member.oracle(), SCORES, where))
    assert_exactly_zero(got[~where])


@each_normalizer
def test_where_may_be_left_out_and_broadcasts(member):
    normalizer = member.slot()
    assert_close(normalizer(jnp.asarray(SCORES)), weigh(normalizer, SCORES, ALL))
    column = np.tile(WHERE[:1], (5, 1))
    assert_close(normalizer(jnp.asarray(SCORES), WHERE[:1]), weigh(normalizer, SCORES, column))


@each_function
def test_function_and_class_are_the_same(function):
    slot, oracle = FUNCTIONS[function]
    got = function(jnp.asarray(SCORES), where=WHERE)
    assert_close(got, weigh(slot, SCORES, WHERE))
    assert_close(got, oracles.normalize(oracle, SCORES, WHERE))


def test_entmax_defaults_to_one_and_a_half():
    np.testing.assert_array_equal(entmax(SCORES), entmax15(SCORES))


@pytest.mark.parametrize("alpha", [1.001, 1.05, 1.5, 2.0, 3.0, 5.0, 10.0, 16.0])
def test_entmax_of_every_alpha(alpha):
    """Exact to rounding also for a steep α, where bisection on τ in float64 is off by a percent."""
    scores = np.stack([SCORES[0], SCORES[1] / 1000, SCORES[0], SCORES[1] / 1000, SCORES[0]])
    expected = oracles.normalize(oracles.Entmax(alpha), scores)
    assert expected[1].all() == (alpha <= 3)  # a narrow row is all support, unless α is steep
    assert_close(weigh(Entmax(alpha), scores, ALL), expected)
    assert_close(entmax(scores, alpha=alpha), expected)


def test_entmax_near_one_tends_to_softmax():
    """The error is of first order in α - 1."""
    expected = weigh(Softmax(), SCORES, ALL)
    errors = [np.abs(weigh(Entmax(1 + h), SCORES, ALL) - expected).max() for h in (1e-2, 1e-3)]
    assert errors[0] < 0.02
    assert_close(errors[1] * 10, errors[0], tolerance=1e-3)


@each_function
@pytest.mark.parametrize("axis", [0, -2])
def test_axis(function, axis):
    scores, where = RNG.normal(size=(5, 3, 7)), RNG.random((5, 3, 7)) < 0.7

    @jax.jit
    def both(scores, where):
        moved = function(jnp.moveaxis(scores, axis, -1), where=jnp.moveaxis(where, axis, -1))
        return function(scores, where=where, axis=axis), jnp.moveaxis(moved, -1, axis)

    assert_close(*both(scores, where))


@pytest.mark.parametrize("member", NORMALIZERS[1:4], ids=str)
def test_extra_axes_change_nothing(member):
    """deep-spin/entmax#13."""
    deep = [x.reshape(5, 1, 1, 7) for x in (SCORES, ALL, COTANGENT)]
    got = gradients(member.slot(), *deep)
    expected = gradients(member.slot(), SCORES, ALL, COTANGENT)
    assert_close(got[0].reshape(5, 7), expected[0])
    assert_trees_close(got[1], expected[1])


def test_sink_takes_its_share():
    """Softmax(sink=b) of s is softmax of [s, b] without its last entry, whatever the shift."""
    for scores in ([1.0, 2.0], [800.0, 801.0], [-800.0, -801.0]):
        for sink in (0.0, -3.0, 799.0):
            whole = oracles.Softmax()([*scores, sink])
            assert_close(weigh(Softmax(sink=sink), np.array(scores)), whole[:-1])


@pytest.mark.parametrize("sink", [np.inf, -np.inf])
def test_an_infinite_sink_takes_all_or_nothing(sink):
    def weights(scores, sink):
        return Softmax(sink)(scores, where=WHERE)

    @jax.jit
    def with_sink(scores, sink):
        got, pull = jax.vjp(weights, scores, sink)
        push = jax.jvp(weights, (scores, sink), (COTANGENT, np.ones(())))[1]
        return got, pull(COTANGENT), push, Softmax(sink).logsumexp(scores, where=WHERE)

    @jax.jit
    def without_sink(scores):
        got, pull = jax.vjp(lambda s: softmax(s, where=WHERE), scores)
        return got, *pull(COTANGENT), logsumexp(scores, where=WHERE)

    scores = SCORES.copy()
    scores[1, 2] = 1e300
    got, pulled, pushed, lse = with_sink(scores, np.asarray(sink))
    np.testing.assert_array_equal(Softmax(sink)(scores, where=WHERE), got)  # known, not traced
    if sink > 0:
        assert_exactly_zero((got, pushed, pulled))
        assert_close(lse, np.full(5, sink))
    else:
        expected, moved, without = without_sink(scores)
        np.testing.assert_array_equal(got, expected)
        assert_trees_close(pulled, (moved, np.zeros(())))
        assert_close(lse, without)


def test_a_sink_of_nan_shows_where_it_is_traced():
    weights = jax.jit(lambda sink: Softmax(sink)(jnp.asarray(SCORES)))(np.nan)
    assert np.isnan(weights).all()


INF = np.inf


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, INF], INF),
        ([INF, INF], INF),
        ([INF, -INF], INF),
        ([INF, np.nan], np.nan),
        ([-INF, -INF], -INF),
        ([-INF, 2.0], 2.0),
    ],
)
def test_logsumexp_of_infinite_scores(scores, expected):
    np.testing.assert_array_equal(logsumexp(jnp.array(scores)), expected)
    np.testing.assert_array_equal(logsumexp(jnp.array(scores), sink=-INF), expected)


@each_normalizer
def test_an_allowed_infinite_score_shows_in_its_row(member):
    """∞ - ∞ is nothing; a sigmoid has no such difference."""
    scores = jnp.asarray(SCORES).at[1, 2].set(INF)
    got = np.asarray(weigh(member.slot(), scores, ALL))
    if "sigmoid" in member.name:
        assert got[1, 2] == 1
        assert np.isfinite(got).all()
    else:
        assert np.isnan(got[1]).all()
        assert np.isfinite(np.delete(got, 1, axis=0)).all()


# Derivatives


@each_normalizer
def test_derivatives(member):
    def loss(scores, arrays):
        return (member.slot(arrays)(scores, where=WHERE) * COTANGENT).sum()

    assert_derivatives(loss, jnp.asarray(SCORES), member.arrays())


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 3.0, 5.0])
def test_jacobian_is_the_closed_form(alpha):
    """diag(g) - g gᵀ / Σg with g = p^{2-α} on the support (Peters et al. 2019, proposition 2)."""
    scores = SCORES[0]
    p = np.array(oracles.Entmax(alpha)(scores))
    g = np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0)
    expected = np.diag(g) - np.outer(g, g) / g.sum()
    for normalizer in [Entmax(alpha), Sparsemax()] if alpha == 2 else [Entmax(alpha)]:
        for got in jacobians(normalizer, scores):
            assert_close(got, expected, tolerance=1e-10)


def test_ties_at_the_maximum_have_the_derivative_of_the_formula():
    """All of n equal: (I - 1/n) · (1/n)^{2-α}, softmax being α = 1; none halves a tied maximum."""
    centred, tied = np.eye(7) - 1 / 7, np.full(7, 3.0)
    for normalizer, alpha in [
        (Softmax(), 1.0),
        (Sparsemax(), 2.0),
        (Entmax(1.5), 1.5),
        (Entmax(3.0), 3.0),
    ]:
        for got in jacobians(normalizer, tied):
            assert_close(got, centred * 7 ** (alpha - 2), tolerance=1e-11)


@jax.jit
def alpha_derivatives(alpha, scores, cotangent):
    """Of the weights by α: forward, forward of forward; of weights · cotangent: reverse, both."""

    def forward(f):
        return lambda alpha: jax.jvp(f, (alpha,), (1.0,))[1]

    def weights(alpha):
        return entmax(scores, alpha=alpha)

    reverse = jax.grad(lambda alpha: weights(alpha) @ cotangent)
    once = forward(weights)
    return once(alpha), forward(once)(alpha), reverse(alpha), jax.grad(reverse)(alpha)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 3.0, 5.0])
def test_alpha_is_learned(alpha):
    """First and second derivative by α against differences of the exact map in 80 digits."""
    digits, step = 80, mpmath.mpf(10) ** -15
    for scores in (SCORES[0], SCORES[1] / 20):
        row = tuple(map(float, scores))
        with mpmath.workdps(digits):
            low, middle, high = (
                oracles.exact_entmax(row, mpmath.mpf(alpha) + n * step, digits) for n in (-1, 0, 1)
            )
            terms = list(zip(low, middle, high, strict=True))
            first = np.array([float((c - a) / (2 * step)) for a, _, c in terms])
            second = np.array([float((a - 2 * b + c) / step**2) for a, b, c in terms])
        got = alpha_derivatives(alpha, scores, COTANGENT[0])
        assert_close(got[0], first, tolerance=1e-9)
        assert_close(got[1], second, tolerance=1e-7)
        assert_close(got[2], first @ COTANGENT[0], tolerance=1e-9)
        assert_close(got[3], second @ COTANGENT[0], tolerance=1e-7)


def test_traced_alpha_outside_its_range_is_nan():
    alphas = jnp.array([1.0, 0.5, 16.5, jnp.nan, 2.0])
    got = jax.jit(jax.vmap(lambda a: entmax(SCORES[0], alpha=a)))(alphas)
    assert np.isnan(got[:4]).all()
    assert_close(got[4], oracles.Sparsemax()(SCORES[0]))


def test_one_alpha_per_head():
    alphas = np.array([1.1, 1.5, 2.5, 3.0, 1.01])
    got = jax.jit(jax.vmap(lambda a, s: Entmax(a)(s)))(alphas, SCORES)
    expected = [oracles.Entmax(a)(s) for a, s in zip(alphas, SCORES, strict=True)]
    assert_close(got, expected)


# Masked, empty, infinite, NaN


@each_normalizer
def test_masked_is_deleted_in_value_and_gradient(member):
    """Whatever a masked entry holds, the rest is as without it; its own gradient is exactly 0."""
    keep = np.array([0, 2, 3, 6])
    where = np.tile(np.isin(np.arange(7), keep), (5, 1))
    expected = weigh(member.slot(), SCORES[:, keep], ALL[:, keep])
    d_kept, d_slot = gradients(member.slot(), SCORES[:, keep], ALL[:, keep], COTANGENT[:, keep])
    for garbage in (1e30, -1e30, np.inf, -np.inf, np.nan):
        scores = np.where(where, SCORES, garbage)
        got = weigh(member.slot(), scores, where)
        d_scores, d_same = gradients(member.slot(), scores, where, COTANGENT)
        assert_close(got[:, keep], expected)
        assert_close(d_scores[:, keep], d_kept)
        assert_exactly_zero((got[~where], d_scores[~where]))
        assert_trees_close(d_same, d_slot)


@each_normalizer
def test_minus_infinity_is_masked(member):
    scores, where = SCORES.copy(), ALL.copy()
    scores[:, [1, 4]], where[:, [1, 4]] = -np.inf, False
    assert_close(weigh(member.slot(), scores, ALL), weigh(member.slot(), SCORES, where))
    got, expected = (
        gradients(member.slot(), *pair, COTANGENT) for pair in ((scores, ALL), (SCORES, where))
    )
    assert_exactly_zero(got[0][:, [1, 4]])
    assert_trees_close(got, expected)


def with_empty_rows():
    """Row 0 is masked, row 2 is -inf, row 4 both in parts."""
    scores, where = SCORES.copy(), ALL.copy()
    where[0] = where[4, 3:] = False
    scores[2] = scores[4, :3] = -np.inf
    return scores, where, np.array([0, 2, 4])


@each_normalizer
def test_empty_row_is_zero_with_zero_gradients(member):
    scores, where, empty = with_empty_rows()
    cotangent = np.zeros((5, 7))
    cotangent[empty] = COTANGENT[empty]
    of_empty_rows = gradients(member.slot(), scores, where, cotangent)
    assert_exactly_zero((weigh(member.slot(), scores, where)[empty], of_empty_rows))
    of_all_rows = gradients(member.slot(), scores, where, COTANGENT)[0]
    assert_exactly_zero(of_all_rows[empty])
    assert_close(of_all_rows[1], gradients(member.slot(), SCORES, ALL, COTANGENT)[0][1])


@each_normalizer
def test_no_entries(member):
    nothing = np.zeros((5, 0))
    assert member.slot()(jnp.asarray(nothing)).shape == (5, 0)
    assert_exactly_zero(gradients(member.slot(), nothing, None, nothing)[1])


@each_normalizer
def test_no_nan_inside(member):
    """Operation by operation: a NaN that a later `where` hides trips jax.debug_nans."""
    scores, where, _ = with_empty_rows()
    normalizer = member.slot()
    with jax.debug_nans(True):
        jax.grad(lambda s: (normalizer(s, where=where) * SCORES).sum())(jnp.asarray(scores))


@each_normalizer
@pytest.mark.parametrize("place", [0, 2, 6])
def test_nan_shows_in_its_own_row_alone(member, place):
    scores, where = SCORES.copy(), ALL.copy()
    scores[0, place], where[0, 5] = np.nan, False
    got = weigh(member.slot(), scores, where)
    assert np.isnan(got[0, place])
    assert np.isnan(got[0, where[0]]).all() or "sigmoid" in member.name
    assert got[0, 5] == 0
    assert_close(got[1:], weigh(member.slot(), SCORES, where)[1:])


# Size and precision of the scores


@each_simplex
def test_large_logits(member):
    scores = np.tile([0.0, 8.0, -3.0, 0.5, 7.5, 7.0, 8.0], (5, 1))
    scores[1] += 1e8
    scores[2] -= 1e8
    scores[3, [0, 4]] = -1e30
    scores[4, [2, 3]] = 1e30
    assert_close(weigh(member.slot(), scores, ALL), oracles.normalize(member.oracle(), scores))
    assert np.isfinite(gradients(member.slot(), scores, ALL, COTANGENT)[0]).all()


@each_simplex
def test_large_float32_logits_are_shifted_by_the_maximum(member):
    """tensorflow/tensorflow#15564; unshifted sparsemax of [1e8, 1e8 + 8] gives [0.5, 8.5]."""
    scores = np.full((5, 7), 1e8, "float32")
    scores[1, 3] = 1e8 + 32
    scores[2, [2, 3]] = 1e8 + 64
    expected = np.full((5, 7), 1 / 7)
    expected[1], expected[2] = np.eye(7)[3], (np.eye(7)[2] + np.eye(7)[3]) / 2
    assert_close(weigh(member.slot(dtype="float32"), scores, ALL), expected)


@each_normalizer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_logits_are_normalized_in_float32(member, dtype):
    scores = np.concatenate([SCORES[:4] * 3, [[6e4, -6e4, 0, 1, 2, 3, 5.9e4]]])
    scores = jnp.asarray(scores, dtype)
    got = weigh(member.slot(dtype="float32"), scores, WHERE)
    assert got.dtype == jnp.float32
    arrays = {n: np.asarray(a, np.float32) for n, a in member.arrays().items()}
    expected = oracles.normalize(member.oracle(arrays), scores.astype("float64"), WHERE)
    assert_close(got, expected, tolerance=5e-6)


@each_normalizer
def test_float32_stays(member):
    scores = SCORES.astype("float32")
    got = weigh(member.slot(dtype="float32"), scores, ALL)
    assert got.dtype == jnp.float32
    arrays = {n: np.asarray(a, "float32") for n, a in member.arrays().items()}
    assert_close(got, oracles.normalize(member.oracle(arrays), scores))


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(1.5)], ids=str)
def test_a_long_row_in_float32(normalizer):
    """4,099 entries, all in the support: the sum, and each entry's relative error, stay small."""
    scores = np.random.default_rng(1).normal(size=4099).astype("float32") / 1e4
    got, exact = (np.asarray(weigh(normalizer, s), float) for s in (scores, scores.astype(float)))
    assert abs(got.sum() - 1) < 1e-5
    assert_close(got * 4099, exact * 4099, tolerance=2e-3)


@each_simplex
def test_ties_share(member):
    scores = np.tile([1.0, 2.0, 2.0, 2.0, 0.7, -1.0, 1.5], (5, 1))
    scores[1] = 3.0
    got = weigh(member.slot(), scores, ALL)
    assert got[0, 1] == got[0, 2] == got[0, 3]
    assert_close(got, oracles.normalize(member.oracle(), scores))
    assert_close(got[1], np.full(7, 1 / 7))


def test_sigmoid_saturates_without_nan():
    scores = jnp.array([-1e30, -800.0, 0.0, 800.0, 1e30])
    with jax.debug_nans(True):
        assert_close(sigmoid(scores), [0, 0, 0.5, 1, 1])
        assert_close(jax.grad(lambda s: sigmoid(s).sum())(scores), [0, 0, 0.25, 0, 0])


# Properties

some_scores = arrays(np.float64, (5, 7), elements=st.floats(-30, 30, width=32))


@each_simplex
@hypothesis.given(scores=some_scores, shift=st.floats(-100, 100), order=st.permutations(range(7)))
def test_properties_on_the_simplex(member, scores, shift, order):
    """Nonnegative, sum 1, shift invariant, permutation equivariant, ordered as the scores."""
    got = np.asarray(weigh(member.slot(), scores, ALL))
    assert got.min() >= 0
    assert_close(got.sum(1), np.ones(5))
    assert_close(weigh(member.slot(), scores + shift, ALL), got, tolerance=1e-6)
    assert_close(weigh(member.slot(), scores[:, order], ALL), got[:, order])
    ranked = np.take_along_axis(got, np.argsort(scores, kind="stable"), axis=1)
    assert (np.diff(ranked) >= -1e-12).all()


@hypothesis.given(scores=some_scores, other=some_scores)
def test_sparsemax_is_the_projection(scores, other):
    """⟨scores - w, p - w⟩ ≤ 0 for every p on the simplex: the variational inequality."""
    w, p = np.asarray(weigh(Sparsemax(), scores, ALL)), np.asarray(weigh(Softmax(), other, ALL))
    assert (((scores - w) * (p - w)).sum(1) <= 1e-9).all()


# Bad input


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        (lambda: Entmax(1.0), r"alpha.*1"),
        (lambda: Entmax(0.5), r"alpha.*0\.5"),
        (lambda: Entmax(17.0), r"alpha.*17"),
        (lambda: Entmax(np.nan), r"alpha.*nan"),
        (lambda: Entmax(np.inf), r"alpha.*inf"),
        (lambda: Entmax(jnp.array(0.9)), r"alpha.*0\.9"),
        (lambda: Entmax(jnp.array([1.5, 2.0])), r"alpha.*\D2,?\D"),
        (lambda: Softmax(sink=jnp.ones(3)), r"sink.*\D3,?\D"),
        (lambda: Softmax(sink=np.nan), r"sink.*nan"),
        (lambda: Softmax(sink=jnp.array(np.nan)), r"sink.*nan"),
        (lambda: Sigmoid(jnp.ones(7)), r"bias.*\D7,?\D"),
        (lambda: jnp.ones((5, 7)), r"normalizer"),
    ],
)
def test_bad_normalizer_is_named(normalizer, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        attention_weights(jnp.ones((5, 3)), jnp.ones((7, 3)), normalizer=normalizer())


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("alpha", [1.0, -2.0, 16.5, np.nan])
def test_bad_alpha_of_the_function_is_named(alpha):
    with pytest.raises(ValueError, match=f"(?s)alpha.*{alpha}"):
        entmax(SCORES, alpha=alpha)


# Where α > 2 a small weight has an immense derivative g = w^(2 - α): two keys, exact by mpmath


@functools.partial(jax.jit, static_argnames="alpha")
def jacobians_by_score(scores, alpha):
    """As `jacobians`, of an alpha that is known."""
    return [of(lambda s: entmax(s, alpha=alpha))(scores) for of in (jax.jacrev, jax.jacfwd)]


@jax.jit
def jacobians_by_alpha(scores, alpha):
    return [of(lambda a: entmax(scores, alpha=a))(alpha) for of in (jax.jacrev, jax.jacfwd)]


@pytest.mark.parametrize("alpha", [1.2, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("small", [0.1, 0.02, 0.003])
def test_derivatives_beside_a_small_weight(alpha, small):
    a = alpha - 1
    gap = float(((1 - small) ** a - small**a) / a)

    def weight(gap, alpha):
        """The smaller weight, from its definition."""
        a = alpha - 1
        return mpmath.findroot(lambda w: (1 - w) ** a - w**a - a * gap, mpmath.mpf(small))

    with mpmath.workdps(40):
        by_score = -mpmath.diff(lambda gap: weight(gap, mpmath.mpf(alpha)), mpmath.mpf(gap))
        by_alpha = mpmath.diff(lambda alpha: weight(mpmath.mpf(gap), alpha), mpmath.mpf(alpha))
    by_score, by_alpha = float(by_score), float(by_alpha)
    jacobian = by_score * np.array([[1, -1], [-1, 1]])
    scores = np.array([gap, 0.0])
    for got in jacobians_by_score(scores, alpha):
        assert_close(got, jacobian, tolerance=1e-11)
    for got in jacobians_by_alpha(scores, alpha):
        assert_close(got, np.array([-by_alpha, by_alpha]), tolerance=1e-11)


@each_normalizer
def test_an_allowed_infinity_shows(member):
    if "sigmoid" in member.name:
        pytest.skip("a sigmoid has a limit there: 1")
    weights = weigh(member.slot(), jnp.array([jnp.inf, 1.0, 2.0]))
    assert np.isnan(weights).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_lies_below_the_support_has_no_weight_and_no_derivative(dtype):
    """Far or masked, for every alpha: a weight that rounds to 1e-18 has a slope of 1e-2."""
    scores = jnp.array([[-50.0, 5.0], [0.0, 5.0]], dtype)
    where = jnp.array([[True, True], [False, True]])
    alphas = jnp.linspace(1.02, 8, 700, dtype=dtype)

    @jax.jit
    @jax.vmap
    def weights_and_tangents(alpha):
        point = scores, alpha
        return jax.jvp(lambda s, a: entmax(s, where=where, alpha=a), point, (scores + 1, alpha))

    weights, tangents = weights_and_tangents(alphas)
    np.testing.assert_array_equal(weights, np.broadcast_to([0.0, 1.0], (700, 2, 2)))
    assert_exactly_zero(tangents)


def test_every_normalizer_has_a_name():
    made = {name: make() for name, make in normalizers.BY_NAME.items()}
    assert made["off-by-one"] == Softmax(sink=0.0)
    assert made["entmax15"] == Entmax(1.5)
    assert set(map(type, made.values())) == {Softmax, Sparsemax, Entmax, Sigmoid}
