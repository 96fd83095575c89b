"""Maps from all real numbers to a parameter's domain: gradient steps never leave it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float


def positive(free: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """exp(free): a step in `free` is a relative step of the parameter.

    >>> float(positive(free_positive(3.0)).round(5))
    3.0
    """
    return jnp.exp(free)


def free_positive(parameter: ArrayLike) -> Float[Array, "..."]:
    """The inverse of `positive`."""
    return jnp.log(parameter)


def between(free: Float[ArrayLike, "..."], low: float, high: float) -> Float[Array, "..."]:
    """low + (high - low) sigmoid(free).

    >>> float(between(free_between(1.5, 1.0, 16.0), 1.0, 16.0).round(5))
    1.5
    """
    return low + (high - low) * jax.nn.sigmoid(free)


def free_between(parameter: ArrayLike, low: float, high: float) -> Float[Array, "..."]:
    """The inverse of `between`."""
    return jnp.log(jnp.asarray(parameter - low)) - jnp.log(jnp.asarray(high - parameter))
