"""Local lines: the weights of weighted least squares around each query."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from attn_jax.meshes import gathered
from attn_jax.precision import accumulate, difference
from attn_jax.scores import Kernel


def local_line(
    weights: Float[Array, "q k"],
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    score: Kernel,
) -> Float[Array, "q k"]:
    """L_ij = w_ij (1 - m_iᵀ C_i⁺ (u_ij - m_i)): the intercept of weighted least squares.

    u are the offsets key - query in bandwidths, m and C their weighted mean and covariance. They
    are measured from each row's heaviest key, and centred twice: where one key has nearly all the
    weight, C is tiny and would blow up the rounding of larger offsets.
    """
    origin = gathered(key, jnp.argmax(weights, axis=1))
    offset = difference(key[None, :, :], origin[:, None, :])
    offset, bandwidth = accumulate(offset, score.bandwidth)
    bandwidth = jnp.broadcast_to(bandwidth, query.shape[1:])[None, :]
    away = offset / bandwidth[None, :, :]
    total = jnp.sum(weights, axis=1, keepdims=True)
    share = weights / jnp.where(total == 0, 1.0, total)
    mean = jnp.einsum("qk,qkd->qd", share, away)
    centred = away - mean[:, None, :]
    rest = jnp.einsum("qk,qkd->qd", share, centred)
    centred = centred - rest[:, None, :]
    mean = difference(origin, query) / bandwidth + mean + rest
    covariance = jnp.einsum("qk,qkd,qkc->qdc", share, centred, centred)
    slope = _least_squares(covariance, mean)
    return weights * (1 - jnp.einsum("qd,qkd->qk", slope, centred))


@jax.custom_jvp
def _least_squares(
    matrix: Float[Array, "q d d"], vector: Float[Array, "q d"]
) -> Float[Array, "q d"]:
    """matrix⁺ vector for each symmetric matrix, on its numerical range."""
    limits = jnp.finfo(matrix.dtype)
    values, vectors = jnp.linalg.eigh(matrix)
    largest = jnp.max(values, axis=1, keepdims=True)
    # the floor keeps 1 / value, and its square in the derivative, finite
    kept = values > 64 * limits.eps * largest + math.sqrt(float(limits.tiny)) / float(limits.eps)
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0)
    return jnp.einsum("qdi,qi,qci,qc->qd", vectors, inverse, vectors, vector)


@_least_squares.defjvp
def _least_squares_jvp(primals, tangents):
    # Golub & Pereyra 1973, eq. 4.12, at constant rank. Through eigh the derivative would not exist
    # where an eigenvalue is repeated.
    matrix, vector = primals
    d_matrix, d_vector = tangents

    def solve(b):
        return _least_squares(matrix, b)

    def times(a, b):
        return jnp.einsum("qdc,qc->qd", a, b)

    solution = solve(vector)
    outside = times(d_matrix, solve(solution))
    residual = times(d_matrix, vector - times(matrix, solution))
    change = solve(d_vector - times(d_matrix, solution) + solve(residual))
    return solution, change + outside - solve(times(matrix, outside))
