"""Maps from all real numbers to a parameter's domain: gradient steps never leave it.

Where rounding would reach the domain's edge (0, ∞, the interval's ends), the map stops one step
short of it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float


def positive(free: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """exp(free): a step in `free` is a relative step of the parameter.

    >>> round(float(positive(free_positive(3.0))), 5), float(positive(-1e9)) > 0
    (3.0, True)
    """
    limits = jnp.finfo(jnp.result_type(free, jnp.float32))
    return jnp.exp(jnp.clip(free, math.log(limits.tiny) + 1, math.log(limits.max) - 1))


def free_positive(parameter: ArrayLike) -> Float[Array, "..."]:
    """The inverse of `positive`."""
    return jnp.log(parameter)


def between(free: Float[ArrayLike, "..."], low: float, high: float) -> Float[Array, "..."]:
    """low + (high - low) sigmoid(free), strictly between the two.

    >>> round(float(between(free_between(1.5, 1.0, 16.0), 1.0, 16.0)), 5)
    1.5
    >>> 1.0 < float(between(-1e9, 1.0, 16.0)) and float(between(1e9, 1.0, 16.0)) < 16.0
    True
    """
    value = low + (high - low) * jax.nn.sigmoid(jnp.asarray(free))
    return jnp.clip(value, *_inside(low, high, value.dtype))


def free_between(parameter: ArrayLike, low: float, high: float) -> Float[Array, "..."]:
    """The inverse of `between`; an end of the interval counts as the number next to it."""
    parameter = jnp.asarray(parameter)
    parameter = jnp.clip(parameter, *_inside(low, high, parameter.dtype))
    return jnp.log(parameter - low) - jnp.log(high - parameter)


def _inside(low: float, high: float, dtype: jnp.dtype) -> tuple[float, float]:
    """The smallest and the largest number of this dtype strictly between low and high."""
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    return float(np.nextafter(low, high)), float(np.nextafter(high, low))
