"""The dtype in which scores, weights and sums are computed."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike


def accumulation_dtype(*arrays: ArrayLike | jnp.dtype) -> jnp.dtype:
    """float32 for half-precision and integer arrays, float64 where any array is float64.

    >>> accumulation_dtype(jnp.zeros(2, jnp.bfloat16), jnp.zeros(3, jnp.float16))
    dtype('float32')
    """
    with jax.numpy_dtype_promotion("standard"):  # this promotion is meant, also where JAX is strict
        return jnp.promote_types(jnp.result_type(*map(_computable, arrays)), jnp.float32)


def output_dtype(value: ArrayLike) -> jnp.dtype:
    """The value's own dtype, or the accumulation dtype of an integer or a narrow one."""
    dtype = jnp.result_type(value)
    same = jnp.issubdtype(dtype, jnp.inexact) and _computable(value) is value
    return dtype if same else accumulation_dtype(value)


def accumulate(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in their common accumulation dtype."""
    dtype = accumulation_dtype(*arrays)
    return tuple(jnp.asarray(array, dtype) for array in arrays)


def computable(array: ArrayLike) -> ArrayLike:
    """A narrow array in a dtype that JAX computes in, any other as it is.

    Floats of less than 16 bits (float8, float4) and integers of less than 8 (int4, int2) are
    formats to store numbers in, which JAX does not promote: they become float32, int8 and uint8.

    >>> computable(jnp.ones(1, jnp.float8_e4m3fn)).dtype, computable(jnp.ones(1, jnp.uint4)).dtype
    (dtype('float32'), dtype('uint8'))
    """
    usual = _computable(array)
    return array if usual is array else jnp.asarray(array, usual)


def _computable(array: Any) -> Any:
    """The array itself, or the dtype that stands for its narrow one."""
    dtype = jnp.result_type(array)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 16:
        return jnp.float32
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return jnp.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.uint8
    return array
