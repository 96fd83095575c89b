"""Inputs of any container and dtype: what they hold is subtracted before it is rounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from attn_jax import (
    Kernel,
    Sigmoid,
    Softmax,
    attention,
    attention_weights,
    masks,
    regression,
    softmax,
)
from attn_jax.nn import NadarayaWatson
from tests.members import DENSE, STREAMING
from tests.tolerance import assert_close

pytestmark = pytest.mark.usefixtures("without_shape_hook")

STEPS = np.array([0, 1, 2, 3, 5, 8, 13])
VALUE = np.array([[0.3], [1.0], [2.5], [3.0], [1.5], [5.0], [4.0]])
SECONDS = 1_700_000_000 + 60 * STEPS


def expected(left_out=False):
    """Nadaraya and Watson's formula, of a bandwidth of one step."""
    weights = np.exp(-np.square(STEPS[:, None] - STEPS[None, :]) / 2)
    if left_out:
        weights[np.diag_indices(len(STEPS))] = 0
    return weights @ VALUE / weights.sum(axis=1, keepdims=True)


@pytest.fixture(params=[True, False], ids=["float64", "float32"])
def tolerance(request):
    """JAX with 64 bits and with 32, and how close its numbers have to be."""
    with jax.enable_x64(request.param):
        yield 1e-12 if request.param else 2e-5


