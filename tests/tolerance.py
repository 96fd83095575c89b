"""How close is close: one table by dtype, and derivatives held against each other."""

import math

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def assert_close(got, expected, *, tolerance=None):
    """Equal shapes and places of NaN and inf, error ≤ tolerance · max(1, |expected|)."""
    got = np.asarray(got)
    tolerance = TOLERANCE[got.dtype.name] if tolerance is None else tolerance
    got, expected = got.astype(np.float64), np.asarray(expected, np.float64)
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


def assert_derivatives(function, *arguments, every_mixture=True, tolerance=1e-7, step=1e-4):
    """Reverse, forward and finite differences of a scalar function agree, to second order.

    Along one random direction v of all arguments together: f' by reverse and forward mode, f'' v by
    forward over reverse and, with `every_mixture`, by the three other mixtures. Finite differences
    are central, of fourth order.
    """
    leaves, structure = jax.tree.flatten(jax.device_get(arguments))
    shapes = [np.shape(leaf) for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    point = np.concatenate([np.ravel(leaf) for leaf in leaves])
    direction = np.random.default_rng(11).normal(size=point.shape)
    direction = direction / np.linalg.norm(direction)

    def unravel(x):
        parts = jnp.split(x, ends[:-1])
        return structure.unflatten(p.reshape(s) for p, s in zip(parts, shapes, strict=True))

    def value(x):
        return function(*unravel(x))

    def along(f, x):
        return jax.jvp(f, (x,), (direction,))[1]

    gradient = jax.grad(value)

    @jax.jit
    def derivatives(x):
        reverse, second = jax.jvp(gradient, (x,), (direction,))
        at, forward = jax.jvp(value, (x,), (direction,))
        return {"value": at, "forward": forward, "reverse": reverse, "second": second}

    @jax.jit
    def mixtures(x):
        return {
            "reverse over reverse": jax.grad(lambda x: gradient(x) @ direction)(x) @ direction,
            "reverse over forward": jax.grad(lambda x: along(value, x))(x) @ direction,
            "forward over forward": along(lambda x: along(value, x), x),
        }

    here, *others = (
        jax.device_get(derivatives(point + n * step * direction)) for n in (0, -2, -1, 1, 2)
    )
    around = dict(zip((-2, -1, 1, 2), others, strict=True))

    def difference(name):
        near = around[1][name] - around[-1][name]
        far = around[2][name] - around[-2][name]
        return (8 * near - far) / (12 * step)

    assert np.abs(np.asarray(here["reverse"])).max() > 0, f"no derivative: {here['reverse']}"
    assert_close(here["reverse"] @ direction, here["forward"], tolerance=1e-9)
    assert_close(here["forward"], difference("value"), tolerance=tolerance)
    assert_close(here["second"], difference("reverse"), tolerance=tolerance)
    if every_mixture:
        for mixture in mixtures(point).values():
            assert_close(mixture, here["second"] @ direction, tolerance=1e-9)
