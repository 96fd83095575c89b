"""The dtype in which scores, weights and sums are computed."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike


def accumulation_dtype(*arrays: ArrayLike) -> jnp.dtype:
    """float32 for half-precision and integer arrays, float64 where any array is float64.

    >>> accumulation_dtype(jnp.zeros(2, jnp.bfloat16), jnp.zeros(3, jnp.float16))
    dtype('float32')
    """
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def output_dtype(value: ArrayLike) -> jnp.dtype:
    """The value's own dtype, or the accumulation dtype of an integer one."""
    dtype = jnp.result_type(value)
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else accumulation_dtype(value)


def accumulate(*arrays: ArrayLike) -> tuple[Array, ...]:
    """The arrays in their common accumulation dtype."""
    dtype = accumulation_dtype(*arrays)
    return tuple(jnp.asarray(array, dtype) for array in arrays)
