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
from experiments import curves
from tests import oracles
from tests.members import KERNELS
from tests.tolerance import assert_close

OUTSIDE = get_args(regression.Outside)
COMPACT = [row for row in KERNELS if row.compact]
each_kernel = pytest.mark.parametrize("row", KERNELS, ids=str)
each_degree = pytest.mark.parametrize("degree", [0, 1])


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
    fitted = kernel_regression(data.x, data.x, data.y, score=Kernel(bandwidth=bandwidth))
    return regression.r_squared(data.y, fitted)


# Numbers that others published or computed


@pytest.mark.parametrize(
    ("name", "x", "bandwidth", "error", "r_squared"),
    [
        ("engel", (), 134.37821, 14285.732, 0.893758),
        ("nile", (), 1.6555691, 17189.56, 0.660195),
        ("diabetes", (), 1.4256477, 3955.3052, 0.356243),
        ("diabetes", ("bmi", "s5"), [1.9348075, 0.27865931], 3241.0567, None),
    ],
)
def test_reference_data(name, x, bandwidth, error, r_squared):
    data = curves.named(name, x)
    found = regression.search_bandwidth(data.x, data.y, per_feature=len(x) > 1)
    np.testing.assert_allclose(found.bandwidth, bandwidth, rtol=1e-3)
    np.testing.assert_allclose(found.value, error, rtol=1e-3)
    if r_squared is not None:
        np.testing.assert_allclose(r_squared_at(data, found.bandwidth), [r_squared], rtol=1e-3)


@pytest.mark.parametrize(
    ("n", "bandwidth", "at_it", "at_one", "average"),
    [
        (50, 0.20287538, 0.0285, 0.301, 0.889),
        (500, 0.13013878, 0.00963, 0.381, 0.887),
        (1000, 0.12629764, 0.00525, 0.382, 0.885),
    ],
)
def test_reference_textbook(n, bandwidth, at_it, at_one, average):
    data, test = curves.textbook(n), curves.textbook_test()
    found = regression.search_bandwidth(data.x, data.y)
    np.testing.assert_allclose(found.bandwidth, bandwidth, rtol=1e-3)
    for score, expected in [
        (Kernel(bandwidth=found.bandwidth), at_it),
        (Kernel(), at_one),
        (Kernel(lambda u: 0 * u), average),
    ]:
        predicted = np.asarray(kernel_regression(test.x, data.x, data.y, score=score))
        np.testing.assert_allclose(np.mean((predicted - test.y) ** 2), expected, rtol=1e-3)


@pytest.fixture(scope="module", params=["lc", "ll"])
def peer(request):
    """statsmodels' fit of 31 points in two dimensions, and ours of the same."""
    key, value, bandwidth = normal(31, 2), normal(31, 1), np.array([0.9, 1.3])
    options = {"score": Kernel(bandwidth=bandwidth), "degree": ["lc", "ll"].index(request.param)}
    theirs = KernelReg(value[:, 0], key, "cc", reg_type=request.param, bw=bandwidth)
    return theirs, key, value, bandwidth, options


def test_mean_is_statsmodels(peer):
    theirs, key, value, _, options = peer
    ours = kernel_regression(QUERY, key, value, **options)
    np.testing.assert_allclose(ours[:, 0], theirs.fit(QUERY)[0], rtol=1e-9, atol=1e-11)


def test_leave_one_out_error_is_statsmodels(peer):
    theirs, key, value, bandwidth, options = peer
    expected = theirs.cv_loo(bandwidth, theirs.est[theirs.reg_type])
    ours = regression.leave_one_out_error(key, value, **options)
    np.testing.assert_allclose(ours, np.squeeze(expected), rtol=1e-9)


def test_r_squared_is_the_squared_correlation(peer):
    _, key, value, _, options = peer
    fitted = np.asarray(kernel_regression(key, key, value, **options))
    expected = np.corrcoef(value[:, 0], fitted[:, 0])[0, 1] ** 2
    assert_close(regression.r_squared(value, fitted), [expected])


def test_r_squared_is_statsmodels_where_fits_keep_the_mean():
    """Elsewhere statsmodels subtracts the mean of the fits from the targets."""
    key, value, wide = normal(31, 1), normal(31, 1), 1e3
    theirs = KernelReg(value[:, 0], key, "c", reg_type="ll", bw=[wide])
    fitted = kernel_regression(key, key, value, score=Kernel(bandwidth=wide), degree=1)
    np.testing.assert_allclose(regression.r_squared(value, fitted), [theirs.r_squared()], rtol=1e-6)


