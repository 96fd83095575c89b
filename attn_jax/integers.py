"""Integers of any dtype, compared and subtracted as mathematics has it: nothing wraps.

JAX's own arithmetic does: the sum of an index and an offset may pass the end of int32, an int32 and
a uint32 have no common dtype without float64, and a Python int beyond the dtype is an error.
An index is not negative and lies below a length, so that two of them may be subtracted.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer


def compare(relation: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """relation(one, other) of an array and an array, or a Python int of any size.

    The relation is one of Python's `operator`. Arrays of NumPy are compared by NumPy, so that the
    result is static.

    >>> compare(operator.lt, jnp.int32(-1), jnp.uint32(2**32 - 1)).item()
    True
    >>> compare(operator.le, jnp.int8(100), 2**70).item()
    True
    """
    if not isinstance(one, jax.Array) and not isinstance(other, jax.Array):
        return relation(np.asarray(one), other)
    one = jnp.asarray(one)
    if isinstance(other, (int, np.integer)):
        limits = jnp.iinfo(one.dtype)
        beyond = int(other > limits.max) - int(other < limits.min)
        if beyond:
            return jnp.full(one.shape, relation(0, beyond))
        return relation(one, one.dtype.type(other))
    other = jnp.asarray(other)
    signed = jnp.result_type(int)
    unsigned = jnp.dtype(f"uint{jnp.iinfo(signed).bits}")
    if _widens_to(signed, one) and _widens_to(signed, other):
        return relation(one.astype(signed), other.astype(signed))
    result = relation(one.astype(unsigned), other.astype(unsigned))
    if _is_signed(one):
        result = jnp.where(one < 0, relation(-1, 0), result)
    if _is_signed(other):
        result = jnp.where(other < 0, relation(0, -1), result)
    return result


def relative_position(
    query_index: Integer[Array, "#q #k"], key_index: Integer[Array, "#q #k"]
) -> Array:
    """j - i of indices.

    >>> relative_position(jnp.full((1, 1), 3, jnp.uint8), jnp.full((1, 1), 1, jnp.uint8)).item()
    -2
    """
    signed = jnp.result_type(int)
    return key_index.astype(signed) - query_index.astype(signed)


def moved(index: Integer[Array, "..."], start: Any) -> Integer[Array, "..."]:
    """index + start of indices, which stays at the largest number where the sum is beyond it.

    >>> moved(jnp.array([0, 3]), 5).tolist()
    [5, 8]
    """
    signed = jnp.result_type(int)
    most = jnp.iinfo(signed).max
    if isinstance(start, (int, np.integer)):
        start = jnp.asarray(min(max(int(start), -(2**30)), most), signed)
    else:
        start = clip(jnp.asarray(start), -(2**30), min(most, 2**31 - 1))
    index = index.astype(signed)
    return jnp.where(index > most - jnp.maximum(start, 0), most, index + start)


def clip(integers: Integer[Array, "..."], low: int, high: int) -> Integer[Array, "..."]:
    """The integers, within low and high, which int32 holds.

    >>> clip(jnp.array([-128, 3], jnp.int8), -300, 2).tolist()
    [-128, 2]
    """
    inside = integers.astype(jnp.result_type(int))
    inside = jnp.where(compare(operator.gt, integers, high), high, inside)
    return jnp.where(compare(operator.lt, integers, low), low, inside)


def _is_signed(array: Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.signedinteger)


def _widens_to(signed: Any, array: Array) -> bool:
    return _is_signed(array) or jnp.iinfo(array.dtype).bits < jnp.iinfo(signed).bits


def at_least(position: Integer[Any, "..."], offset: Any, slack: Any) -> Any:
    """position ≥ offset - slack; static where all of them are.

    Of an array offset or slack: sums beyond the largest number stay there.

    >>> at_least(np.array([-2, 3]), 2**70, 2**70).tolist()
    [False, True]
    """
    if isinstance(offset, int):
        if isinstance(slack, int):
            return compare(operator.ge, position, offset - slack)
        return compare(operator.le, _plus(-position, offset), slack)
    return compare(operator.ge, _plus(position, slack), offset)


def at_most(position: Integer[Any, "..."], offset: Any, slack: Any) -> Any:
    """position ≤ offset + slack, likewise.

    >>> at_most(np.array([-2, 3]), 1, 1).tolist()
    [True, False]
    """
    if isinstance(offset, int):
        if isinstance(slack, int):
            return compare(operator.le, position, offset + slack)
        return compare(operator.le, _plus(position, -offset), slack)
    if isinstance(slack, int) and slack == 0:
        return compare(operator.le, position, offset)
    back = jnp.asarray(_plus(-position, slack))
    beyond = back == jnp.iinfo(back.dtype).max
    return compare(operator.le, -back, offset) | beyond


def _plus(position: Any, number: Any) -> Any:
    """position + number, at most the largest one."""
    if isinstance(number, int) and number == 0:
        return position
    return moved(jnp.asarray(position), number)
