import functools
import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from statsmodels.nonparametric.kernel_regression import KernelReg

import attn_jax
from attn_jax import Entmax, Kernel, Sigmoid, Softmax, Sparsemax, kernels, regression
from attn_jax.regression import diagnostics, kernel_regression, leave_one_out, smoother
from tests import data_sets, oracles
from tests.members import KERNELS
from tests.tolerance import assert_close

OUTSIDE = get_args(regression.Outside)
COMPACT = [row for row in KERNELS if row.compact]
each_kernel = pytest.mark.parametrize("row", KERNELS, ids=str)
each_degree = pytest.mark.parametrize("degree", [0, 1])


fit = jax.jit(kernel_regression, static_argnames=("mask", "outside", "degree"))
r_squared = jax.jit(regression.r_squared)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


QUERY, KEY, VALUE = normal(7, 2), normal(13, 2), normal(13, 3)


def kernel(row, bandwidth):
    return Kernel(kernels.BY_NAME[row.name], bandwidth)


def weighted_least_squares(query, key, value, weights, degree):
    """One query at a time: the intercept of the weighted fit around it."""
    rows = []
    for center, row in zip(query, weights, strict=True):
        offsets = key - center
        design = np.column_stack([np.ones(len(key)), offsets if degree else offsets[:, :0]])
        root = np.sqrt(row)[:, None]
        assert np.linalg.matrix_rank(root * design) == design.shape[1]
        rows.append(np.linalg.lstsq(root * design, root * value)[0][0])
    return np.stack(rows)


def r_squared_at(data, bandwidth):
    fitted = fit(data.x, data.x, data.y, score=Kernel(bandwidth=bandwidth))
    return r_squared(data.y, fitted)


# Numbers that others published or computed


def lowest_nearby(data, bandwidth):
    """The leave-one-out error there, and along each bandwidth the nearest local minimum.

    For data of which a search would evaluate hundreds of matrices of 200,000 weights or more.
    """
    bandwidth, bottom = np.asarray(bandwidth), np.zeros(np.shape(bandwidth))
    error = jax.jit(
        lambda h: regression.leave_one_out_error(data.x, data.y, score=Kernel(bandwidth=h))
    )
    at = error(bandwidth)
    for entry in np.ndindex(bandwidth.shape):
        step = np.zeros(bandwidth.shape)
        step[entry] = 0.01
        below, above = error(bandwidth * (1 - step)), error(bandwidth * (1 + step))
        assert at < below
        assert at < above
        bottom[entry] = 1 + 0.005 * (below - above) / (below - 2 * at + above)
    return bandwidth * bottom, at


@pytest.mark.parametrize(
    ("name", "x", "bandwidth", "error", "correlation"),
    [
        ("engel", (), 134.37821, 14285.732, 0.893758),
        ("nile", (), 1.6555691, 17189.56, 0.660195),
        ("diabetes", (), 1.4256477, 3955.3052, 0.356243),
        ("diabetes", ("bmi", "s5"), [1.9348075, 0.27865931], 3241.0567, None),
    ],
)
def test_reference_data(name, x, bandwidth, error, correlation):
    data = data_sets.named(name, x)
    if x:
        lowest, there = lowest_nearby(data, bandwidth)
    else:
        lowest, there = regression.search_bandwidth(data.x, data.y)
    np.testing.assert_allclose(lowest, bandwidth, rtol=1e-3)
    np.testing.assert_allclose(there, error, rtol=1e-3)
    if correlation is not None:
        np.testing.assert_allclose(r_squared_at(data, lowest), [correlation], rtol=1e-3)


def flat(u):
    return 0 * u


@pytest.mark.parametrize(
    ("n", "bandwidth", "at_it", "at_one", "average"),
    [
        (50, 0.20287538, 0.0285, 0.301, 0.889),
        (500, 0.13013878, 0.00963, 0.381, 0.887),
        (1000, 0.12629764, 0.00525, 0.382, 0.885),
    ],
)
def test_reference_textbook(n, bandwidth, at_it, at_one, average):
    data, test = data_sets.textbook(n), data_sets.textbook_test()
    if n < 100:
        lowest, _ = regression.search_bandwidth(data.x, data.y)
    else:
        lowest, _ = lowest_nearby(data, bandwidth)
    np.testing.assert_allclose(lowest, bandwidth, rtol=1e-3)
    for score, expected in [
        (Kernel(bandwidth=bandwidth), at_it),
        (Kernel(bandwidth=1.0), at_one),
        (Kernel(flat), average),
    ]:
        predicted = np.asarray(fit(test.x, data.x, data.y, score=score))
        np.testing.assert_allclose(np.mean((predicted - test.y) ** 2), expected, rtol=1e-3)


def statsmodels(value, key, kind, bandwidth):
    """Its `rng` serves a bandwidth search only; left out, it warns."""
    rng = np.random.default_rng(0)
    return KernelReg(value[:, 0], key, "c" * key.shape[1], kind, bandwidth, rng=rng)


@pytest.fixture(scope="module", params=["lc", "ll"])
def peer(request):
    """statsmodels' fit of 31 points in two dimensions, and ours of the same."""
    key, value, bandwidth = normal(31, 2), normal(31, 1), np.array([0.9, 1.3])
    options = {"score": Kernel(bandwidth=bandwidth), "degree": ["lc", "ll"].index(request.param)}
    theirs = statsmodels(value, key, request.param, bandwidth)
    return theirs, key, value, bandwidth, options