def test_aicc_is_statsmodels():
    key, value, bandwidth = normal(31, 2), normal(31, 1), np.array([0.9, 1.3])
    theirs = KernelReg(value[:, 0], key, "cc", reg_type="lc", bw=bandwidth)
    ours = regression.aicc(key, value, score=Kernel(bandwidth=bandwidth))
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
        QUERY, KEY, score=oracles.Kernel(bandwidth=1.7), normalizer=theirs
    )
    assert (weights == 0).any()
    expected = weighted_least_squares(QUERY, KEY, VALUE, weights, degree)
    options = {"score": Kernel(bandwidth=1.7), "normalizer": ours, "degree": degree}
    assert_close(kernel_regression(QUERY, KEY, VALUE, **options), expected, tolerance=1e-10)


def refitted(key, value, **options):
    """Fit without each point in turn and predict it."""
    n = len(key)
    keys, values = (jnp.stack([np.delete(a, i, 0) for i in range(n)]) for a in (key, value))

    def fit(query, key, value):
        return kernel_regression(query[None], key, value, **options)[0]

    return jax.vmap(fit)(jnp.asarray(key), keys, values)


@each_kernel
@each_degree
def test_leave_one_out_is_refitting(row, degree):
    score = kernel(row, 1.1)
    for outside in OUTSIDE:
        options = {"score": score, "degree": degree, "outside": outside}
        got = leave_one_out(KEY, VALUE, **options)
        assert_close(got, refitted(KEY, VALUE, **options), tolerance=1e-9)
        # without a neighbour in reach the compact kernels have to answer from outside
        assert bool(jnp.isnan(got).any()) == (outside == "nan" and row.compact)


@pytest.mark.parametrize("normalizer", [Sparsemax(), Entmax(1.3), Sigmoid(-0.4), Softmax(-1.0)])
@each_degree
def test_leave_one_out_is_refitting_with_other_normalizers(normalizer, degree):
    options = {"score": Kernel(bandwidth=[1.1, 1.7]), "normalizer": normalizer, "degree": degree}
    expected = refitted(KEY, VALUE, **options)
    assert_close(leave_one_out(KEY, VALUE, **options), expected, tolerance=1e-9)
    error = regression.leave_one_out_error(KEY, VALUE, **options)
    assert_close(error, np.mean((VALUE - expected) ** 2), tolerance=1e-9)


@each_degree
@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_isolated_points_are_finite(name, degree):
    """residual / (1 - L_ii) is 0/0 at engel's richest households."""
    data = curves.named("engel")

    def loss(bandwidth):
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        return regression.leave_one_out_error(data.x, data.y, score=score, degree=degree)

    hat = smoother(data.x, data.x, score=Kernel(kernels.BY_NAME[name], 11.0), degree=degree)
    assert (np.diag(hat) == 1).any()
    assert np.isfinite(jax.value_and_grad(loss)(11.0)).all()


def test_isolated_point_is_predicted_by_its_nearest():
    x, y = jnp.array([[0.0], [0.1], [1e3]]), jnp.array([[2.0], [3.0], [-7.0]])
    for row in KERNELS:
        assert_close(leave_one_out(x, y, score=kernel(row, 0.5))[2], [3.0])


# Outside the support


@pytest.mark.parametrize("row", COMPACT, ids=str)
@each_degree
def test_outside(row, degree):
    x, y = normal(11, 1), normal(11, 2)
    inside, far = np.array([[0.02], [-0.3]]), np.array([[9.0], [-30.0], [x[3, 0] + 8.0]])
    assert np.abs(far - x.T).min() > 1
    query = np.concatenate([inside, far])
    nearest = y[np.abs(far - x.T).argmin(1)]
    answers = {
        "nearest": nearest,
        "mean": np.tile(y.mean(0), (3, 1)),
        "zero": np.zeros((3, 2)),
        "nan": np.full((3, 2), np.nan),
    }
    assert set(answers) == set(OUTSIDE)
    alone = kernel_regression(inside, x, y, score=kernel(row, 1.0), degree=degree)
    for outside, expected in answers.items():
        options = {"score": kernel(row, 1.0), "outside": outside, "degree": degree}
        got = kernel_regression(query, x, y, **options)
        assert_close(got[2:], expected)
        assert_close(got[:2], alone)


