"""Many queries and keys: the same numbers and derivatives, a few queries at a time."""

import gc
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import (
    Additive,
    Entmax,
    Kernel,
    Sigmoid,
    Softmax,
    Sparsemax,
    attention,
    flax_attention_fn,
    kernels,
    masks,
    regression,
    slots,
)
from attn_jax.nn import NadarayaWatson
from attn_jax.normalizers import softmax
from attn_jax.regression import chunks, diagnostics, kernel_regression, leave_one_out, search
from tests import data_sets
from tests.tolerance import assert_close, assert_trees_close

OUTSIDE = get_args(regression.Outside)
RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = RNG.normal(size=(11, 2)), RNG.normal(size=(13, 2)), RNG.normal(size=(13, 3))
ALONG = RNG.normal(size=(11, 3))
ROWS = np.array([7, 2, 12, 2, 0])


@pytest.fixture
def both_ways(monkeypatch):
    """Call a function twice: by chunks of three queries, the last one not full, and at once."""

    def call(function):
        results = []
        for whole in (1, 2**20):
            monkeypatch.setattr(chunks, "WHOLE", whole)
            monkeypatch.setattr(chunks, "CHUNK", 3 * 13)
            slots._run.clear_cache()  # which knows shapes, not these limits
            results.append(function())
        return results

    yield call
    slots._run.clear_cache()


def odd_pairs(i, j):
    """No key for query 4; key 5 for nobody."""
    return ((i + j) % 3 != 0) & (i != 4) & (j != 5)


CASES = {  # each kernel, mask, normalizer and degree in some of them
    "softmax function": {"normalizer": softmax, "score": Kernel(bandwidth=np.array([0.7, 1.9]))},
    "masked compact": {"mask": odd_pairs, "score": Kernel(kernels.boxcar, 0.8)},
    "sink": {"normalizer": Softmax(3.0), "score": Kernel(kernels.biweight, 0.6)},
    "sparsemax": {"normalizer": Sparsemax(), "mask": masks.Causal(1)},
    "entmax": {"normalizer": Entmax(np.array(1.4)), "score": Kernel(kernels.tricube, 0.9)},
    "sigmoid": {"normalizer": Sigmoid(-0.4)},
    "lines": {"degree": 1},
    "compact lines": {"degree": 1, "score": Kernel(kernels.epanechnikov, 0.9)},
    "masked lines": {"degree": 1, "mask": odd_pairs, "normalizer": Sparsemax()},
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_are_the_smoother_and_its_derivatives(name, both_ways):
    options = {"score": Kernel(bandwidth=0.7)} | CASES[name]
    kernel, bandwidth = options["score"].kernel, np.asarray(options.pop("score").bandwidth)

    def total(query, key, value, bandwidth):
        score = Kernel(kernel, bandwidth)
        predicted = kernel_regression(query, key, value, score=score, **options)
        return jnp.sum(predicted * ALONG), predicted

    def numbers():
        derivatives = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))
        return derivatives(QUERY, KEY, VALUE, bandwidth)

    assert_trees_close(*both_ways(numbers))


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("degree", [0, 1])
def test_outside_in_chunks(outside, degree, both_ways):
    """Queries 2, 5, 9 and 10 are far from all keys, 0 has a tie; the others are not disturbed."""
    key = KEY.copy()
    key[1:3] = [[6.0, 5.0], [6.0, 7.0]]
    query = QUERY.copy()
    query[[0, 2, 5, 9, 10]] = [[6.0, 6.0], [9, 9], [-30, 1], [1e200, 0], [3, -40]]
    score = Kernel(kernels.epanechnikov, 0.9)
    options = {"score": score, "outside": outside, "degree": degree}

    def numbers():
        def total(value):
            predicted = kernel_regression(query, key, value, **options)
            return jnp.sum(predicted * ALONG), predicted

        return jax.jit(jax.grad(total, has_aux=True))(VALUE)

    (got_slope, got), (expected_slope, expected) = both_ways(numbers)
    assert_close(got, expected)
    if outside != "nan":  # whose derivative is NaN or 0
        assert_close(got_slope, expected_slope)
    answers = {"nan": np.nan, "zero": 0.0, "mean": VALUE.mean(0), "nearest": VALUE[1:3].mean(0)}
    assert_close(got[0], np.broadcast_to(answers[outside], 3))


