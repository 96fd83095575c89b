import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.constraints import between, free_between, free_positive, positive
from tests.tolerance import assert_close

LOW, HIGH = -3.0, 11.0
FREE = np.random.default_rng(0).normal(0, 3, 31)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def limited(free):
    return between(free, LOW, HIGH)


@pytest.mark.parametrize(
    ("constrain", "release", "parameters"),
    [
        (positive, free_positive, np.geomspace(1e-30, 1e30, 31)),
        (limited, lambda x: free_between(x, LOW, HIGH), np.linspace(LOW, HIGH, 33)[1:-1]),
    ],
)
def test_inverse(constrain, release, parameters):
    np.testing.assert_allclose(constrain(release(parameters)), parameters, rtol=1e-12)
    assert_close(release(constrain(FREE)), FREE, tolerance=1e-10)


def test_a_step_is_relative_or_scaled_by_the_room_to_both_sides():
    free = jnp.asarray(FREE)
    assert_close(jax.vmap(jax.grad(positive))(free), np.exp(FREE))
    value = np.asarray(limited(free))
    expected = (value - LOW) * (HIGH - value) / (HIGH - LOW)
    assert_close(jax.vmap(jax.grad(limited))(free), expected)
    assert np.all(np.diff(limited(np.sort(FREE))) > 0)


@each_dtype
def test_dtype_is_kept(dtype):
    for constrain in (positive, limited, free_positive, lambda x: free_between(x, LOW, HIGH)):
        assert constrain(jnp.asarray(0.5, dtype)).dtype == dtype


@each_dtype
@pytest.mark.parametrize("free", [-1e4, -120.0, -40.0, -19.0, 19.0, 40.0, 120.0, 1e4])
def test_no_step_leaves_the_domain(free, dtype):
    free = jnp.asarray(free, dtype)
    assert 0 < positive(free) < np.inf
    assert 1.0 < between(free, 1.0, 16.0) < 16.0
    for constrain in (positive, lambda x: between(x, 1.0, 16.0)):
        assert np.isfinite(jax.grad(constrain)(free))