def test_outside_heeds_the_mask():
    x, y = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[3.0], [5.0], [11.0]])
    options = {"score": Kernel(kernels.boxcar, 0.3), "mask": lambda i, j: j < 2 + 0 * i}
    for outside, expected in [("nearest", 5.0), ("mean", 4.0), ("zero", 0.0)]:
        got = kernel_regression(jnp.array([[9.0]]), x, y, outside=outside, **options)
        assert_close(got, [[expected]])


def test_nearest_is_nearest_in_bandwidths():
    x, y = jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.array([[5.0], [7.0]])
    for bandwidth, expected in [([0.1, 0.1], 5.0), ([0.01, 0.1], 7.0)]:
        score = Kernel(kernels.epanechnikov, jnp.array(bandwidth))
        assert_close(kernel_regression(jnp.zeros((1, 2)), x, y, score=score), [[expected]])


@pytest.mark.parametrize("row", COMPACT, ids=str)
def test_nearest_of_ties_is_their_mean(row):
    x = jnp.array([[-1.0], [1.0], [1.0], [5.0]])
    y = jnp.array([[2.0], [3.0], [10.0], [99.0]])
    got = kernel_regression(jnp.zeros((1, 1)), x, y, score=kernel(row, 0.5))
    assert_close(got, [[5.0]])


@each_degree
@pytest.mark.parametrize("name", ["gaussian", "boxcar", "tricube"])
def test_leave_one_out_of_one_or_two_points(name, degree):
    x, y = jnp.array([[0.3], [1.6]]), jnp.array([[2.0, -1.0], [5.0, 3.0]])
    for outside, nobody in [("nearest", 0.0), ("mean", 0.0), ("zero", 0.0), ("nan", np.nan)]:
        for bandwidth in (0.7, 1.9):
            score = Kernel(kernels.BY_NAME[name], bandwidth)
            options = {"score": score, "outside": outside, "degree": degree}
            assert_close(leave_one_out(x[:1], y[:1], **options), np.full((1, 2), nobody))
            reached = name == "gaussian" or bandwidth > 1.3 or outside in ("nearest", "mean")
            expected = y[::-1] if reached else np.full((2, 2), nobody)
            assert_close(leave_one_out(x, y, **options), expected)


# Degree 1


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(1.2)])
@pytest.mark.parametrize("name", ["gaussian", "logistic", "boxcar", "tricube"])
def test_degree_1_reproduces_a_line(name, normalizer):
    for features, bandwidth in [(1, 1.9), (2, 2.9)]:
        key = normal(17, features)
        query = np.concatenate([0.7 * normal(7, features), key[:3], key.max(0)[None]])
        slope, height = normal(features, 2), normal(2)
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        options = {"score": score, "normalizer": normalizer, "degree": 1}
        got = kernel_regression(query, key, key @ slope + height, **options)
        assert_close(got, query @ slope + height, tolerance=1e-10)


def test_degree_1_reproduces_a_line_at_and_beyond_the_boundary_where_degree_0_does_not():
    key = np.linspace(0, 1, 23)[:, None]
    query = np.array([[0.0], [1.0], [-0.4], [1.3]])
    line = 3 * query - 2
    errors = {}
    for degree in (0, 1):
        got = kernel_regression(query, key, 3 * key - 2, score=Kernel(bandwidth=0.2), degree=degree)
        errors[degree] = np.abs(got - line)
    assert errors[1].max() < 1e-12
    assert errors[0].min() > 0.1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["gaussian", "logistic", "laplace"])
def test_degree_1_rows_sum_to_one_however_unequal_the_weights(name, dtype):
    """The second key's weight may be 1e-20 of the first's: the line still goes through both."""
    key = jnp.asarray(np.sort(np.random.default_rng(5).uniform(0, 5, (23, 1)), 0), dtype)
    query = jnp.linspace(-0.5, 5.5, 61, dtype=dtype)[:, None]
    for bandwidth in (1.0, 0.3, 0.1, 0.05, 0.03, 0.01):
        hat = smoother(query, key, score=Kernel(kernels.BY_NAME[name], bandwidth), degree=1)
        size = np.abs(hat).sum(1)
        error = np.abs(np.asarray(hat, np.float64).sum(1) - 1) / size
        assert error.max() < 64 * jnp.finfo(dtype).eps, (bandwidth, error.max())