def test_mean_is_statsmodels(peer):
    theirs, key, value, _, options = peer
    ours = np.asarray(fit(QUERY, key, value, **options))
    np.testing.assert_allclose(ours[:, 0], theirs.fit(QUERY)[0], rtol=1e-9, atol=1e-11)


def test_leave_one_out_error_is_statsmodels(peer):
    theirs, key, value, bandwidth, options = peer
    expected = theirs.cv_loo(bandwidth, theirs.est[theirs.reg_type])
    ours = jax.jit(lambda: regression.leave_one_out_error(key, value, **options))()
    np.testing.assert_allclose(ours, np.squeeze(expected), rtol=1e-9)


def test_r_squared_is_the_squared_correlation(peer):
    _, key, value, _, options = peer
    fitted = np.asarray(fit(key, key, value, **options))
    expected = np.corrcoef(value[:, 0], fitted[:, 0])[0, 1] ** 2
    assert_close(r_squared(value, fitted), [expected])


def test_r_squared_is_statsmodels_where_fits_keep_the_mean():
    """Elsewhere statsmodels subtracts the mean of the fits from the targets."""
    key, value, wide = normal(31, 1), normal(31, 1), 1e3
    theirs = statsmodels(value, key, "ll", [wide])
    fitted = fit(key, key, value, score=Kernel(bandwidth=wide), degree=1)
    np.testing.assert_allclose(r_squared(value, fitted), [theirs.r_squared()], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:After 0.17:FutureWarning")  # of a KernelReg that it makes
def test_aicc_is_statsmodels():
    key, value, bandwidth = normal(31, 2), normal(31, 1), np.array([0.9, 1.3])
    theirs = statsmodels(value, key, "lc", bandwidth)
    ours = jax.jit(regression.aicc)(key, value, score=Kernel(bandwidth=bandwidth))
    np.testing.assert_allclose(ours, np.squeeze(theirs.aic_hurvich(bandwidth)), rtol=1e-10)


# Fits against loops


@each_kernel
@each_degree
def test_prediction_is_weighted_least_squares(row, degree):
    bandwidth = np.array([4.5, 5.3])
    score = oracles.Kernel(getattr(oracles.kernels, row.name), bandwidth)
    weights = oracles.attention_weights(QUERY, KEY, score=score)
    expected = weighted_least_squares(QUERY, KEY, VALUE, weights, degree)
    got = kernel_regression(QUERY, KEY, VALUE, score=kernel(row, bandwidth), degree=degree)
    assert_close(got, expected, tolerance=1e-11)


@pytest.mark.parametrize("name", ["Sparsemax", "Entmax"])
@each_degree
def test_prediction_with_another_normalizer_is_weighted_least_squares(name, degree):
    arguments = {"Sparsemax": (), "Entmax": (1.4,)}[name]
    theirs, ours = getattr(oracles, name)(*arguments), getattr(attn_jax, name)(*arguments)
    weights = oracles.attention_weights(
        QUERY, KEY, score=oracles.Kernel(bandwidth=3.1), normalizer=theirs
    )
    assert (weights == 0).any()
    expected = weighted_least_squares(QUERY, KEY, VALUE, weights, degree)
    options = {"score": Kernel(bandwidth=3.1), "normalizer": ours, "degree": degree}
    assert_close(kernel_regression(QUERY, KEY, VALUE, **options), expected, tolerance=1e-10)


def refitted(key, value, **options):
    """Fit without each point in turn and predict it."""
    n = len(key)
    keys, values = (np.stack([np.delete(a, i, 0) for i in range(n)]) for a in (key, value))

    def fit(query, key, value):
        return kernel_regression(query[None], key, value, **options)[0]

    return jax.vmap(fit)(jnp.asarray(key), keys, values)


@each_kernel
@each_degree
def test_leave_one_out_is_refitting(row, degree):
    score = kernel(row, 1.1)
    # no point is outside of a kernel without an edge: a NaN would show that one is taken for it
    in_turn = ("nearest", "nan")[(KERNELS.index(row) + degree) % 2]
    for outside in OUTSIDE if row is COMPACT[0] else (in_turn,):
        options = {"score": score, "degree": degree, "outside": outside}
        got = leave_one_out(KEY, VALUE, **options)
        assert_close(got, refitted(KEY, VALUE, **options), tolerance=1e-9)
        # without a neighbour in reach the compact kernels have to answer from outside
        assert bool(jnp.isnan(got).any()) == (outside == "nan" and row.compact)


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax(1.3), Sigmoid(-0.4), Softmax(-1.0)])
@each_degree
def test_leave_one_out_is_refitting_with_other_normalizers(normalizer, degree):
    score = Kernel(bandwidth=np.array([1.1, 1.7]))
    options = {"score": score, "normalizer": normalizer, "degree": degree}
    expected = refitted(KEY, VALUE, **options)
    assert_close(leave_one_out(KEY, VALUE, **options), expected, tolerance=1e-9)
    error = regression.leave_one_out_error(KEY, VALUE, **options)
    assert_close(error, np.mean((VALUE - expected) ** 2), tolerance=1e-9)


