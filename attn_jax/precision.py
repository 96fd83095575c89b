"""The dtype in which scores, weights and sums are computed."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num


def accumulation_dtype(*arrays: ArrayLike | jnp.dtype) -> jnp.dtype:
    """float32 for half-precision arrays, float64 where any array is float64.

    Integers alone count as JAX's default float: float64 where that is enabled, else float32.

    >>> accumulation_dtype(jnp.zeros(2, jnp.bfloat16), jnp.zeros(3, jnp.float16))
    dtype('float32')
    """
    with jax.numpy_dtype_promotion("standard"):  # this promotion is meant, also where JAX is strict
        dtype = jnp.promote_types(jnp.result_type(*map(_computable, arrays)), jnp.float32)
        alone = all(map(_is_integer, arrays))
        return jnp.promote_types(dtype, jnp.result_type(float)) if alone else dtype


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


def comparable(
    one: Num[Array, "..."], other: Num[Array, "..."], *beside: ArrayLike
) -> tuple[Array, Array]:
    """Two arrays whose `difference` is to be exact: integers stay integers, others accumulate.

    `beside` is what else goes into their accumulation dtype.

    >>> [each.dtype.name for each in comparable(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.uint32))]
    ['int32', 'uint32']
    """
    if _is_integer(one) and _is_integer(other):
        return computable(one), computable(other)
    return accumulate(one, other, *beside)[:2]


def difference(one: Num[Array, "..."], other: Num[Array, "..."]) -> Float[Array, "..."]:
    """one - other of `comparable` arrays; that of integers, of any two dtypes, is rounded once.

    >>> difference(jnp.int32(-2_000_000_000), jnp.uint32(4_000_000_000)).item()
    -6000000000.0
    """
    if not _is_integer(one):
        return one - other
    dtype = accumulation_dtype(one, other)
    bits = max(jnp.iinfo(each.dtype).bits for each in (one, other))
    if bits <= jnp.finfo(dtype).nmant:
        return one.astype(dtype) - other.astype(dtype)
    # halves are exact, and so are their differences
    (high, low), (other_high, other_low) = (
        _halves(each, bits // 2, dtype) for each in (one, other)
    )
    return (high - other_high) * float(2 ** (bits // 2)) + (low - other_low)


def _halves(integers: Array, bits: int, dtype: jnp.dtype) -> tuple[Array, Array]:
    """high and low with integers = high · 2^bits + low."""
    if jnp.iinfo(integers.dtype).bits <= bits:
        return jnp.zeros((), dtype), integers.astype(dtype)
    ones = integers.dtype.type(2**bits - 1)
    return (integers >> bits).astype(dtype), (integers & ones).astype(dtype)


def _is_integer(array: ArrayLike | jnp.dtype) -> bool:
    return jnp.issubdtype(jnp.result_type(array), jnp.integer)