def test_degree_1_between_two_keys_is_the_line_through_them():
    x, y = jnp.array([[0.0], [1.0]]), jnp.array([[3.0], [7.0]])
    query = jnp.array([[0.05], [0.4], [0.93], [1.2], [-0.1]])
    for bandwidth in (0.5, 0.2, 0.15, 0.12, 0.1, 0.09):
        got = kernel_regression(query, x, y, score=Kernel(bandwidth=bandwidth), degree=1)
        assert_close(got, 3 + 4 * query, tolerance=1e-10)


@each_kernel
def test_degree_1_of_one_place_is_the_mean(row):
    key, value = np.full((5, 2), [3.1, -1.7]), normal(5, 2)
    query = key[:2] + np.array([[0.0, 0.0], [0.3, 0.2]])
    options = {"score": kernel(row, 1.0), "degree": 1}
    got = kernel_regression(query, key, value, **options)
    assert_close(got, np.tile(value.mean(0), (2, 1)))


@each_kernel
def test_degree_1_of_repeated_inputs(row):
    """Two places, many points: the line through the means."""
    key = np.array([0.0, 0, 0, 1, 1])[:, None]
    value = np.array([1.0, 2, 6, 4, 8])[:, None]
    query = np.array([[0.0], [0.25], [1.0]])
    got = kernel_regression(query, key, value, score=kernel(row, 1.5), degree=1)
    assert_close(got, 3 + 3 * query)


@pytest.mark.parametrize("name", ["gaussian", "epanechnikov"])
def test_degree_1_of_collinear_inputs_is_flat_across_them(name):
    along, across = np.array([0.6, 0.8]), np.array([-0.8, 0.6])
    t = np.random.default_rng(3).uniform(-1, 1, (17, 1))
    query_t, query_s = np.array([[0.3], [-0.5], [0.9]]), np.array([[0.0], [0.4], [-0.7]])
    query = query_t * along + query_s * across
    options = {"score": Kernel(kernels.BY_NAME[name], 2.3), "degree": 1}
    assert_close(kernel_regression(query, t * along, 5 * t + 1, **options), 5 * query_t + 1)
    repeated = np.repeat(t, 2, 1)  # the same input twice
    query = np.repeat(query_t, 2, 1)
    assert_close(kernel_regression(query, repeated, 5 * t + 1, **options), 5 * query_t + 1)
    gradient = jax.grad(lambda q: kernel_regression(q, repeated, t**2, **options).sum())(query)
    assert np.isfinite(gradient).all()


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


@each_kernel
@each_degree
def test_gradient_in_the_query(row, degree):
    """A prediction depends on its own query alone: all are moved at once."""
    options = {"score": kernel(row, 2.7), "degree": degree}
    along = normal(7, 3, seed=1)

    def moved(query):
        return np.asarray(kernel_regression(query, KEY, VALUE, **options) * along).sum(1)

    gradient = jax.grad(
        lambda query: jnp.sum(kernel_regression(query, KEY, VALUE, **options) * along)
    )(jnp.asarray(QUERY))
    assert np.abs(gradient).max() > 0 or (row.name, degree) == ("boxcar", 0)
    for feature in range(2):
        unit, step = np.eye(2)[feature], 1e-4
        near = moved(QUERY + step * unit) - moved(QUERY - step * unit)
        far = moved(QUERY + 2 * step * unit) - moved(QUERY - 2 * step * unit)
        assert_close(gradient[:, feature], (8 * near - far) / (12 * step), tolerance=1e-8)


@each_kernel
@each_degree
def test_gradient_is_finite_at_a_key_and_far_away(row, degree):
    query = jnp.concatenate([KEY[:3], KEY[:1] + 50.0])
    options = {"score": kernel(row, 1.3), "degree": degree}
    gradient = jax.grad(lambda q: kernel_regression(q, KEY, VALUE, **options).sum())(query)
    assert np.isfinite(gradient).all()


