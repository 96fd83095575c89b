"""kernels.py and the Kernel score: log K(u), supports, smoothness on the data, float32 far away."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Entmax, Kernel, Softmax, attention, attention_weights, kernels
from tests import oracles
from tests.members import KERNELS, inputs
from tests.tolerance import assert_close, assert_exactly_zero, assert_trees_close

COMPACT = [row for row in KERNELS if row.compact]
SMOOTH = [row for row in KERNELS if row.curvature is not None]
each_kernel = pytest.mark.parametrize("row", KERNELS, ids=str)
each_compact = pytest.mark.parametrize("row", COMPACT, ids=str)
each_smooth = pytest.mark.parametrize("row", SMOOTH, ids=str)


@functools.partial(jax.jit, static_argnums=0)
def values_and_slopes(kernel, u):
    """Compiled once for each kernel: what is asked has the shape of `asked`."""
    return jax.vmap(jax.value_and_grad(kernel))(u)


def asked(*u):
    """45 numbers, these first."""
    return np.pad(np.array(u), (0, 45 - len(u)), mode="edge")


@each_kernel
def test_log_kernel_is_the_formula(row):
    u = asked(*np.linspace(0, 0.999, 41), 1.001, 1.5, 7.0, 40.0)
    expected = [getattr(oracles.kernels, row.name)(x) for x in u]
    assert_close(values_and_slopes(getattr(kernels, row.name), u)[0], expected)


@each_kernel
def test_kernel_is_one_at_zero(row):
    assert getattr(kernels, row.name)(jnp.zeros(())) == 0


@each_compact
def test_support_is_closed_for_boxcar_alone(row):
    at_one, beyond = getattr(kernels, row.name)(jnp.array([1.0, np.nextafter(1.0, 2.0)]))
    assert at_one == (0 if row.name == "boxcar" else -np.inf)
    assert beyond == -np.inf


@each_kernel
def test_far_away_is_no_overflow(row):
    far = asked(1e3, 1e150)
    got, slope = values_and_slopes(getattr(kernels, row.name), far)
    assert not np.isnan(got).any()
    if row.name in ("laplace", "logistic"):
        assert_close(got, -far + (np.log(4) if row.name == "logistic" else 0))
    assert np.isfinite(slope).all()


@each_kernel
def test_slope_is_the_finite_difference(row):
    u = asked(0.2, 0.55, 0.9, *([] if row.compact else [1.7]))
    of = functools.partial(values_and_slopes, getattr(kernels, row.name))
    step = 1e-5
    expected = (np.asarray(of(u + step)[0]) - of(u - step)[0]) / (2 * step)
    assert_close(of(u)[1], expected, tolerance=1e-7)


@each_compact
def test_a_key_on_or_beyond_the_edge_has_no_gradient(row):
    """Keys at u = 0.5, 1 and 3: all but the first (the boxcar: two) are as if deleted."""
    query, value = jnp.array([[0.0]]), jnp.array([[2.0], [5.0], [-7.0]])
    key = jnp.array([[0.5], [1.0], [3.0]])
    inside = 2 if row.name == "boxcar" else 1
    score = Kernel(getattr(kernels, row.name))

    def loss(query, key, value):
        return (attention(query, key, value, score=score) ** 2).sum()

    @jax.jit
    def with_and_without(query, key, value):
        gradient = jax.grad(loss, (0, 1, 2))
        return gradient(query, key, value), gradient(query, key[:inside], value[:inside])

    got, expected = with_and_without(query, key, value)
    assert_exactly_zero((got[1][inside:], got[2][inside:]))
    for one, other in zip(got, expected, strict=True):
        assert_close(one[: len(other)], other)


@each_compact
def test_query_outside_the_support_is_an_empty_row(row):
    query, key, value = inputs()
    query = jnp.asarray(np.asarray(query) + np.array([[0], [50], [0], [0], [0]]))

    def empty(query, key, value, bandwidth):
        score = Kernel(getattr(kernels, row.name), bandwidth)
        return attention(query, key, value, score=score)[1]

    arguments = (query, key, value, jnp.array(0.7))
    with jax.debug_nans(True):
        gradients = jax.grad(lambda *a: empty(*a).sum(), (0, 1, 2, 3))(*arguments)
    assert_exactly_zero((empty(*arguments), gradients))


@each_smooth
@pytest.mark.parametrize("bandwidth", [0.7, (0.7, 1.9, 0.3)], ids=["scalar", "per_feature"])
def test_gradient_and_hessian_on_a_data_point(row, bandwidth):
    """At q = k the log-kernel has gradient 0 and Hessian -curvature / bandwidth²."""
    point, bandwidth = jnp.array([0.3, -1.2, 2.0]), jnp.array(bandwidth)
    score = Kernel(getattr(kernels, row.name), bandwidth)

    def log_kernel(query):
        return score(query[None], point[None])[0, 0]

    derivatives = jax.jit(lambda at: (jax.grad(log_kernel)(at), jax.hessian(log_kernel)(at)))
    gradient, hessian = derivatives(point)
    assert_close(gradient, np.zeros(3))
    assert_close(hessian, -row.curvature * np.diag(np.broadcast_to(bandwidth**-2.0, 3)))


@each_kernel
def test_gradient_on_a_data_point_is_finite_and_zero(row):
    """Also at the kink of triangular and laplace, where 0 is the convention."""
    point = jnp.array([[0.3, -1.2]])

    def log_kernel(query, key, bandwidth):
        return Kernel(getattr(kernels, row.name), bandwidth)(query, key).sum()

    with jax.debug_nans(True):
        assert_exactly_zero(jax.grad(log_kernel, (0, 1, 2))(point, point, jnp.array(0.5)))


@each_kernel
@pytest.mark.parametrize("features", [1, 3])
def test_float32_far_from_the_origin(row, features):
    """Neighbours at 1e4 keep their distances: weights and gradient as near the origin."""
    rng = np.random.default_rng(5)
    steps = [rng.integers(-8, 9, (count, features)) / 16 for count in (3, 5)]  # exact in float32
    near = [jnp.asarray(s, "float32") for s in steps]
    far = [x + jnp.float32(1e4) for x in near]
    bandwidth = 1.3 * features**0.5

    cotangent = jnp.asarray(rng.normal(size=(3, 5)), "float32")

    @jax.jit
    def weights_and_gradients(query, key):
        def weights(query, key):
            score = Kernel(getattr(kernels, row.name), bandwidth)
            return attention_weights(query, key, score=score)

        got, pull = jax.vjp(weights, query, key)
        return got, pull(cotangent)

    (got, of_far), (_, of_near) = weights_and_gradients(*far), weights_and_gradients(*near)
    kernel = oracles.Kernel(getattr(oracles.kernels, row.name), bandwidth)
    assert_close(got, oracles.attention_weights(*steps, score=kernel), tolerance=1e-5)
    assert_trees_close(of_far, of_near, tolerance=1e-5)


@functools.partial(jax.jit, static_argnames="alpha")
def entmax_of_a_gaussian(query, key, bandwidth, alpha):
    score, normalizer = Kernel(bandwidth=bandwidth), Entmax(alpha)
    return attention_weights(query, key, score=score, normalizer=normalizer)


@pytest.mark.parametrize("alpha", [1.2, 4 / 3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("radius", [0.6, 1.1, 4.0])
def test_entmax_of_a_gaussian_is_a_compact_kernel(alpha, radius):
    """α-entmax of -d²/2h² is (1 - d²/r²)₊^{1/(α-1)} / c, c its sum: h² = (α-1) r² c^{α-1} / 2."""
    query, key = jnp.array([[0.1, 0.0]]), jnp.asarray(np.random.default_rng(2).normal(size=(11, 2)))
    squares = np.sum((np.asarray(query) - np.asarray(key)) ** 2, axis=1)
    kernel = np.maximum(1 - squares / radius**2, 0) ** (1 / (alpha - 1))
    assert np.count_nonzero(kernel) >= 1
    bandwidth = radius * np.sqrt((alpha - 1) * kernel.sum() ** (alpha - 1) / 2)
    got = entmax_of_a_gaussian(query, key, bandwidth, alpha)
    assert_close(got, (kernel / kernel.sum())[None], tolerance=1e-11)


@pytest.mark.parametrize(
    ("alpha", "name"), [(2.0, "epanechnikov"), (1.5, "biweight"), (4 / 3, "triweight")]
)
def test_adaptive_radius_always_holds_a_point(alpha, name):
    """Far from the data the compact kernel is empty, its adaptive twin the nearest key."""
    query, key = jnp.array([[100.0]]), jnp.array([[0.0], [3.0], [1.0]])
    fixed = attention_weights(query, key, score=Kernel(getattr(kernels, name)))
    adaptive = attention_weights(query, key, score=Kernel(), normalizer=Entmax(alpha))
    assert_exactly_zero(fixed)
    np.testing.assert_array_equal(adaptive, [[0, 1, 0]])


def test_a_function_of_u_is_a_kernel():
    rng = np.random.default_rng(8)
    query, key = (jnp.asarray(rng.normal(size=(n, 2))) for n in (3, 5))
    power = jnp.array(3.0)

    @jax.jit
    def weights(power):
        score = Kernel(lambda u: -(u**power), 1.5)
        return attention_weights(query, key, score=score, normalizer=Softmax())

    distances = np.linalg.norm(np.asarray(query)[:, None] - np.asarray(key), axis=-1) / 1.5
    expected = np.exp(-(distances**3))
    assert_close(weights(power), expected / expected.sum(1, keepdims=True))
    slope = (weights(power + 1e-5) - weights(power - 1e-5)) / 2e-5
    assert_close(jax.jit(jax.jacobian(weights))(power), slope, tolerance=1e-8)


def test_bandwidth_list_of_one_is_a_scalar():
    query, key = jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 1.0], [0.5, -1.0]])
    one, listed = (Kernel(bandwidth=h)(query, key) for h in (jnp.array(0.4), jnp.array([0.4])))
    assert_close(listed, one)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [
        (0.0, r"bandwidth.*0"),
        (-0.5, r"bandwidth.*-0\.5"),
        (np.nan, r"bandwidth.*nan"),
        (np.inf, r"bandwidth.*inf"),
        ((0.3, -1.0), r"bandwidth.*-1"),
        ((0.3, 1.0, 2.0), r"bandwidth.*\D3,?\D"),
        (np.ones((2, 2)), r"bandwidth.*\D2, 2\D"),
    ],
    ids=str,
)
def test_bad_bandwidth_is_named(bandwidth, message):
    bandwidth = jnp.asarray(bandwidth) if np.ndim(bandwidth) else bandwidth
    with pytest.raises(ValueError, match=f"(?s){message}"):
        attention_weights(jnp.ones((4, 2)), jnp.ones((7, 2)), score=Kernel(bandwidth=bandwidth))


def test_traced_bandwidth_raises_no_alarm():
    x = jnp.array([[0.0, 0.1], [1.0, 0.4]])
    got = jax.jit(lambda h: Kernel(bandwidth=h)(x, x))(jnp.array([0.3, 0.8]))
    assert_close(got, Kernel(bandwidth=jnp.array([0.3, 0.8]))(x, x))
