"""integers.py: integers of any dtype are what Python's are, also where JAX's would wrap."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Kernel
from attn_jax.integers import clip, compare, relative_position
from attn_jax.precision import comparable, difference

DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
ENDS = [
    0,
    3,
    *(sign * 2**n + d for n in (7, 8, 15, 31, 32, 63) for d in (-1, 0, 1) for sign in (1, -1)),
]
RELATIONS = [operator.lt, operator.le, operator.eq]


def held(dtype):
    """The ends that the dtype holds."""
    limits = np.iinfo(dtype)
    return [n for n in sorted(ENDS) if limits.min <= n <= limits.max]


def dtypes_here():
    return [d for d in DTYPES if jax.config.jax_enable_x64 or not d.endswith("64")]


@pytest.mark.parametrize("x64", [False, True])
def test_arrays_of_any_two_dtypes_compare_as_pythons_integers(x64):
    @jax.jit
    def compared(arrays):
        return {
            (relation.__name__, a, b): compare(relation, arrays[a][:, None], arrays[b][None, :])
            for relation in RELATIONS
            for a in arrays
            for b in arrays
        }

    with jax.enable_x64(x64):
        arrays = {dtype: np.array(held(dtype), dtype) for dtype in dtypes_here()}
        for (name, a, b), got in compared(arrays).items():
            relation = getattr(operator, name)
            expected = [[relation(m, n) for n in held(b)] for m in held(a)]
            np.testing.assert_array_equal(got, expected, err_msg=f"{a} {name} {b}")


@pytest.mark.parametrize("x64", [False, True])
def test_pythons_integers_of_any_size(x64):
    beyond = [*ENDS, 2**70, -(2**70)]
    with jax.enable_x64(x64):
        for dtype in ("int8", "uint32", dtypes_here()[-1]):
            for array in (np.array(held(dtype), dtype), jnp.array(held(dtype), dtype)):
                for n in beyond:
                    got = compare(operator.le, array, n)
                    assert isinstance(got, jax.Array) == isinstance(array, jax.Array)
                    np.testing.assert_array_equal(got, [m <= n for m in held(dtype)])


def test_clip_is_pythons():
    for dtype in DTYPES:
        got = clip(jnp.array(held(dtype), dtype), -300, 2**20)
        np.testing.assert_array_equal(got, np.clip(np.array(held(dtype), object), -300, 2**20))


def test_relative_position_of_narrow_indices():
    i, j = jnp.arange(200, dtype=jnp.uint8)[:, None], jnp.arange(100, dtype=jnp.int8)[None]
    np.testing.assert_array_equal(relative_position(i, j), np.arange(100) - np.arange(200)[:, None])


@pytest.mark.parametrize("x64", [False, True])
def test_differences_of_any_two_dtypes_are_pythons_rounded_once(x64):
    @jax.jit
    def differences(arrays):
        return {
            (a, b): difference(*comparable(arrays[a][:, None], arrays[b][None, :]))
            for a in arrays
            for b in arrays
        }

    with jax.enable_x64(x64):
        arrays = {dtype: np.array(held(dtype), dtype) for dtype in dtypes_here()}
        for (a, b), got in differences(arrays).items():
            expected = np.array([[float(m - n) for n in held(b)] for m in held(a)])
            rounding = np.finfo(got.dtype).eps * np.abs(expected)
            assert np.all(np.abs(np.asarray(got, np.float64) - expected) <= rounding), (a, b)


@pytest.mark.parametrize("x64", [False, True])
def test_kernels_compare_integers_of_two_dtypes_and_weakly_typed_ones(x64):
    with jax.enable_x64(x64):
        signed = jnp.array([[2_000_000_001], [2_000_000_004]], "int32")
        weak = jnp.full((1, 1), 2_000_000_001)
        assert weak.weak_type
        for bandwidth in (1, 1.0):
            score = Kernel(bandwidth=bandwidth)
            for query in (weak, weak.astype("uint32"), signed[:1]):
                np.testing.assert_array_equal(score(query, signed), [[0.0, -4.5]])
                assert score(query, signed).dtype == jnp.result_type(float)