@each_degree
@pytest.mark.parametrize("name", ["gaussian", "laplace", "triweight"])
@pytest.mark.parametrize("bandwidth", [2.3, [1.9, 2.6]])
def test_gradient_of_leave_one_out_in_the_bandwidth(name, bandwidth, degree):
    @jax.jit
    def loss(bandwidth):
        score = Kernel(kernels.BY_NAME[name], bandwidth)
        return regression.leave_one_out_error(KEY, VALUE, score=score, degree=degree)

    bandwidth = jnp.asarray(bandwidth)
    gradient = jax.grad(loss)(bandwidth)
    assert np.abs(gradient).min() > 1e-4
    assert_close(gradient, differences(loss, bandwidth), tolerance=1e-8)


@each_degree
def test_gradient_of_leave_one_out_in_alpha(degree):
    @jax.jit
    def loss(alpha):
        options = {"score": Kernel(bandwidth=1.2), "normalizer": Entmax(alpha), "degree": degree}
        return regression.leave_one_out_error(KEY, VALUE, **options)

    alpha = jnp.asarray(1.37)
    gradient = jax.grad(loss)(alpha)
    assert abs(gradient) > 1e-4
    assert_close(gradient, differences(loss, alpha), tolerance=1e-8)


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
    assert_close(freedom(1e-3, 0), 13.0, tolerance=1e-7)
    if name == "biweight":
        assert_close(freedom(1e-3, 1), 13.0)
    assert 1.5 < freedom(1.0, 0) < 12


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
    for bandwidth in bandwidths:
        options = {"score": Kernel(kernels.biweight, bandwidth), "degree": degree}
        criterion = regression.aicc(KEY, VALUE, **options)
        hat = np.asarray(smoother(KEY, KEY, **options))
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
    assert_close(regression.r_squared(value, predicted), expected)
    assert_close(regression.r_squared(value, 3 * value - 7), [1.0, 1.0])
    assert_close(regression.r_squared(value, np.full((13, 2), 0.1)), [0.0, 0.0])


def test_effective_neighbours_and_entropy():
    weights = np.random.default_rng(1).dirichlet(np.ones(11), 5)
    uniform, one_hot = np.full((1, 11), 1 / 11), np.eye(11)[2:3]
    table = np.concatenate([weights, uniform, one_hot, np.zeros((1, 11))])
    neighbours, entropy = regression.effective_neighbours(table), regression.entropy(table)
    assert_close(neighbours, [*(1 / (weights**2).sum(1)), 11.0, 1.0, 0.0])
    assert_close(entropy, [*-(weights * np.log(weights)).sum(1), math.log(11), 0.0, 0.0])
    assert_close(regression.effective_neighbours(3 * weights), neighbours[:5])
    gradient = jax.grad(lambda w: regression.entropy(w).sum())(jnp.asarray(table))
    assert np.isfinite(gradient).all()


@each_degree
def test_confidence_band_is_the_formula(degree):
    options = {"score": Kernel(bandwidth=1.4), "degree": degree}
    hat, rows = (np.asarray(smoother(q, KEY, **options)) for q in (KEY, QUERY))
    residual = VALUE - hat @ VALUE
    freedom = np.trace((np.eye(13) - hat).T @ (np.eye(13) - hat))
    sigma = np.sqrt((residual**2).sum(0) / freedom)
    half = 1.6448536269514722 * np.linalg.norm(rows, axis=1)[:, None] * sigma
    low, high = regression.confidence_band(QUERY, KEY, VALUE, level=0.9, **options)
    assert_close(low, rows @ VALUE - half, tolerance=1e-10)
    assert_close(high, rows @ VALUE + half, tolerance=1e-10)