# name: (inputs [n, 1], a step in the bandwidth's unit)
PLACES = {
    "int64": (SECONDS[:, None], 60.0),
    "int32": (SECONDS[:, None].astype("int32"), 60.0),
    "uint64": (SECONDS[:, None].astype("uint64"), 60.0),
    "beyond 32 bits": (3_000_000_000 + STEPS[:, None], 1.0),
    "nanoseconds": (10**9 * SECONDS[:, None], 6e10),
    "float64": (SECONDS[:, None].astype("float64"), 60.0),
    "big-endian": (SECONDS[:, None].astype(">f8"), 60.0),
    "long double": (SECONDS[:, None].astype("longdouble"), 60.0),
    "list": (SECONDS[:, None].tolist(), 60.0),
    "tuple": (tuple(map(tuple, SECONDS[:, None].tolist())), 60.0),
    "list of arrays": ([jnp.asarray(each, "int32") for each in SECONDS[:, None]], 60.0),
    "jax": (jnp.asarray(SECONDS[:, None], "int32"), 60.0),
    "data frame": (pd.DataFrame({"t": SECONDS}), 60.0),
    "objects": (pd.DataFrame({"t": pd.Series(SECONDS, dtype=object)}), 60.0),
    "dates": (SECONDS[:, None].astype("datetime64[s]"), 60.0),
    "dates in nanoseconds": (SECONDS[:, None].astype("datetime64[s]").astype("M8[ns]"), 60.0),
    "dates in minutes": ((SECONDS[:, None] // 60).astype("datetime64[m]"), 60.0),
    "durations": (SECONDS[:, None].astype("timedelta64[s]"), 60.0),
    "data frame of dates": (pd.DataFrame({"t": pd.to_datetime(SECONDS, unit="s")}), 60.0),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_subtracted_before_they_are_rounded(name, tolerance):
    place, bandwidth = PLACES[name]
    score = Kernel(bandwidth=bandwidth)
    got = regression.kernel_regression(place, place, VALUE, score=score)
    assert_close(got, expected(), tolerance=tolerance)
    got = NadarayaWatson(bandwidth).leave_one_out(place, VALUE)
    assert_close(got, expected(left_out=True), tolerance=tolerance)


STATISTICS = {
    "line": lambda model, x: NadarayaWatson(model.bandwidth, degree=1)(x, x, VALUE),
    "some rows": lambda model, x: model.leave_one_out(x, VALUE, rows=[5, 0]),
    "aicc": lambda model, x: model.aicc(x, VALUE),
    "freedom": lambda model, x: model.degrees_of_freedom(x),
    "band": lambda model, x: model.confidence_band(x, x, VALUE)[0],
    "weights": lambda model, x: model.weights(x, x),
    "smoother": lambda model, x: model.smoother(x, x),
    "entropy": lambda model, x: model.entropy(x, x),
    "far": lambda model, x: NadarayaWatson(1e-3, outside="nearest")(x, x, VALUE),
    "search": lambda model, x: jnp.log(model.search(x, VALUE).bandwidth / 60)[None],
}


@pytest.mark.parametrize("name", ["int64", "float64", "dates in nanoseconds"])
def test_every_statistic_knows_the_same_places(name, tolerance):
    """As of small numbers, which nothing rounds."""
    place, near = PLACES[name][0], 60.0 * STEPS[:, None]
    for statistic in STATISTICS.values():
        got, wanted = (statistic(NadarayaWatson(60.0), each) for each in (place, near))
        assert_close(got, wanted, tolerance=20 * tolerance)


@pytest.mark.parametrize("implementation", [DENSE, STREAMING], ids=str)
def test_attention_subtracts_integers(implementation):
    """Also in the derivative that there is, in the bandwidth."""
    seconds = jnp.asarray(SECONDS[:, None], "int32")

    def total(bandwidth, places):
        score = Kernel(bandwidth=bandwidth)
        return jnp.sum(jnp.sin(implementation.attention(places, places, VALUE, score=score)))

    near = jnp.asarray(60.0 * STEPS[:, None])
    got, wanted = (jax.value_and_grad(total)(60.0, each) for each in (seconds, near))
    assert_close(jnp.stack(got), jnp.stack(wanted))


def test_the_largest_differences_of_integers_do_not_wrap_round():
    ends = jnp.asarray([[-(2**31)], [2**31 - 1]], "int32")
    distance = Kernel().squared_distance(ends, ends)
    assert_close(distance[0, 1] / 2.0**64, (1 - 2.0**-32) ** 2)
    assert distance[0, 0] == 0


def test_mixed_with_an_array_that_jax_holds(tolerance):
    """The query was rounded before; the key is not, and the query's place does not move."""
    key = 2.0**30 + 128.0 * STEPS[:, None]
    query = jnp.asarray(key, "float32")
    score = Kernel(bandwidth=128.0)
    for there in (query, jnp.asarray(key, "int32")):
        got = jax.jit(lambda q: regression.kernel_regression(q, key, VALUE, score=score))(there)
        assert_close(got, expected(), tolerance=tolerance)


def two_groups(apart):
    """Seven rows a step of 1 apart, and the same ones far away."""
    steps = np.concatenate([STEPS, STEPS + apart]).astype(np.float64)[:, None]
    return steps, np.concatenate([VALUE, VALUE])


def test_what_float32_cannot_tell_apart_is_refused():
    near, value = two_groups(2**16)
    far, _ = two_groups(2**30)
    many = (STEPS + 2.0**31 * np.arange(9)[:, None]).reshape(-1, 1)
    with jax.enable_x64(False):
        model = NadarayaWatson(1.0)
        assert_close(model(near, near, value)[:7], expected(), tolerance=5e-3)
        for call in (
            lambda: model(far, far, value),
            lambda: model.leave_one_out(far, value),
            lambda: model.aicc(far, value),
            lambda: regression.smoother(4 * far.astype(np.int64), 4 * far.astype(np.int64)),
            lambda: NadarayaWatson(1.0).search(many, np.tile(VALUE, (9, 1))),
        ):
            with pytest.raises(ValueError, match="must lie further apart than float32"):
                call()
        ends = np.array([[0.0], [1e30]])  # far, and nothing near them
        assert_close(model(ends, ends, VALUE[:2]), VALUE[:2], tolerance=1e-6)
    assert_close(NadarayaWatson(1.0)(far, far, value)[:7], expected())


def test_places_at_the_ends_of_float64(tolerance):
    """Further apart than the largest number; what lies beyond float32 is infinitely far."""
    ends = np.array([[-1.7e308], [-1.0], [0.0], [1.0], [1.6e308]])
    got = regression.kernel_regression(ends, ends, VALUE[:5])
    near = regression.kernel_regression(ends[1:4], ends[1:4], VALUE[1:4])
    wanted = np.concatenate([VALUE[:1], near, VALUE[4:5]])
    assert_close(got, wanted, tolerance=tolerance)
    beyond = np.array([[1.6e308], [1.7e308], [1.5e308]])
    with jax.enable_x64(False), pytest.raises(ValueError, match="must lie further apart than fl"):
        regression.smoother(beyond, np.array([[0.0], [1.0], [2.0]]))


NUMBERS = 1 + np.round(10 * VALUE)
# name: (targets far from 0, the same ones near it)
TARGETS = {
    "float64": (1e9 + VALUE, VALUE),
    "int64": (10**9 + NUMBERS.astype("int64"), NUMBERS),
    "beyond 32 bits": (10**14 + NUMBERS.astype("int64"), NUMBERS),
    "uint32": (4 * 10**9 + NUMBERS.astype("uint32"), NUMBERS),
    "jax": (jnp.asarray(10**9 + NUMBERS, "int32"), NUMBERS),
    "list": ((1e9 + VALUE).tolist(), VALUE),
}
RESIDUALS = {
    "error": lambda model, x, y: model.leave_one_out_error(x, y),
    "error of some rows": lambda model, x, y: model.leave_one_out_error(x, y, rows=[5, 0]),
    "aicc": lambda model, x, y: model.aicc(x, y),
    "variance": lambda model, x, y: model.noise_variance(x, y),
    "variance of some rows": lambda model, x, y: model.noise_variance(x, y, rows=[5, 0, 3, 1]),
    "search": lambda model, x, y: jnp.log(model.search(x, y).bandwidth)[None] / 10,
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_centred_before_they_are_rounded(name, tolerance):
    far, near = TARGETS[name]
    centre = np.asarray(far, "float64")[:1] - near[:1]
    x = jnp.asarray(STEPS[:, None], float)
    for statistic in RESIDUALS.values():
        got, wanted = (statistic(NadarayaWatson(1.0), x, y) for y in (far, near))
        assert_close(got, wanted, tolerance=max(20 * tolerance, 1e-5))
    for statistic in (
        lambda model, y: model(x, x, y),
        lambda model, y: model.leave_one_out(x, y),
        lambda model, y: model.leave_one_out(x, y, rows=[5, 0]),
        lambda model, y: model.confidence_band(x, x, y)[1],
    ):
        got, wanted = (np.asarray(statistic(NadarayaWatson(1.0), y)) for y in (far, near))
        assert got.dtype == wanted.dtype
        assert_close(got / 1e9, (wanted + centre) / 1e9, tolerance=1e-7)
    if jax.config.jax_enable_x64:
        return
    got, wanted = (regression.r_squared(y, np.sin(near)) for y in (far, near))
    assert_close(got, wanted, tolerance=tolerance)
    with pytest.raises(ValueError, match="predicted must vary by more than float32 rounds"):
        regression.r_squared(far, NadarayaWatson(1.0)(x, x, far))
    with pytest.raises(ValueError, match="value and predicted must have the same shape"):
        regression.r_squared(far, jnp.zeros((7, 2)))


def test_targets_that_have_to_stay_where_they_are_are_refused(tolerance):
    """Where the weights of a query need not sum to one, its prediction does not move with them."""
    x, far = np.asarray(STEPS[:, None], "float32"), 1e9 + VALUE
    for options in (
        {"mask": masks.Prefix(5)},
        {"outside": "zero"},
        {"normalizer": Sigmoid()},
        {"normalizer": Softmax(0.0)},
        {"normalizer": lambda scores, where=None, axis=-1: softmax(scores, where, axis)},
    ):
        for call in (
            lambda y, options=options: regression.kernel_regression(x, x, y, **options),
            lambda y, options=options: regression.leave_one_out_error(x, y, **options),
        ):
            call(VALUE)
            call(np.full((7, 1), 1e9))
            if jax.config.jax_enable_x64:
                call(far)
                continue
            with pytest.raises(ValueError, match="value must vary by more than float32 rounds"):
                call(far)
    assert_close(regression.leave_one_out([[0.0]], [[1e9 + 1]]), [[0.0]])
    everywhere = regression.kernel_regression(x, x, np.where(STEPS[:, None] == 3, np.nan, far))
    assert np.isnan(everywhere).all()


def test_a_date_that_is_missing_shows():
    dates = SECONDS[:, None].astype("datetime64[s]")
    dates[3] = np.datetime64("NaT", "s")
    assert np.isnan(regression.kernel_regression(dates, dates, VALUE)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: NadarayaWatson(1.0)(SECONDS[:, None], SECONDS[:, None].astype("M8[s]"), VALUE),
            "key must be dates where query is",
        ),
        (
            lambda: NadarayaWatson(1.0).aicc(STEPS[:, None].astype("timedelta64[M]"), VALUE),
            "key must have a unit of so many seconds",
        ),
        (
            lambda: NadarayaWatson(1.0).leave_one_out(SECONDS.astype("M8[s]"), VALUE),
            r"query must have two axes|have shape",
        ),
        (
            lambda: regression.leave_one_out(STEPS[:, None], VALUE.astype("M8[s]")),
            "value must hold real numbers. Got datetime64",
        ),
        (lambda: regression.aicc([["a"], ["b"]], [[1], [2]]), "key must hold real numbers"),
        (lambda: attention([[1.0], [1.0, 2.0]], [[1.0]], [[1.0]]), "query must be an array of num"),
        (lambda: attention([[1.0]], [[None]], [[1.0]]), "key must hold real numbers"),
        (
            lambda: attention(SECONDS[:, None].astype("M8[s]"), [[1.0]], [[1.0]]),
            "query must hold r",
        ),
    ],
)
def test_what_is_no_number_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_attention_of_any_container(tmp_path):
    key = np.random.default_rng(0).normal(size=(5, 3))
    wanted = attention(key, key, key)
    memory = np.memmap(tmp_path / "key", "float64", "w+", shape=key.shape)
    memory[:] = key
    for each in (
        key.tolist(),
        key.astype(">f8"),
        memory,
        pd.DataFrame(key),
        list(jnp.asarray(key)),
    ):
        assert_close(attention(each, each, each), wanted)
        assert_close(attention_weights(each, each) @ key, wanted)


def test_an_integer_that_jax_does_not_hold_becomes_a_float():
    with jax.enable_x64(False):
        got = attention([[0.0]], [[0.0]], np.array([[3_000_000_000]]))
        assert_close(got, [[3e9]], tolerance=1e-7)


def test_traced_integers_are_subtracted_as_integers():
    x = STEPS[:, None].astype("float32")
    score = Kernel(bandwidth=1.0)

    def error(value):
        return regression.leave_one_out_error(x, value, score=score)

    def predicted(value):
        return regression.kernel_regression(x, x, value, score=score)

    with jax.enable_x64(False):
        value, far = (jnp.asarray(STEPS[:, None] + n, jnp.int32) for n in (0, 2**30))
        for compute in (error, jax.jit(error)):
            np.testing.assert_allclose(compute(far), error(value), rtol=2e-5)
        moved = jax.jit(predicted)(far) - predicted(value)
        np.testing.assert_allclose(moved, 2.0**30, rtol=1e-7)