def test_higher_derivatives_and_vmap_in_chunks(both_ways):
    along = np.array([0.3, -0.7])

    def total(bandwidth, value):
        score = Kernel(kernels.triweight, bandwidth)
        return jnp.sum(kernel_regression(QUERY, KEY, value, score=score)[:, 0] ** 2)

    def numbers():
        @jax.jit
        def moved_and_each(bandwidth, values):
            def slope(bandwidth):
                return jax.grad(total)(bandwidth, values[0])

            moved = jax.jvp(slope, (bandwidth,), (along,))
            return moved, jax.vmap(jax.grad(total), (None, 0))(bandwidth, values)

        return moved_and_each(np.array([0.9, 1.3]), np.stack([VALUE, -2 * VALUE]))

    assert_trees_close(*both_ways(numbers))


# NaN


@pytest.mark.parametrize("options", [{}, {"normalizer": Sparsemax()}, {"degree": 1}], ids=str)
def test_nan_shows_where_it_is_allowed_and_only_there(options, both_ways):
    """Key 5 is for nobody; key 8 is for every third query less (0, 3, …) and not for query 4."""
    key, value, target = KEY.copy(), VALUE.copy(), VALUE.copy()
    key[5], value[5] = np.nan, np.nan
    target[8] = np.nan

    def numbers():
        @jax.jit
        def predict(key, value):
            return kernel_regression(QUERY, key, value, mask=odd_pairs, **options)

        asked = (key, value), (KEY, VALUE), (KEY, target)
        return jax.device_get([predict(*arrays) for arrays in asked])

    chunked, whole = both_ways(numbers)
    allowed = np.asarray(masks.dense(odd_pairs, 11, 13))[:, 8]
    for hidden, _, shown in (chunked, whole):
        assert_close(hidden, whole[1])
        assert np.isnan(shown[allowed]).all()


def test_far_is_not_outside(both_ways):
    """A thousand bandwidths away exp underflows, which is not what `outside` is about."""
    options = {"score": Kernel(bandwidth=1e-3), "outside": "nan"}
    got, expected = both_ways(lambda: kernel_regression(QUERY, KEY, VALUE, **options))
    assert np.isfinite(expected).all()
    assert_close(got, expected)
    with_sink = options | {"normalizer": Softmax(0.0)}
    for got in both_ways(lambda: kernel_regression(QUERY + 9, KEY, VALUE, **with_sink)):
        assert_close(got, np.zeros((11, 3)))


# Rows


def causal(i, j):
    return j <= i + 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": causal, "score": Kernel(kernels.boxcar, 0.9)},
        {"mask": masks.Prefix(9) & masks.Causal(3), "normalizer": Entmax(1.5)},
        {"degree": 1},
    ],
    ids=["softmax", "compact", "entmax", "lines"],
)
def test_leave_one_out_of_some_rows(options, both_ways):
    every = np.asarray(jax.jit(lambda: leave_one_out(KEY, VALUE, **options))())

    def numbers():
        @jax.jit
        def of_rows(rows):
            error = regression.leave_one_out_error(KEY, VALUE, rows=rows, **options)
            return leave_one_out(KEY, VALUE, rows=rows, **options), error

        return of_rows(ROWS)

    for got, error in both_ways(numbers):
        assert_close(got, every[ROWS])
        assert_close(error, np.mean((VALUE[ROWS] - every[ROWS]) ** 2))


def test_gradient_of_the_error_of_some_rows(both_ways):
    def slopes():
        def error(bandwidth, rows):
            score = Kernel(bandwidth=bandwidth)
            return regression.leave_one_out_error(KEY, VALUE, rows=rows, score=score)

        slope = jax.jit(jax.grad(error))
        parts = [slope(1.3, np.array(2 * rows)) for rows in ([0, 7, 3], [1, 2, 12])]
        return np.mean(parts), slope(1.3, np.array([2, 12, 0, 3, 1, 7]))

    chunked, whole = both_ways(slopes)
    assert_trees_close(chunked, whole)
    assert_close(whole[0], whole[1])