@pytest.mark.parametrize(("name", "degree"), [("gaussian", 0), ("epanechnikov", 1)])
def test_isolated_points_are_finite(name, degree):
    """residual / (1 - L_ii) is 0/0 at engel's richest households."""
    data, log_kernel = data_sets.named("engel"), kernels.BY_NAME[name]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(bandwidth):
        score = Kernel(log_kernel, bandwidth)
        own = jnp.diag(smoother(data.x, data.x, score=score))
        return regression.leave_one_out_error(data.x, data.y, score=score, degree=degree), own

    (error, own), gradient = loss(11.0)
    assert (np.asarray(own) == 1).any()
    assert np.isfinite([error, gradient]).all()


@each_kernel
def test_isolated_point_is_predicted_by_its_nearest(row):
    key = KEY.copy()
    key[4] = [50.0, -30.0]
    distance = np.linalg.norm(key - key[4], axis=1)
    nearest, second = np.argsort(distance)[1:3]
    assert distance[second] - distance[nearest] > 0.1
    predicted = leave_one_out(key, VALUE, score=kernel(row, 1e-3))
    assert_close(predicted[4], VALUE[nearest])


# Outside the support


@pytest.mark.parametrize("row", COMPACT, ids=str)
@each_degree
def test_outside(row, degree):
    far = np.array([[9.0, 0.0], [-30.0, 7.0], [KEY[3, 0], 8.0], [2e3, 1e3], [-9.0, -9.0]])
    query = np.concatenate([0.1 * QUERY[:2], far])
    distance = np.linalg.norm(query[:, None] - KEY[None], axis=2)
    assert distance[2:].min() > 1.2
    assert distance[:2].min() < 1
    inside = kernel_regression(query[[0, 1, 1, 1, 1, 1, 1]], KEY, VALUE, score=kernel(row, 1.2))
    answers = {
        "nearest": VALUE[distance[2:].argmin(1)],
        "mean": np.tile(VALUE.mean(0), (5, 1)),
        "zero": np.zeros((5, 3)),
        "nan": np.full((5, 3), np.nan),
    }
    assert set(answers) == set(OUTSIDE)
    first = None
    for outside, expected in answers.items():
        options = {"score": kernel(row, 1.2), "outside": outside, "degree": degree}
        got = kernel_regression(query, KEY, VALUE, **options)
        assert_close(got[2:], expected)
        first = got[:2] if first is None else first
        assert np.array_equal(got[:2], first)
    if degree == 0:
        assert_close(first, inside[:2])


def beginning(i, j):
    return (j < 2) & (i >= 0)


def test_outside_heeds_the_mask():
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[3.0], [5.0], [11.0]])
    options = {"score": Kernel(kernels.boxcar, 0.3), "mask": beginning}
    for outside, expected in [("nearest", 5.0), ("mean", 4.0), ("zero", 0.0)]:
        assert_close(fit(np.array([[9.0]]), x, y, outside=outside, **options), [[expected]])


def test_nearest_is_nearest_in_bandwidths():
    x, y = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[5.0], [7.0]])
    for bandwidth, expected in [([0.1, 0.1], 5.0), ([0.01, 0.1], 7.0)]:
        score = Kernel(kernels.epanechnikov, np.array(bandwidth))
        assert_close(fit(np.zeros((1, 2)), x, y, score=score), [[expected]])


@pytest.mark.parametrize("name", ["boxcar", "cosine"])
def test_nearest_of_ties_is_their_mean(name):
    x = np.array([[-1.0], [1.0], [1.0], [5.0]])
    y = np.array([[2.0], [3.0], [10.0], [99.0]])
    assert_close(fit(np.zeros((1, 1)), x, y, score=Kernel(kernels.BY_NAME[name], 0.5)), [[5.0]])


@each_degree
@pytest.mark.parametrize("name", ["gaussian", "boxcar"])
def test_leave_one_out_of_one_or_two_points(name, degree):
    x, y = np.array([[0.3], [1.6]]), np.array([[2.0, -1.0], [5.0, 3.0]])

    @jax.jit
    def of_one_and_of_two(bandwidth):
        options = {"score": Kernel(kernels.BY_NAME[name], bandwidth), "degree": degree}

        def predicted(n, outside):
            return leave_one_out(x[:n], y[:n], outside=outside, **options)

        return {outside: (predicted(1, outside), predicted(2, outside)) for outside in OUTSIDE}

    for bandwidth in (0.7, 1.9):
        for outside, (one, two) in of_one_and_of_two(bandwidth).items():
            nobody = np.nan if outside == "nan" else 0.0
            assert_close(one, np.full((1, 2), nobody))
            reached = name == "gaussian" or bandwidth > 1.3 or outside in ("nearest", "mean")
            assert_close(two, y[::-1] if reached else np.full((2, 2), nobody))


# Degree 1


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(1.2)])
@pytest.mark.parametrize("name", ["gaussian", "logistic", "boxcar", "tricube"])
def test_degree_1_reproduces_a_line(name, normalizer):
    query = np.concatenate([QUERY[:3], KEY[:3], KEY.max(0)[None]])
    slope, height = normal(2, 3), normal(3)
    options = {"score": Kernel(kernels.BY_NAME[name], 5.0), "normalizer": normalizer, "degree": 1}
    got = kernel_regression(query, KEY, KEY @ slope + height, **options)
    assert_close(got, query @ slope + height, tolerance=1e-10)


