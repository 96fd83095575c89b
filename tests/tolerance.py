"""How close is close: one table by dtype, and derivatives held against each other."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_close(got, expected, *, tolerance=None):
    """Equal shapes and places of NaN and inf, error ≤ tolerance · max(1, |expected|)."""
    tolerance = TOLERANCE[jnp.asarray(got).dtype.name] if tolerance is None else tolerance
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(got[infinite], expected[infinite])
    finite = np.isfinite(expected)
    error = np.abs(got[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    assert error.max(initial=0) <= tolerance, (
        f"error {error.max():.3g} > {tolerance:.3g}:\ngot\n{got}\nexpected\n{expected}"
    )


def assert_trees_close(got, expected, *, tolerance=None):
    """`assert_close` leaf by leaf."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_close(one, other, tolerance=tolerance)


def assert_exactly_zero(tree):
    """Every entry of every leaf is 0: not small, not NaN."""
    for leaf in jax.tree.leaves(tree):
        np.testing.assert_array_equal(np.asarray(leaf, np.float64), np.zeros(leaf.shape))


def assert_derivatives(function, *arguments, tolerance=1e-7, step=1e-4):
    """Reverse, forward and finite differences of a scalar function agree, to second order.

    Along one random direction v of all arguments together: f' by reverse and forward mode, f'' v by
    all four mixtures of them. Finite differences are central, of fourth order.
    """
    point, unravel = ravel_pytree(arguments)
    direction = np.random.default_rng(11).normal(size=point.shape)
    direction = jnp.asarray(direction / np.linalg.norm(direction))

    def value(x):
        return function(*unravel(x))

    def along(f, x):
        return jax.jvp(f, (x,), (direction,))[1]

    @jax.jit
    def derivatives(x):
        gradient = jax.grad(value)
        return {
            "value": value(x),
            "reverse": gradient(x),
            "forward": along(value, x),
            "forward over reverse": along(gradient, x),
            "reverse over reverse": jax.grad(lambda x: gradient(x) @ direction)(x),
            "reverse over forward": jax.grad(lambda x: along(value, x))(x),
            "forward over forward": along(lambda x: along(value, x), x),
        }

    here = derivatives(point)
    around = {n: derivatives(point + n * step * direction) for n in (-2, -1, 1, 2)}

    def difference(name):
        near = around[1][name] - around[-1][name]
        far = around[2][name] - around[-2][name]
        return (8 * near - far) / (12 * step)

    assert np.abs(np.asarray(here["reverse"])).max() > 0, "a function without a derivative"
    assert_close(here["reverse"] @ direction, here["forward"], tolerance=1e-9)
    assert_close(here["forward"], difference("value"), tolerance=tolerance)
    second = here["forward over reverse"]
    assert_close(here["reverse over reverse"], second, tolerance=1e-9)
    assert_close(here["reverse over forward"], second, tolerance=1e-9)
    assert_close(here["forward over forward"], second @ direction, tolerance=1e-9)
    assert_close(second, difference("reverse"), tolerance=tolerance)