# Diagnostics


@pytest.mark.parametrize("options", [{}, {"degree": 1, "mask": causal}], ids=["constant", "lines"])
def test_diagnostics_in_chunks_and_of_rows(options, both_ways):
    def numbers(rows=None):
        arguments, of_rows = (KEY, VALUE), {"rows": rows, "score": Kernel(bandwidth=0.8)} | options
        functions = ("aicc", "noise_variance", "leave_one_out_error")

        @jax.jit
        def all_of_them():
            results = [getattr(regression, name)(*arguments, **of_rows) for name in functions]
            results.append(regression.degrees_of_freedom(KEY, **of_rows))
            return [*results, *regression.confidence_band(QUERY, *arguments, **of_rows)]

        return all_of_them()

    chunked, whole = both_ways(numbers)
    assert_trees_close(chunked, whole)
    if not options:
        assert_trees_close(numbers(np.random.default_rng(0).permutation(13)), whole)


def test_diagnostics_are_estimated_from_some_rows():
    score = Kernel(bandwidth=0.8)

    @jax.jit
    def estimates():
        options = {"rows": ROWS, "score": score}
        variance = regression.noise_variance(KEY, VALUE, **options)
        how = {"score": score, "variance": variance}
        return {
            "freedom": regression.degrees_of_freedom(KEY, **options),
            "variance": variance,
            "criterion": regression.aicc(KEY, VALUE, **options),
            "band": regression.confidence_band(QUERY, KEY, VALUE, **options),
            "band of a variance": regression.confidence_band(QUERY, KEY, VALUE, **how),
            "hat": regression.smoother(KEY, KEY, score=score),
        }

    got = jax.device_get(estimates())
    hat = got["hat"]
    residual = (VALUE - hat @ VALUE)[ROWS]
    trace, squares = 13 * hat[ROWS, ROWS].mean(), 13 * (hat[ROWS] ** 2).sum(1).mean()
    variance = 13 * (residual**2).mean(0) / (13 - 2 * trace + squares)
    assert_close(got["freedom"], trace)
    assert_close(got["variance"], variance)
    criterion = np.log((residual**2).mean(0)).mean()
    criterion += (1 + trace / 13) / (1 - (trace + 2) / 13)
    assert_close(got["criterion"], criterion)
    assert_trees_close(got["band"], got["band of a variance"])


def test_statistics_per_query_in_chunks(both_ways):
    score, mask = Kernel(kernels.tricube, 0.9), odd_pairs

    def numbers():
        options = {"score": score, "normalizer": Sparsemax(), "mask": mask}
        functions = (
            regression.effective_neighbours,
            regression.entropy,
            lambda weights: {"some": weights[:, 3:5], "sum": weights.sum(1)},
        )

        @jax.jit
        def of_each():
            return [regression.per_query(each, QUERY, KEY, **options) for each in functions]

        return of_each()

    assert_trees_close(*both_ways(numbers))


def test_module_passes_rows(both_ways):
    model = NadarayaWatson(np.array([0.9, 1.4]), kernel=kernels.biweight, outside="mean")
    options = {"score": model.score, "outside": "mean", "rows": ROWS}

    def numbers():
        names = ("leave_one_out", "leave_one_out_error", "aicc", "noise_variance")
        for name in names:
            got = getattr(model, name)(KEY, VALUE, rows=ROWS)
            assert_close(got, getattr(regression, name)(KEY, VALUE, **options))
        freedom = model.degrees_of_freedom(KEY, rows=ROWS)
        assert_close(freedom, regression.degrees_of_freedom(KEY, **options))
        arguments = (QUERY, KEY, VALUE)
        band = model.confidence_band(*arguments, level=0.7, rows=ROWS)
        assert_trees_close(band, regression.confidence_band(*arguments, level=0.7, **options))
        return model.effective_neighbours(QUERY, KEY), model.entropy(QUERY, KEY)

    assert_trees_close(*both_ways(numbers))