def test_degree_1_reproduces_a_line_at_and_beyond_the_boundary_where_degree_0_does_not():
    key = np.linspace(0, 1, 23)[:, None]
    query = np.array([[0.0], [1.0], [-0.4], [1.3]])
    line = 3 * query - 2
    errors = {}
    for degree in (0, 1):
        got = fit(query, key, 3 * key - 2, score=Kernel(bandwidth=0.2), degree=degree)
        errors[degree] = np.abs(got - line)
    assert errors[1].max() < 1e-12
    assert errors[0].min() > 0.1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_degree_1_rows_sum_to_one_however_unequal_the_weights(name, dtype):
    """The second key's weight may be 1e-20 of the first's: the line still goes through both."""
    key = np.sort(np.random.default_rng(5).uniform(0, 5, (23, 1)), 0).astype(dtype)
    query = np.linspace(-0.5, 5.5, 61, dtype=dtype)[:, None]

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_matrix(bandwidth):
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        hat = smoother(query, key, score=score, degree=1)
        return jnp.sum(hat @ np.sin(key)), hat

    for bandwidth in np.array([1.0, 0.3, 0.1, 0.05, 0.03, 0.01, 0.002], dtype):
        gradient, hat = gradient_and_matrix(bandwidth)
        hat = np.asarray(hat, np.float64)
        error = np.abs(hat.sum(1) - 1) / np.abs(hat).sum(1)
        assert error.max() < 64 * jnp.finfo(dtype).eps, (bandwidth, error.max())
        assert np.isfinite(gradient), bandwidth


def test_degree_1_between_two_keys_is_the_line_through_them():
    x, y = np.array([[0.0], [1.0]]), np.array([[3.0], [7.0]])
    query = np.array([[0.05], [0.4], [0.93], [1.2], [-0.1]])
    for bandwidth in (0.5, 0.2, 0.15, 0.12, 0.1, 0.09):
        got = fit(query, x, y, score=Kernel(bandwidth=bandwidth), degree=1)
        assert_close(got, 3 + 4 * query, tolerance=1e-10)


@pytest.mark.parametrize("name", ["gaussian", "boxcar", "tricube"])
def test_degree_1_of_few_places(name):
    """One place: the mean. Two, with repeated inputs: the line through their means."""
    first, second = np.array([3.1, -1.7]), np.array([3.4, -1.1])
    t, value = np.array([[0.0], [0.0], [0.0], [1.0], [1.0]]), normal(5, 2)
    options = {"score": Kernel(kernels.BY_NAME[name], 1.5), "degree": 1}
    query_t = np.array([[0.0], [0.25], [1.1]])
    query = first + query_t * (second - first)
    got = fit(query, first + 0 * t, value, **options)
    assert_close(got, np.tile(value.mean(0), (3, 1)))
    got = fit(query, first + t * (second - first), value, **options)
    start, end = value[:3].mean(0), value[3:].mean(0)
    assert_close(got, start + query_t * (end - start), tolerance=1e-11)


@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_degree_1_of_collinear_inputs_is_flat_across_them(name):
    along, across = np.array([0.6, 0.8]), np.array([-0.8, 0.6])
    t, query_t = 0.4 * KEY[:, :1], 0.4 * QUERY[:, :1]
    query = query_t * along + 0.4 * QUERY[:, 1:] * across
    options = {"score": Kernel(kernels.BY_NAME[name], 3.7), "degree": 1}
    line, expected = t * normal(1, 3) + 1, query_t * normal(1, 3) + 1
    assert_close(kernel_regression(query, t * along, line, **options), expected, tolerance=1e-10)
    twice, query = np.repeat(t, 2, 1), np.repeat(query_t, 2, 1)  # the same input twice
    assert_close(kernel_regression(query, twice, line, **options), expected, tolerance=1e-10)


def test_degree_1_of_collinear_inputs_has_derivatives():
    """In two bandwidths the direction of the inputs turns."""
    key = KEY[:, :1] * np.array([[0.6, 0.8]])

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def total(query, bandwidth):
        score = Kernel(bandwidth=bandwidth)
        return jnp.sum(kernel_regression(query, key, VALUE, score=score, degree=1)[:, 0])

    bandwidth = np.array([1.1, 1.7])
    _, got = total(QUERY, bandwidth)
    expected = differences(lambda query: total(query, bandwidth)[0], QUERY)
    assert_close(got[0], expected, tolerance=1e-8)
    assert_close(got[1], differences(lambda h: total(QUERY, h)[0], bandwidth), tolerance=1e-8)


# Derivatives


def differences(function, x, step=1e-4):
    """Central differences of fourth order in each entry of x of a scalar function."""
    result = np.zeros(np.shape(x))
    for index in np.ndindex(result.shape):
        unit = np.zeros(result.shape)
        unit[index] = step
        near = function(x + unit) - function(x - unit)
        far = function(x + 2 * unit) - function(x - 2 * unit)
        result[index] = (8 * near - far) / (12 * step)
    return result


@functools.partial(jax.jit, static_argnames="degree")
def predictions_and_gradients(query, along, score, degree):
    """Each prediction · along, which depends on its own query alone, and its gradient."""

    def predict(query):
        return jnp.sum(kernel_regression(query, KEY, VALUE, score=score, degree=degree) * along, 1)

    predicted, pull = jax.vjp(predict, query)
    return predicted, *pull(jnp.ones_like(predicted))


