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

    >>> [each.dtype.name for each in comparable(jnp.zeros(1, jnp.int8), jnp.zeros(1, jnp.int32))]
    ['int32', 'int32']
    """
    if all(map(_is_integer, (one, other))):
        dtype = jnp.result_type(one, other)
        bounds = [jnp.iinfo(each.dtype) for each in (one, other)]
        held = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else None
        if (
            held
            and held.bits >= 8
            and all(held.min <= each.min and each.max <= held.max for each in bounds)
        ):
            return one.astype(dtype), other.astype(dtype)
    return accumulate(one, other, *beside)[:2]


def difference(one: Num[Array, "..."], other: Num[Array, "..."]) -> Float[Array, "..."]:
    """one - other of `comparable` arrays; integers are subtracted as integers, and rounded once.

    >>> difference(jnp.int32(2_000_000_001), jnp.int32(-2_000_000_000)).item() > 4e9
    True
    """
    if not _is_integer(one):
        return one - other
    larger = one >= other
    size = jnp.where(larger, one, other) - jnp.where(larger, other, one)
    # the largest differences need the bit of the sign
    size = jax.lax.bitcast_convert_type(size, f"uint{jnp.iinfo(size.dtype).bits}")
    size = size.astype(accumulation_dtype(one))
    return jnp.where(larger, size, -size)


def _is_integer(array: ArrayLike | jnp.dtype) -> bool:
    """Whether an array, not a plain number, holds integers."""
    weak = array.weak_type if isinstance(array, jax.Array) else isinstance(array, int)
    return not weak and jnp.issubdtype(jnp.result_type(array), jnp.integer)