# The search with a grid at some of the rows


GRID = np.geomspace(0.02, 3, 101)


def errors_on(grid, key, value, *, kernel=kernels.gaussian, **options):
    """The leave-one-out error at each bandwidth."""

    def error(bandwidth):
        score = Kernel(kernel, bandwidth)
        return regression.leave_one_out_error(key, value, score=score, **options)

    return np.asarray(jax.jit(lambda grid: jax.lax.map(error, grid))(grid))


@pytest.fixture
def of_large_data(monkeypatch):
    """Every search is one of large data."""
    monkeypatch.setattr(search, "FEW_PAIRS", 1)


@pytest.mark.usefixtures("of_large_data")
def test_search_of_large_data_finds_the_minimum_at_all_rows():
    data, evaluated = data_sets.textbook(200), []
    found = regression.search_bandwidth(data.x, data.y, on_value=lambda *at: evaluated.append(at))
    there, *errors = errors_on(np.append(found.bandwidth, GRID), data.x, data.y)
    assert_close(found.value, there)
    assert found.value <= min(errors) + 1e-9
    assert found.value in [value for _, value in evaluated]
    assert 40 < len(evaluated) < 160


@pytest.mark.usefixtures("of_large_data")
def test_search_of_large_data_of_a_constant_output():
    """All bandwidths fit perfectly: the widest one."""
    key = np.random.default_rng(1).normal(size=(53, 1))
    found = regression.search_bandwidth(key, np.zeros((53, 1)), criterion="aicc")
    assert found.bandwidth > 10
    assert found.value == -np.inf


@pytest.mark.usefixtures("of_large_data")
@pytest.mark.parametrize("kernel", [kernels.gaussian, kernels.boxcar])
def test_search_of_large_data_per_feature(kernel):
    """The input that says nothing gets the wider bandwidth."""
    key = np.random.default_rng(1).normal(size=(101, 2))
    value = np.sin(2 * key[:, :1])
    found = regression.search_bandwidth(key, value, kernel=kernel, per_feature=True)
    (there,) = errors_on(found.bandwidth[None], key, value, kernel=kernel)
    assert_close(found.value, there)
    assert found.bandwidth[0] < found.bandwidth[1] / 2


def objective_with_minima(places):
    """Σ over features of a parabola and a cosine in log bandwidth; least, 0, at `places`."""

    def criterion(key, value, *, score, rows=None, **options):
        t = jnp.log(score.bandwidth) - jnp.asarray(places)
        return jnp.sum(1 - jnp.cos(2 * jnp.pi * t / 2.1) + 0.1 * t**2)

    return criterion


@pytest.mark.usefixtures("of_large_data")
@pytest.mark.parametrize("places", [-1.83, [-1.31, 0.77]])
def test_search_of_large_data_finds_the_lowest_of_many_minima(places, monkeypatch):
    monkeypatch.setitem(diagnostics.CRITERIA, "loo", objective_with_minima(places))
    monkeypatch.setattr(search, "GRID_ROWS", 5)
    found = regression.search_bandwidth(KEY, VALUE, per_feature=np.ndim(places) == 1)
    assert_close(np.log(found.bandwidth), places, tolerance=1e-2)


def test_search_of_a_criterion_at_some_rows():
    data = data_sets.textbook(50)
    rows = np.arange(0, 50, 3)
    found = regression.search_bandwidth(data.x, data.y, rows=rows)
    errors = errors_on(GRID, data.x, data.y, rows=rows)
    assert found.value <= errors.min()
    assert abs(np.log(found.bandwidth / GRID[errors.argmin()])) < 0.05
    model = NadarayaWatson(1.0)
    model.search(data.x, data.y, rows=rows)
    assert_close(model.bandwidth, found.bandwidth)


# Memory


@pytest.mark.parametrize(
    "options",
    [{}, {"score": Kernel(kernels.tricube)}, {"normalizer": Entmax(1.5)}, {"degree": 1}],
    ids=["softmax", "compact", "entmax", "lines"],
)
def test_memory_grows_with_the_keys_not_with_the_pairs(options):
    """Of the gradient, compiled for 16,384 x 16,384 pairs: one array of them takes 2,147 MB."""

    def total(query, key, value):
        return jnp.sum(kernel_regression(query, key, value, **options))

    shapes = [jax.ShapeDtypeStruct((2**14, e), "float64") for e in (2, 2, 1)]
    compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 200e6