@each_kernel
@each_degree
def test_gradient_in_the_query(row, degree):
    """Against differences: all queries are moved at once, and all moves are in one call."""
    query = np.concatenate([QUERY[:5], KEY[:1], KEY[:1] + 50.0])  # at a key, far away
    step = 1e-4
    moves = step * np.array([0, 2, 1, -1, -2])[:, None, None, None] * np.eye(2)[:, None, :]
    queries, along = (query + moves).reshape(-1, 2), np.tile(normal(7, 3, seed=1), (10, 1))
    predicted, gradient = predictions_and_gradients(queries, along, kernel(row, 2.7), degree)
    _, far, near, back, far_back = np.asarray(predicted).reshape(5, 2, 7)
    expected = (8 * (near - back) - (far - far_back)) / (12 * step)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0 or (row.name, degree) == ("boxcar", 0)
    assert_close(np.asarray(gradient)[:5], expected.T[:5], tolerance=1e-8)


@pytest.mark.parametrize(
    ("name", "bandwidth", "degree"),
    [
        ("gaussian", 2.3, 1),
        ("gaussian", [1.9, 2.6], 0),
        ("laplace", 2.3, 0),
        ("triweight", [1.9, 2.6], 1),
    ],
)
def test_gradient_of_leave_one_out_in_the_bandwidth(name, bandwidth, degree):
    @jax.jit
    @jax.value_and_grad
    def loss(bandwidth):
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        return regression.leave_one_out_error(KEY, VALUE, score=score, degree=degree)

    bandwidth = np.asarray(bandwidth)
    gradient = loss(bandwidth)[1]
    assert np.abs(gradient).min() > 1e-4
    assert_close(gradient, differences(lambda h: loss(h)[0], bandwidth), tolerance=1e-7)


def test_gradient_of_leave_one_out_in_alpha():
    @jax.jit
    @jax.value_and_grad
    def loss(alpha):
        options = {"score": Kernel(bandwidth=1.2), "normalizer": Entmax(alpha)}
        return regression.leave_one_out_error(KEY, VALUE, **options)

    alpha = np.array(1.37)
    gradient = loss(alpha)[1]
    assert abs(gradient) > 1e-4
    assert_close(gradient, differences(lambda a: loss(a)[0], alpha), tolerance=1e-8)


# The matrix L


@each_kernel
@each_degree
def test_prediction_is_the_smoother_times_the_values(row, degree):
    for outside in ("nearest", "mean"):
        options = {"score": kernel(row, 0.9), "degree": degree, "outside": outside}
        hat = smoother(QUERY, KEY, **options)
        assert_close(hat.sum(1), np.ones(7), tolerance=1e-11)
        assert_close(kernel_regression(QUERY, KEY, VALUE, **options), hat @ VALUE)


@pytest.mark.parametrize("name", ["gaussian", "logistic", "laplace", "biweight"])
@pytest.mark.parametrize("features", [1, 2])
def test_freedom_between_the_mean_and_interpolation(name, features):
    key = normal(13, features)

    def freedom(bandwidth, degree):
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        return regression.degrees_of_freedom(key, score=score, degree=degree)

    assert_close(freedom(1e9, 0), 1.0, tolerance=1e-7)
    assert_close(freedom(1e9, 1), 1.0 + features, tolerance=1e-7)
    assert_close(freedom(1e-5, 0), 13.0, tolerance=1e-7)
    if name == "biweight":
        assert_close(freedom(1e-5, 1), 13.0)
    assert 1.1 < freedom(1.0, 0) < 12


def test_average_pooling_and_linear_regression_are_limits():
    wide = Kernel(bandwidth=1e6)
    mean = kernel_regression(QUERY, KEY, VALUE, score=wide)
    assert_close(mean, np.tile(VALUE.mean(0), (7, 1)), tolerance=1e-9)
    design = np.column_stack([np.ones(13), KEY])
    line = np.column_stack([np.ones(7), QUERY]) @ np.linalg.lstsq(design, VALUE)[0]
    assert_close(kernel_regression(QUERY, KEY, VALUE, score=wide, degree=1), line, tolerance=1e-9)


# Diagnostics


@each_degree
def test_aicc_is_infinite_from_n_minus_2_on(degree):
    bandwidths = np.geomspace(0.02, 3, 17)
    infinite = []

    @jax.jit
    def criterion_and_matrix(bandwidth):
        options = {"score": Kernel(kernels.biweight, bandwidth), "degree": degree}
        return regression.aicc(KEY, VALUE, **options), smoother(KEY, KEY, **options)

    for bandwidth in bandwidths:
        criterion, hat = jax.device_get(criterion_and_matrix(bandwidth))
        trace, variance = np.trace(hat), np.mean((VALUE - hat @ VALUE) ** 2, axis=0)
        infinite.append(trace > 11)
        expected = np.inf
        if trace < 11:
            expected = np.log(variance).mean() + (1 + trace / 13) / (1 - (trace + 2) / 13)
        assert_close(criterion, expected, tolerance=1e-10)
    assert 2 < sum(infinite) < 15


def test_r_squared():
    value, predicted = normal(13, 2), normal(13, 2, seed=1)
    expected = [np.corrcoef(value[:, i], predicted[:, i])[0, 1] ** 2 for i in range(2)]
    assert_close(r_squared(value, predicted), expected)
    assert_close(r_squared(value, 3 * value - 7), [1.0, 1.0])
    assert_close(r_squared(value, np.full((13, 2), 0.1)), [0.0, 0.0])