@each_degree
def test_confidence_band_covers_at_the_nominal_rate(degree):
    """307 noisy copies of one smooth curve are 307 outputs of one fit."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 5, (101, 1)), 0)
    query = np.linspace(0.5, 4.5, 29)[:, None]
    y = np.sin(x) + rng.normal(0, 0.4, (101, 307))
    options = {"score": Kernel(bandwidth=0.2), "degree": degree}
    mean = kernel_regression(query, x, np.sin(x), **options)
    assert np.abs(mean - np.sin(query)).max() < 0.06
    width = 0
    for level in (0.6, 0.8, 0.95):
        low, high = regression.confidence_band(query, x, y, level=level, **options)
        for curve, slack in [(mean, 0.015), (np.sin(query), 0.03)]:
            covered = np.mean((low <= curve) & (curve <= high))
            assert abs(covered - level) < slack
        assert np.all(high - low > width)
        width = high - low


def test_confidence_band_is_nan_without_freedom():
    for score in (Kernel(bandwidth=1e-3), Kernel(kernels.boxcar, 1e-3)):
        low, high = regression.confidence_band(QUERY, KEY, VALUE, score=score)
        assert np.isnan(low).all()
        assert np.isnan(high).all()


@each_degree
def test_outputs_do_not_know_each_other(degree):
    options = {"score": Kernel(bandwidth=1.2), "degree": degree}

    def numbers(value):
        band = regression.confidence_band(QUERY, KEY, value, **options)
        columns = [kernel_regression(QUERY, KEY, value, **options), *band]
        r_squared = regression.r_squared(value, leave_one_out(KEY, value, **options))
        means = [f(KEY, value, **options) for f in diagnostics.CRITERIA.values()]
        return np.concatenate([*columns, r_squared[None]]), np.array(means)

    columns, means = numbers(VALUE)
    alone = [numbers(VALUE[:, i : i + 1]) for i in range(3)]
    assert_close(columns, np.concatenate([c for c, _ in alone], axis=1))
    assert_close(means, np.mean([m for _, m in alone], axis=0))


# The search


def objective_with_valleys(spacing, places):
    """Σ over features of a bowl with cosine valleys in log bandwidth; least, 0, at `places`."""

    def criterion(key, value, *, score, **options):
        t = jnp.log(score.bandwidth) - jnp.asarray(places)
        return jnp.sum(1 - jnp.cos(2 * jnp.pi * t / spacing) + 0.1 * t**2)

    return criterion


@pytest.mark.parametrize("place", [-1.83, -0.41, 1.27])
def test_search_finds_the_deepest_of_many_valleys(place, monkeypatch):
    monkeypatch.setitem(diagnostics.CRITERIA, "loo", objective_with_valleys(0.9, place))
    found = regression.search_bandwidth(KEY, VALUE)
    assert_close(found.bandwidth, math.exp(place), tolerance=1e-6)
    assert_close(found.value, 0.0, tolerance=1e-9)


def test_search_per_feature_finds_the_deepest_of_many_valleys(monkeypatch):
    places = np.array([-1.31, 0.77])
    monkeypatch.setitem(diagnostics.CRITERIA, "loo", objective_with_valleys(2.1, places))
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
    data = curves.textbook(30)
    grid = np.geomspace(1e-3, 50, 4001)
    errors = leave_one_out_by_hand(data.x, data.y, grid)
    inner = errors[1:-1]
    valleys = np.flatnonzero((inner < errors[:-2]) & (inner < errors[2:])) + 1
    assert len(valleys) >= 2
    best = valleys[errors[valleys].argmin()]
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
        {"kernel": kernels.epanechnikov, "outside": "nan"},
        {"kernel": kernels.epanechnikov, "criterion": "aicc"},
        {"normalizer": Sparsemax()},
        {"normalizer": Entmax(1.5), "criterion": "aicc"},
        {"degree": 1},
        {"degree": 1, "criterion": "aicc", "kernel": kernels.tricube},
    ],
    ids=lambda options: "-".join(str(getattr(v, "__name__", v)) for v in options.values()),
)
def test_search_with_options(options):
    data = curves.textbook(29, seed=1)
    found = regression.search_bandwidth(data.x, data.y, **options)
    rest = dict(options)
    criterion = diagnostics.CRITERIA[rest.pop("criterion", "loo")]
    chosen = rest.pop("kernel", kernels.gaussian)

    @jax.jit
    def at(bandwidth):
        return criterion(data.x, data.y, score=Kernel(chosen, bandwidth), **rest)

    np.testing.assert_allclose(at(found.bandwidth), found.value, rtol=1e-9)
    everywhere = np.asarray(jax.lax.map(at, jnp.geomspace(0.01, 50, 307)))
    assert np.isfinite(found.value)
    assert found.value <= np.nanmin(everywhere) + 0.02 * abs(np.nanmin(everywhere))


@pytest.mark.parametrize("outside", OUTSIDE)
def test_search_per_feature_of_a_kernel_with_steps(outside):
    """The unhelpful second input gets the wider bandwidth."""
    y = np.sin(2 * KEY[:, :1])
    options = {"kernel": kernels.boxcar, "outside": outside}
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


def test_search_prefers_the_mean_of_pure_noise_and_the_line_of_a_line():
    x = np.linspace(0, 1, 23)[:, None]
    noise = normal(23, 1, seed=4)
    for degree, y in [(0, noise), (1, x + 0.01 * noise)]:
        found = regression.search_bandwidth(x, y, degree=degree)
        assert found.bandwidth > 1


def test_search_does_not_care_about_units():
    found = regression.search_bandwidth(KEY, VALUE, per_feature=True)
    scaled = regression.search_bandwidth(KEY * [1e3, 1e-4] + [7, 0], 5 * VALUE, per_feature=True)
    np.testing.assert_allclose(scaled.bandwidth, found.bandwidth * [1e3, 1e-4], rtol=1e-3)
    np.testing.assert_allclose(scaled.value, 25 * found.value, rtol=1e-6)


def test_search_in_float32_and_of_integers():
    data = curves.textbook(50)
    x, y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y, jnp.float32)
    found = regression.search_bandwidth(x, y)
    assert found.bandwidth.dtype == jnp.float32
    np.testing.assert_allclose(found.bandwidth, 0.20287538, rtol=2e-2)
    years = regression.search_bandwidth(np.arange(23)[:, None], np.arange(23)[:, None] % 7)
    assert np.isfinite(years.value)


# Precision


@each_kernel
def test_a_hundred_bandwidths_away_in_float32(row):
    key = jnp.array([[0.0], [1.0], [2.5]], jnp.float32)
    value = jnp.array([[3.0, -1.0], [5.0, 2.0], [11.0, 4.0]], jnp.float32)
    query = jnp.array([[3.5], [-1.0]], jnp.float32)

    def predict(query):
        return kernel_regression(query, key, value, score=kernel(row, 0.01))

    predicted = predict(query)
    assert predicted.dtype == jnp.float32
    assert_close(predicted, [[11.0, 4.0], [3.0, -1.0]])
    assert np.isfinite(jax.grad(lambda query: predict(query).sum())(query)).all()


def test_a_hundred_bandwidths_away_gaussian_attention_in_float32():
    key, value = jnp.float32([[0.0], [1.0], [2.5]]), jnp.float32([[3.0], [5.0], [11.0]])

    def predict(query, bandwidth):
        return attn_jax.attention(query, key, value, score=Kernel(bandwidth=bandwidth))[0, 0]

    query, bandwidth = jnp.float32([[3.5]]), jnp.float32(0.01)
    assert_close(predict(query, bandwidth), 11.0)
    for gradient in jax.grad(predict, (0, 1))(query, bandwidth):
        assert np.isfinite(gradient).all()


@each_kernel
@each_degree
def test_float32_far_from_the_origin(row, degree):
    """Multiples of 1/32 keep every bit when 2^15 is added."""
    query, key = (jnp.asarray(np.round(32 * a) / 32, jnp.float32) for a in (QUERY, KEY))
    options = {"score": kernel(row, 2.75), "degree": degree}
    value = jnp.asarray(VALUE, jnp.float32)
    here = kernel_regression(query, key, value, **options)
    there = kernel_regression(query + 2.0**15, key - 0 + 2.0**15, value, **options)
    assert_close(there, here, tolerance=1e-5)
    exact = kernel_regression(*(np.asarray(a, np.float64) for a in (query, key, value)), **options)
    assert_close(there, exact, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@each_degree
def test_dtype_of_the_prediction_is_the_value_s(dtype, degree):
    arrays = [jnp.asarray(a, dtype) for a in (QUERY, KEY, VALUE)]
    got = kernel_regression(*arrays, score=Kernel(bandwidth=1.5), degree=degree)
    assert got.dtype == dtype
    exact = [np.asarray(a, np.float64) for a in arrays]
    expected = kernel_regression(*exact, score=Kernel(bandwidth=1.5), degree=degree)
    assert_close(got, expected, tolerance={"float32": 1e-5}.get(dtype))


def test_integers_are_numbers():
    got = kernel_regression(np.array([[1]]), np.array([[0], [2]]), np.array([[1], [4]]))
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