FEW_ROWS, PICTURE = 1000, 784


def of_many_features(name):
    """Predictions of few rows with many features, whose offsets are 784 times the pairs."""
    score, additive = Kernel(bandwidth=20.0), Additive(jnp.ones(PICTURE, "float32"))
    model = NadarayaWatson(20.0)
    return {
        "call": lambda x, y: model(x, x, y),
        "leave-one-out": lambda x, y: model.leave_one_out_error(x, y),
        "criterion": lambda x, y: model.aicc(x, y),
        "sparse": lambda x, y: kernel_regression(x, x, y, score=score, normalizer=Sparsemax()),
        "neighbours": lambda x, y: model.effective_neighbours(x, x),
        "attention": lambda x, y: attention(x, x, y, score=score),
        "additive": lambda x, y: attention(x, x, y, score=additive),
        "heads": lambda *xy: flax_attention_fn(score=additive)(
            *(each[None, :, None] for each in (xy[0], *xy))
        ),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "call",
        "leave-one-out",
        "criterion",
        "sparse",
        "neighbours",
        "attention",
        "additive",
        "heads",
    ],
)
def test_memory_of_few_rows_with_many_features(name):
    """One array of all offsets takes 3,136 MB."""
    function = of_many_features(name)
    shapes = [jax.ShapeDtypeStruct((FEW_ROWS, e), "float32") for e in (PICTURE, 1)]

    def total(*arrays):
        result = function(*arrays)
        return jnp.sum(result), result

    compiled = jax.jit(jax.grad(total, has_aux=True)).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 150e6


@pytest.mark.parametrize(
    "options",
    [{"mask": causal}, {"degree": 1}, {"normalizer": Entmax(1.5)}],
    ids=["mask", "lines", "entmax"],
)
def test_no_tracer_leaks_from_rows(options, both_ways):
    """Tracing alone is watched: the rows are an argument, not something that a mask closes over."""

    def of_rows(rows):
        return leave_one_out(KEY, VALUE, rows=rows, **options)

    def trace():
        gc.freeze()  # what other tests left is not looked through
        with jax.checking_leaks():
            jax.jit(of_rows).trace(ROWS)
        gc.unfreeze()

    both_ways(trace)


# The caller's mistakes

NARROW = masks.Dense(np.ones((11, 12), bool))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: leave_one_out(KEY, VALUE, rows=[1.0]), "rows must be one integer for each row"),
        (lambda: leave_one_out(KEY, VALUE, rows=3), "rows must be one integer"),
        (lambda: leave_one_out(KEY, VALUE, rows=[13]), "rows must be indices of the 13 rows"),
        (lambda: regression.aicc(KEY, VALUE, rows=[-1]), "rows must be indices"),
        (lambda: regression.search_bandwidth(KEY, VALUE, rows=[14]), "rows must be indices"),
        (
            lambda: regression.confidence_band(QUERY, KEY, VALUE, variance=np.ones(2)),
            "variance must have one entry for each output",
        ),
        (lambda: leave_one_out(KEY, VALUE, rows=[1], mask=NARROW), "array must have one entry"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_regression(QUERY[:, :1], KEY, VALUE), r"query \(11, 1\), key \(13, 2\)"),
        (lambda: kernel_regression(QUERY, KEY, VALUE[1:]), r"key \(13, 2\), value \(12, 3\)"),
        (lambda: kernel_regression(QUERY, KEY, VALUE, degree=2), "degree must be 0 or 1. Got 2"),
        (lambda: kernel_regression(QUERY, KEY, VALUE, mask=NARROW), r"array \(11, 12\), scores"),
    ],
)
def test_bad_input_is_named_by_its_whole_shape(call, message, monkeypatch):
    monkeypatch.setattr(chunks, "WHOLE", 1)
    with pytest.raises(ValueError, match=message):
        call()