@pytest.mark.parametrize("scale", [1e-200, 1e-90, 1e90, 1e200])
def test_r_squared_does_not_know_the_unit(scale):
    fitted = VALUE + normal(13, 3, seed=1)
    expected = regression.r_squared(VALUE, fitted)
    assert_close(regression.r_squared(scale * VALUE, scale * fitted), expected)
    assert_close(regression.r_squared(VALUE, scale * fitted), expected)


def test_effective_neighbours_and_entropy():
    weights = np.random.default_rng(1).dirichlet(np.ones(11), 5)
    uniform, one_hot = np.full((1, 11), 1 / 11), np.eye(11)[2:3]
    table = np.concatenate([weights, uniform, one_hot, np.zeros((1, 11))])

    @jax.jit
    def statistics(table):
        entropy, pull = jax.vjp(regression.entropy, table)
        scaled = regression.effective_neighbours(3 * table)
        return regression.effective_neighbours(table), scaled, entropy, *pull(jnp.ones(8))

    neighbours, scaled, entropy, gradient = statistics(table)
    assert_close(neighbours, [*(1 / (weights**2).sum(1)), 11.0, 1.0, 0.0])
    assert_close(entropy, [*-(weights * np.log(weights)).sum(1), math.log(11), 0.0, 0.0])
    assert_close(scaled, neighbours)
    assert np.isfinite(gradient).all()


@each_degree
def test_confidence_band_is_the_formula(degree):
    options = {"score": Kernel(bandwidth=1.4), "degree": degree}

    @jax.jit
    def matrices_and_band(query, key, value):
        band = regression.confidence_band(query, key, value, level=0.9, **options)
        return smoother(key, key, **options), smoother(query, key, **options), *band

    hat, rows, low, high = jax.device_get(matrices_and_band(QUERY, KEY, VALUE))
    residual = VALUE - hat @ VALUE
    freedom = np.trace((np.eye(13) - hat).T @ (np.eye(13) - hat))
    sigma = np.sqrt((residual**2).sum(0) / freedom)
    half = 1.6448536269514722 * np.linalg.norm(rows, axis=1)[:, None] * sigma
    assert_close(low, rows @ VALUE - half, tolerance=1e-10)
    assert_close(high, rows @ VALUE + half, tolerance=1e-10)


