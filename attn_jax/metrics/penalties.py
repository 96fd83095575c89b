"""Penalties on attention weights, to be added to a loss: every position once, none twice."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float


def doubly_stochastic(
    weights: Float[ArrayLike, "b t m"],
    times: Bool[ArrayLike, "b t"],
    positions: Bool[ArrayLike, "b m"],
) -> Float[Array, ""]:
    """Σᵢ (1 - Σₜ weightsₜᵢ)²: each position is attended to once over all times.

    (Xu et al. 2015, eq. 14.) The sum over all examples; what is not real counts nothing, and so
    does an example of which no time is.

    Args:
      weights: of each time over the memory.
      times: which of the times are real.
      positions: which positions of the memory are.

    >>> real = jnp.ones((1, 2), bool)
    >>> doubly_stochastic(jnp.array([[[1.0, 0.0], [1.0, 0.0]]]), real, real).item()
    2.0
    """
    times, positions = jnp.asarray(times), jnp.asarray(positions)
    total = jnp.where(times[:, :, None], jnp.asarray(weights), 0).sum(axis=1)
    counted = positions & times.any(axis=1, keepdims=True)
    return jnp.sum(jnp.where(counted, (1 - total) ** 2, 0))


def coverage(weights: Float[ArrayLike, "b t m"], times: Bool[ArrayLike, "b t"]) -> Float[Array, ""]:
    """Σₜ Σᵢ min(weightsₜᵢ, Σ_{t' < t} weightsₜ'ᵢ): what was attended to costs again.

    (See et al. 2017, eq. 12.) The sum over all examples and real times.

    >>> coverage(jnp.array([[[1.0, 0.0], [0.5, 0.5]]]), jnp.ones((1, 2), bool)).item()
    0.5
    """
    weights = jnp.where(jnp.asarray(times)[:, :, None], jnp.asarray(weights), 0)
    before = jnp.cumsum(weights, axis=1) - weights
    return jnp.sum(jnp.minimum(weights, before))
