"""Case weights: rows that count as several, and integer ones are copies of the row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Entmax, Kernel, Segments, Softmax, kernels, regression
from attn_jax.nn import NadarayaWatson
from attn_jax.regression import chunks
from tests.tolerance import assert_close

RNG = np.random.default_rng(0)
X, Y, QUERY = RNG.normal(size=(11, 2)), RNG.normal(size=(11, 2)), 2 * RNG.normal(size=(5, 2))
COUNTS = np.array([1, 3, 0, 2, 1, 1, 4, 0, 2, 1, 1])
COPY_OF = np.repeat(np.arange(11), COUNTS)

OPTIONS = [
    {"score": Kernel(kernels.gaussian, 0.8), "degree": 0},
    {"score": Kernel(kernels.epanechnikov, 0.9), "degree": 1},
    {"score": Kernel(kernels.epanechnikov, 0.3), "degree": 0, "outside": "mean"},
    {"score": Kernel(kernels.boxcar, np.array([0.3, 0.6])), "degree": 0, "outside": "nearest"},
]


def statistics(x, y, options, **weighted):
    """All that is computed from the data; copies of a row are left out together."""
    own = {**options, **weighted}
    return (
        regression.kernel_regression(QUERY, x, y, **own),
        regression.degrees_of_freedom(x, **own),
        regression.aicc(x, y, **own),
        regression.noise_variance(x, y, **own),
        regression.confidence_band(QUERY, x, y, **own),
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("whole", [True, False])
def test_integers_are_copies_of_the_row(options, whole, monkeypatch):
    expected = statistics(X[COPY_OF], Y[COPY_OF], options)
    together = ~Segments(jnp.asarray(COPY_OF), jnp.asarray(COPY_OF))
    copies = X[COPY_OF], X[COPY_OF], Y[COPY_OF]
    left_out = Y[COPY_OF] - regression.kernel_regression(*copies, mask=together, **options)
    if not whole:  # in chunks of queries, or streaming
        monkeypatch.setattr(chunks, "WHOLE", 8)
        monkeypatch.setattr(chunks, "CHUNK", 40)
    got = statistics(X, Y, options, case_weights=COUNTS)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_close(one, other, tolerance=1e-10)
    error = regression.leave_one_out_error(X, Y, case_weights=COUNTS, **options)
    assert_close(error, np.mean(np.asarray(left_out) ** 2))
    # some of the rows, all of which they are here
    some = {"rows": np.arange(11), "case_weights": COUNTS}
    assert_close(regression.leave_one_out_error(X, Y, **some, **options), error)
    assert_close(regression.aicc(X, Y, **some, **options), got[2])
    assert_close(regression.noise_variance(X, Y, **some, **options), got[3])


@pytest.mark.parametrize("normalizer", [Softmax(), Entmax(1.5)])
def test_the_logarithm_of_a_weight_is_added_to_the_score(normalizer):
    """By the formula, weights that are no integers; their scale is of no matter to softmax."""
    weights = RNG.uniform(0.1, 3, size=11)
    scores = -((QUERY[:, None] - X[None]) ** 2).sum(axis=2) / 2 + np.log(weights)[None, :]
    expected = np.asarray(normalizer(jnp.asarray(scores))) @ Y
    how = {"score": Kernel(), "normalizer": normalizer}
    assert_close(regression.kernel_regression(QUERY, X, Y, case_weights=weights, **how), expected)
    if isinstance(normalizer, Softmax):
        scaled = regression.kernel_regression(QUERY, X, Y, case_weights=7 * weights, **how)
        assert_close(scaled, expected)


def test_the_module_and_the_search_take_them():
    model = NadarayaWatson(0.7)
    how = {"case_weights": COUNTS}
    repeated = X[COPY_OF], Y[COPY_OF]
    assert_close(model(QUERY, X, Y, **how), model(QUERY, *repeated))
    assert_close(model.smoother(QUERY, X, **how) @ Y, model(QUERY, *repeated))
    assert_close(model.degrees_of_freedom(X, **how), model.degrees_of_freedom(repeated[0]))
    assert_close(model.aicc(X, Y, **how), model.aicc(*repeated))
    assert_close(model.noise_variance(X, Y, **how), model.noise_variance(*repeated))
    bands = model.confidence_band(QUERY, X, Y, **how), model.confidence_band(QUERY, *repeated)
    assert_close(*bands)
    error = model.leave_one_out_error(X, Y, **how)
    residual = (Y - np.asarray(model.leave_one_out(X, Y, **how))) ** 2
    assert_close(error, (COUNTS[:, None] * residual).sum() / (2 * COUNTS.sum()))
    found = model.search(X, Y, **how)
    assert found.value <= error
    assert_close(model.leave_one_out_error(X, Y, **how), found.value, tolerance=1e-8)


def test_derivatives_in_the_weights():
    """Of a weight of 0 it is 0; the others' is the difference quotient's."""
    weights = jnp.asarray(RNG.uniform(0.5, 2, size=11)).at[3].set(0.0)

    def total(weights):
        predicted = regression.kernel_regression(QUERY, X, Y, case_weights=weights)
        return jnp.sum(jnp.sin(predicted), axis=None)

    gradient, step = jax.grad(total)(weights), 1e-6
    assert gradient[3] == 0
    for place in (0, 7):
        ends = (total(weights.at[place].add(sign * step)) for sign in (1, -1))
        high, low = ends
        assert abs(gradient[place] - (high - low) / (2 * step)) < 1e-8


@pytest.mark.usefixtures("without_shape_hook")
def test_bad_case_weights_are_refused():
    for bad, rule in (
        (np.ones(3), r"be 11 numbers, one a row\. Got float64\[3\]"),
        (np.ones((11, 1)), "be 11 numbers"),
        (np.full(11, -1.0), "be finite and not negative"),
        (np.full(11, np.nan), "be finite and not negative"),
        (np.zeros(11), "not all be 0"),
        (np.ones(11, bool), "be 11 numbers"),
    ):
        with pytest.raises(ValueError, match=f"^case_weights must {rule}"):
            regression.kernel_regression(QUERY, X, Y, case_weights=bad)


def test_one_row_that_counts_is_predicted_as_one_row():
    one = np.eye(11)[4]
    predicted = regression.leave_one_out(X, Y + 100, case_weights=one)
    assert_close(predicted[4], np.zeros(2))
    assert_close(predicted[0], (Y + 100)[4])
