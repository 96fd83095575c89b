"""Products with a transposed kernel on a CPU are products, and so are their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.matmul import MANY, affine, matmul
from tests.tolerance import assert_trees_close

RNG = np.random.default_rng(9)
KERNEL, MOVED = (jnp.asarray(RNG.normal(size=(3, 2))) for _ in range(2))


@pytest.mark.parametrize("rows", [MANY - 1, MANY + 1])
def test_derivatives_of_a_product(rows):
    left, moved = (jnp.asarray(RNG.normal(size=(rows, 3))) for _ in range(2))

    def outcome(multiply):
        def value(left, kernel):
            return jnp.sum(jnp.tanh(multiply(left, kernel)))

        def slope(left, kernel):
            return jax.jvp(value, (left, kernel), (moved, MOVED))[1]

        @jax.jit
        def run(left, kernel):
            first, second = (jax.grad(each, (0, 1))(left, kernel) for each in (value, slope))
            return multiply(left, kernel), slope(left, kernel), first, second

        return run(left, KERNEL)

    assert_trees_close(outcome(matmul), outcome(jnp.matmul))


def test_many_rows_are_multiplied_by_rows_of_the_kernel():
    """Only on a CPU, and only where transposing the kernel pays."""
    programs = [str(jax.make_jaxpr(matmul)(jnp.ones((n, 3)), KERNEL)) for n in (MANY - 1, MANY)]
    transposed = ["optimization_barrier" in each for each in programs]
    assert transposed == [False, jax.default_backend() == "cpu"]


def test_affine_has_any_axes():
    inputs, bias = jnp.asarray(RNG.normal(size=(2, 4, 5, 3))), jnp.array([3.0, -1.0])
    expected = np.asarray(inputs) @ np.asarray(KERNEL)
    assert_trees_close(affine(inputs, KERNEL, bias), expected + np.asarray(bias))
    assert_trees_close(affine(inputs, KERNEL, None), expected)