def test_confidence_band_covers_at_the_nominal_rate():
    """307 noisy copies of one smooth curve are 307 outputs of one fit."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 5, (101, 1)), 0)
    query = np.linspace(0.5, 4.5, 29)[:, None]
    y = np.sin(x) + rng.normal(0, 0.4, (101, 307))
    score, levels = Kernel(bandwidth=0.2), (0.6, 0.8, 0.95)

    @jax.jit
    def mean_and_bands(query, x, y):
        options = {"score": score}
        bands = [regression.confidence_band(query, x, y, level=p, **options) for p in levels]
        return smoother(query, x, **options) @ jnp.sin(x), bands

    mean, bands = jax.device_get(mean_and_bands(query, x, y))
    assert np.abs(mean - np.sin(query)).max() < 0.06
    width = 0
    for level, (low, high) in zip(levels, bands, strict=True):
        for curve, slack in [(mean, 0.015), (np.sin(query), 0.03)]:
            covered = np.mean((low <= curve) & (curve <= high))
            assert abs(covered - level) < slack
        assert np.all(high - low > width)
        width = high - low


def test_confidence_band_is_nan_without_freedom():
    band = jax.jit(regression.confidence_band)
    for score in (Kernel(bandwidth=1e-3), Kernel(kernels.boxcar, 1e-3)):
        low, high = band(QUERY, KEY, VALUE, score=score)
        assert np.isnan(low).all()
        assert np.isnan(high).all()


@each_degree
def test_outputs_do_not_know_each_other(degree):
    options = {"score": Kernel(bandwidth=1.2), "degree": degree}

    @jax.jit
    def numbers(value):
        band = regression.confidence_band(QUERY, KEY, value, **options)
        columns = [kernel_regression(QUERY, KEY, value, **options), *band]
        correlation = regression.r_squared(value, leave_one_out(KEY, value, **options))
        means = [f(KEY, value, **options) for f in diagnostics.CRITERIA.values()]
        return jnp.concatenate([*columns, correlation[None]]), jnp.stack(means)

    columns, means = numbers(VALUE)
    alone = [numbers(VALUE[:, i : i + 1]) for i in range(3)]
    assert_close(columns, np.concatenate([c for c, _ in alone], axis=1))
    assert_close(means, np.mean([m for _, m in alone], axis=0))


# The search


def objective_with_minima(spacing, places):
    """Σ over features of a parabola and a cosine in log bandwidth; least, 0, at `places`."""

    def criterion(key, value, *, score, **options):
        t = jnp.log(score.bandwidth) - jnp.asarray(places)
        return jnp.sum(1 - jnp.cos(2 * jnp.pi * t / spacing) + 0.1 * t**2)

    return criterion


@pytest.mark.parametrize("place", [-1.83, 1.27])
def test_search_finds_the_lowest_of_many_minima(place, monkeypatch):
    monkeypatch.setitem(diagnostics.CRITERIA, "loo", objective_with_minima(0.9, place))
    found = regression.search_bandwidth(KEY, VALUE)
    assert_close(found.bandwidth, math.exp(place), tolerance=1e-6)
    assert_close(found.value, 0.0, tolerance=1e-9)


def test_search_per_feature_finds_the_lowest_of_many_minima(monkeypatch):
    places = np.array([-1.31, 0.77])
    monkeypatch.setitem(diagnostics.CRITERIA, "loo", objective_with_minima(2.1, places))
    found = regression.search_bandwidth(KEY, VALUE, per_feature=True)
    assert_close(found.bandwidth, np.exp(places), tolerance=1e-4)


def leave_one_out_by_hand(x, y, bandwidths):
    """The gaussian leave-one-out error at each bandwidth, in NumPy."""
    distance = (x - x.T) ** 2
    np.fill_diagonal(distance, np.inf)
    errors = []
    for bandwidth in bandwidths:
        logs = -distance / (2 * bandwidth**2)
        weights = np.exp(logs - logs.max(1, keepdims=True))
        errors.append(np.mean((y - weights @ y / weights.sum(1, keepdims=True)) ** 2))
    return np.array(errors)


def test_search_finds_the_global_minimum_of_data_with_several():
    data = data_sets.textbook(30)
    grid = np.geomspace(1e-3, 50, 4001)
    errors = leave_one_out_by_hand(data.x, data.y, grid)
    inner = errors[1:-1]
    minima = np.flatnonzero((inner < errors[:-2]) & (inner < errors[2:])) + 1
    assert len(minima) >= 2
    best = minima[errors[minima].argmin()]
    found = regression.search_bandwidth(data.x, data.y)
    np.testing.assert_allclose(found.bandwidth, grid[best], rtol=2e-2)
    assert found.value <= errors[best] * (1 + 1e-12)
    again = regression.search_bandwidth(data.x, data.y)
    assert np.array_equal(again.bandwidth, found.bandwidth)
    assert again.value == found.value


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": kernels.boxcar},
        {"kernel": kernels.epanechnikov, "criterion": "aicc", "outside": "nan"},
        {"normalizer": Sparsemax()},
        {"normalizer": Entmax(1.5), "criterion": "aicc"},
        {"kernel": kernels.tricube, "degree": 1},
    ],
    ids=lambda options: "-".join(str(getattr(v, "__name__", v)) for v in options.values()),
)
def test_search_with_options(options):
    data = data_sets.textbook(29, seed=1)
    found = regression.search_bandwidth(data.x, data.y, **options)
    rest = dict(options)
    criterion = diagnostics.CRITERIA[rest.pop("criterion", "loo")]
    chosen = rest.pop("kernel", kernels.gaussian)

    def at(bandwidth):
        return criterion(data.x, data.y, score=Kernel(chosen, bandwidth), **rest)

    bandwidths = jnp.concatenate([found.bandwidth[None], jnp.geomspace(0.01, 50, 61)])
    there, *everywhere = np.asarray(jax.lax.map(at, bandwidths))
    assert np.isfinite(found.value)
    np.testing.assert_allclose(there, found.value, rtol=1e-9)
    assert found.value <= np.nanmin(everywhere) + 0.02 * abs(np.nanmin(everywhere))


def test_search_per_feature_of_a_kernel_with_steps():
    """The input that says nothing gets the wider bandwidth."""
    y = np.sin(2 * KEY[:, :1])
    options = {"kernel": kernels.boxcar, "outside": "nan"}
    found = regression.search_bandwidth(KEY, y, per_feature=True, **options)
    common = regression.search_bandwidth(KEY, y, **options)
    assert found.bandwidth.shape == (2,)
    assert found.value <= common.value
    assert found.bandwidth[0] < found.bandwidth[1]


@pytest.mark.parametrize("criterion", diagnostics.CRITERIA)
def test_search_of_a_constant_output_answers(criterion):
    found = regression.search_bandwidth(KEY, np.ones((13, 1)), criterion=criterion)
    assert np.isfinite(found.bandwidth)
    assert found.bandwidth > 0


def test_search_prefers_the_line_of_a_line():
    """Neighbours err in opposite directions: every near one misleads."""
    x = np.linspace(0, 1, 23)[:, None]
    y = 2 * x + 0.1 * (-1.0) ** np.arange(23)[:, None]
    assert regression.search_bandwidth(x, y, degree=1).bandwidth > 1


def test_search_in_float32():
    data = data_sets.textbook(50)
    x, y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y, jnp.float32)
    found = regression.search_bandwidth(x, y)
    assert found.bandwidth.dtype == jnp.float32
    np.testing.assert_allclose(found.bandwidth, 0.20287538, rtol=2e-2)


# Precision


def test_a_hundred_bandwidths_away_in_float32():
    """Every kernel, and the gaussian in plain attention, answers as the nearest key does."""
    key = np.array([[0.0], [1.0], [2.5]], np.float32)
    value = np.array([[3.0, -1.0], [5.0, 2.0], [11.0, 4.0]], np.float32)
    query = np.array([[3.5], [-1.0]], np.float32)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradients_and_predictions(query, bandwidth):
        scores = {row.name: kernel(row, bandwidth) for row in KERNELS}
        fits = {n: kernel_regression(query, key, value, score=s) for n, s in scores.items()}
        plain = attn_jax.attention(query, key, value, score=scores["gaussian"])
        fits |= {"attention": plain}
        return sum(predicted.sum() for predicted in fits.values()), fits

    gradients, predictions = gradients_and_predictions(query, np.float32(0.01))
    for predicted in predictions.values():
        assert predicted.dtype == jnp.float32
        assert_close(predicted, [[11.0, 4.0], [3.0, -1.0]])
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("row", [KERNELS[0], KERNELS[3]], ids=str)
@each_degree
def test_float32_far_from_the_origin(row, degree):
    """Multiples of 1/32 keep every bit when 2^15 is added."""
    query, key = (np.float32(np.round(32 * a) / 32) for a in (QUERY, KEY))
    options = {"score": kernel(row, 2.75), "degree": degree}
    value = np.float32(VALUE)
    here = fit(query, key, value, **options)
    there = fit(query + np.float32(2**15), key + np.float32(2**15), value, **options)
    assert_close(there, here, tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@each_degree
def test_dtype_of_the_prediction_is_the_value_s(dtype, degree):
    arrays = [a.astype(jnp.dtype(dtype)) for a in (QUERY, KEY, VALUE)]
    got = fit(*arrays, score=Kernel(bandwidth=1.5), degree=degree)
    assert got.dtype == dtype
    exact = [np.asarray(a, np.float64) for a in arrays]
    expected = fit(*exact, score=Kernel(bandwidth=1.5), degree=degree)
    assert_close(got, expected, tolerance={"float32": 1e-5}.get(dtype))


def test_integers_are_numbers():
    got = fit(np.array([[1]]), np.array([[0], [2]]), np.array([[1], [4]]))
    assert_close(got, [[2.5]], tolerance=1e-6)


def test_nan_at_an_allowed_position_shows():
    key = KEY.copy()
    key[4, 0] = np.nan
    for degree in (0, 1):
        for name in ("gaussian", "boxcar"):
            score = Kernel(kernels.BY_NAME[name], 1.5)
            assert np.isnan(kernel_regression(QUERY, key, VALUE, score=score, degree=degree)).all()


# The caller's mistakes


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_regression(QUERY, KEY, VALUE, degree=2), "degree must be 0 or 1. Got 2"),
        (lambda: kernel_regression(QUERY, KEY, VALUE, outside="far"), "outside must be one of"),
        (lambda: kernel_regression(QUERY, KEY, VALUE, score=attn_jax.Dot()), "score must be a K"),
        (lambda: kernel_regression(QUERY, KEY, VALUE[:, 0]), r"value must have two axes"),
        (
            lambda: kernel_regression(QUERY, KEY, VALUE[1:]),
            r"key and value must have the same number of rows. Got key \(13, 2\), value \(12, 3\)",
        ),
        (lambda: kernel_regression(QUERY[:, :1], KEY, VALUE), "query and key must"),
        (lambda: kernel_regression(QUERY[:, 0], KEY, VALUE), "query"),
        (lambda: smoother(QUERY, KEY, score=Kernel(bandwidth=jnp.ones(3))), "bandwidth must"),
        (lambda: smoother(QUERY, KEY, degree="1"), "degree must"),
        (lambda: leave_one_out(KEY, VALUE[1:]), "key and value must"),
        (lambda: leave_one_out(KEY, VALUE, degree=3), "degree must"),
        (lambda: regression.leave_one_out_error(KEY, VALUE[:, 0]), "value must"),
        (lambda: regression.aicc(KEY, VALUE[1:]), "key and value must"),
        (lambda: regression.aicc(KEY, VALUE[:, 0]), "value must"),
        (lambda: regression.r_squared(VALUE, VALUE[1:]), "value and predicted must"),
        (lambda: regression.effective_neighbours(VALUE[:, 0]), "weights must"),
        (lambda: regression.entropy(VALUE[:, 0]), "weights must"),
        (lambda: regression.confidence_band(QUERY, KEY, VALUE, level=95), "level must be above 0"),
        (lambda: regression.confidence_band(QUERY, KEY, VALUE, level=0), "level must"),
        (lambda: regression.confidence_band(QUERY, KEY, VALUE[1:]), "key and value must"),
        (lambda: regression.search_bandwidth(KEY, VALUE, criterion="gcv"), "criterion must be on"),
        (lambda: regression.search_bandwidth(KEY[:, 0], VALUE), "key must have two axes"),
        (lambda: regression.search_bandwidth(KEY, VALUE[:, 0]), "value must have two axes"),
        (lambda: regression.search_bandwidth(KEY, VALUE[1:]), "key and value must"),
        (lambda: regression.search_bandwidth(KEY[:1], VALUE[:1]), "key must hold two rows"),
        (lambda: regression.search_bandwidth(0 * KEY, VALUE), "key must hold two rows"),
        (lambda: regression.search_bandwidth(KEY, VALUE, kernel="gaussian"), "kernel must"),
        (lambda: regression.search_bandwidth(KEY, VALUE, degree=2), "degree must"),
        (lambda: regression.search_bandwidth(KEY * np.nan, VALUE), "key must be finite"),
        (lambda: regression.search_bandwidth(KEY, VALUE * np.inf), "value must be finite"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_search_names_an_option_that_it_has_not():
    with pytest.raises(ValueError, match=r"options must be among .*mask.*foo"):
        regression.search_bandwidth(KEY, VALUE, foo=1)
