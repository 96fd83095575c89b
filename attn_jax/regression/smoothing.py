"""Linear smoothers: Nadaraya-Watson and local linear regression, and leaving each point out."""

import math
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from attn_jax import masks
from attn_jax.attention import attention_weights
from attn_jax.checks import require
from attn_jax.normalizers import Softmax
from attn_jax.precision import accumulate, output_dtype
from attn_jax.scores import Kernel

Outside = Literal["nearest", "mean", "zero", "nan"]


def kernel_regression(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k d"],
    value: Num[ArrayLike, "k e"],
    *,
    score: Kernel = Kernel(),
    normalizer: Any = Softmax(),
    mask: masks.MaskFunction | None = None,
    outside: Outside = "nearest",
    degree: int = 0,
) -> Float[Array, "q e"]:
    """Predict at each query from keys (inputs) and values (targets).

    Args:
      query: where to predict.
      key: the inputs, one row each.
      value: the targets, one row each.
      score: the kernel and its bandwidth.
      normalizer: softmax is Nadaraya-Watson; sparsemax and entmax of a Gaussian are compact kernels
        with a radius that always holds a point.
      mask: which keys a query may use.
      outside: the answer for a query that no key supports (compact kernels): the nearest key's
        value (tied ones: their mean), the mean of all allowed values, 0, or NaN.
      degree: 0, a local constant, or 1, a local line; where the supported keys do not span a
        direction, the line is flat in it.

    Raises:
      ValueError: an argument does not fit; the message names it.

    >>> x, y = jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])
    >>> kernel_regression(jnp.array([[0.5], [99.0]]), x, y).tolist()
    [[1.0], [2.0]]
    """
    value = jnp.asarray(value)
    require(value.ndim == 2, "value", "have two axes, rows and outputs", value)
    weights = smoother(
        query, key, score=score, normalizer=normalizer, mask=mask, outside=outside, degree=degree
    )
    require(
        weights.shape[1] == value.shape[0],
        "key and value",
        "have the same number of rows",
        f"key {jnp.shape(key)}, value {value.shape}",
    )
    return jnp.einsum("qk,ke->qe", *accumulate(weights, value)).astype(output_dtype(value))


def smoother(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k d"],
    *,
    score: Kernel = Kernel(),
    normalizer: Any = Softmax(),
    mask: masks.MaskFunction | None = None,
    outside: Outside = "nearest",
    degree: int = 0,
) -> Float[Array, "q k"]:
    """The matrix L with prediction = L value; see `kernel_regression` for the arguments.

    >>> smoother(jnp.array([[0.5]]), jnp.array([[0.0], [1.0]])).tolist()
    [[0.5, 0.5]]
    """
    require(isinstance(score, Kernel), "score", "be a Kernel", score)
    require(outside in get_args(Outside), "outside", f"be one of {get_args(Outside)}", outside)
    require(degree in (0, 1), "degree", "be 0 or 1", degree)
    weights = attention_weights(query, key, score=score, normalizer=normalizer, mask=mask)
    if weights.size == 0:
        return weights
    query, key = accumulate(query, key)
    allowed = jnp.ones(weights.shape, bool) if mask is None else masks.dense(mask, *weights.shape)
    # by the kernel's support: the weights of a supported key may underflow (and a NaN has to show)
    empty = ~jnp.any(allowed & (score(query, key) != -jnp.inf), axis=1, keepdims=True)
    if degree == 1:
        weights = _local_line(weights, query, key, score)
    return jnp.where(empty, _answer_outside(outside, query, key, score, allowed), weights)


def leave_one_out(
    key: Num[ArrayLike, "n d"], value: Num[ArrayLike, "n e"], **options: Any
) -> Float[Array, "n e"]:
    """Predict each row from all the others: the diagonal is masked, which is exact.

    Options are those of `kernel_regression`; a mask holds beside it. The usual closed form
    residual / (1 - L_ii) is 0/0
    at an isolated point; a mask in log space is not.

    >>> leave_one_out(jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])).tolist()
    [[2.0], [0.0]]
    """
    mask = options.pop("mask", None)
    mask = others if mask is None else others & mask
    return kernel_regression(key, key, value, mask=mask, **options)


others = ~masks.Window(0, 0)  # all rows but the query's own


def _answer_outside(
    outside: Outside,
    query: Float[Array, "q d"],
    key: Float[Array, "k d"],
    score: Kernel,
    allowed: Bool[Array, "q k"],
) -> Float[Array, "q k"]:
    if outside == "zero":
        return jnp.zeros(allowed.shape, query.dtype)
    if outside == "nan":
        return jnp.full(allowed.shape, jnp.nan, query.dtype)
    chosen = allowed
    if outside == "nearest":
        distance = jax.lax.stop_gradient(_relative_distance(query, key, score, allowed))
        chosen &= distance == jnp.min(distance, axis=1, keepdims=True)
    count = jnp.sum(chosen, axis=1, keepdims=True)
    return chosen / jnp.maximum(count, 1).astype(query.dtype)


def _relative_distance(
    query: Float[Array, "q d"],
    key: Float[Array, "k d"],
    score: Kernel,
    allowed: Bool[Array, "q k"],
) -> Float[Array, "q k"]:
    """Squared distances in units of each row's own, ∞ where not allowed: never all ∞ or all 0."""
    (bandwidth,) = accumulate(score.bandwidth)
    bandwidth = jnp.broadcast_to(bandwidth / jnp.min(bandwidth), query.shape[1:])
    offset = jnp.abs(query[:, None, :] - key[None, :, :]) / bandwidth[None, None, :]
    size = jnp.where(allowed, jnp.max(offset, axis=2), jnp.inf)
    unit = jnp.min(size, axis=1, keepdims=True)  # some key has a distance of 1 to √d of it
    unit = jnp.where((unit > 0) & jnp.isfinite(unit), unit, 1.0)
    square = jnp.sum(jnp.square(offset / unit[:, :, None]), axis=2)
    return jnp.where(allowed, square, jnp.inf)


def _local_line(
    weights: Float[Array, "q k"],
    query: Float[Array, "q d"],
    key: Float[Array, "k d"],
    score: Kernel,
) -> Float[Array, "q k"]:
    """L_ij = w_ij (1 - m_iᵀ C_i⁺ (u_ij - m_i)): the intercept of weighted least squares.

    u are the offsets key - query in bandwidths, m and C their weighted mean and covariance. They
    are measured from each row's heaviest key, and centred twice: where one key has nearly all the
    weight, C is tiny and would blow up the rounding of larger offsets.
    """
    (bandwidth,) = accumulate(score.bandwidth)
    bandwidth = jnp.broadcast_to(bandwidth, query.shape[1:])[None, :]
    origin = key[jnp.argmax(weights, axis=1)]
    away = (key[None, :, :] - origin[:, None, :]) / bandwidth[None, :, :]
    total = jnp.sum(weights, axis=1, keepdims=True)
    share = weights / jnp.where(total == 0, 1.0, total)
    mean = jnp.einsum("qk,qkd->qd", share, away)
    centred = away - mean[:, None, :]
    rest = jnp.einsum("qk,qkd->qd", share, centred)
    centred = centred - rest[:, None, :]
    mean = (origin - query) / bandwidth + mean + rest
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
