"""The dtype in which scores, weights and sums are computed."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num


def accumulation_dtype(*arrays: ArrayLike) -> jnp.dtype:
    """float32 for half-precision arrays, float64 where any array is float64.

    Integers count as JAX's default float: float64 where that is enabled, else float32.

    >>> accumulation_dtype(jnp.zeros(2, jnp.bfloat16), jnp.zeros(3, jnp.float16))
    dtype('float32')
    """
    dtypes = [jnp.float32, jnp.result_type(*arrays)]
    dtypes += [jnp.result_type(float)] * any(map(_is_integer, arrays))
    return functools.reduce(jnp.promote_types, dtypes)


def output_dtype(value: ArrayLike) -> jnp.dtype:
    """The value's own dtype, or the accumulation dtype of an integer one."""
    dtype = jnp.result_type(value)
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else accumulation_dtype(value)


def accumulate(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in their common accumulation dtype."""
    dtype = accumulation_dtype(*arrays)
    return tuple(jnp.asarray(array, dtype) for array in arrays)


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


def _is_integer(array: ArrayLike) -> bool:
    """Whether an array, not a plain number, holds integers."""
    weak = array.weak_type if isinstance(array, jax.Array) else isinstance(array, int)
    return not weak and jnp.issubdtype(jnp.result_type(array), jnp.integer)
