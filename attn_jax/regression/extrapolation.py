"""The prediction for a query that no key supports, because of a compact kernel or a mask."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from attn_jax import masks
from attn_jax.block_scores import attended
from attn_jax.checks import concrete
from attn_jax.precision import accumulate, accumulation_dtype, difference
from attn_jax.regression.chunks import compiled, in_chunks, mask_of_rows
from attn_jax.scores import Kernel, compared

Outside = Literal["nearest", "mean", "zero", "nan"]


def extrapolation_weights(
    outside: Outside,
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    score: Kernel,
    allowed: Bool[Array, "q k"],
    case_weights: Float[Array, " k"] | None = None,
) -> Float[Array, "q k"]:
    """The prediction as weights of the values."""
    dtype = accumulation_dtype(query, key)
    if outside == "zero":
        return jnp.zeros(allowed.shape, dtype)
    if outside == "nan":
        return jnp.full(allowed.shape, jnp.nan, dtype)
    among = allowed
    if outside == "nearest":
        distance = jax.lax.stop_gradient(_relative_distance(query, key, score, allowed))
        among &= distance == jnp.min(distance, axis=1, keepdims=True)
    among = among.astype(dtype)
    if case_weights is not None:
        among = among * case_weights[None, :]
    total = jnp.sum(among, axis=1, keepdims=True)
    return among / jnp.where(total == 0, 1, total)


def extrapolated(
    output: Float[Array, "q e"],
    empty: Bool[Array, " q"],
    outside: Outside,
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    value: Num[Array, "k e"],
    *,
    score: Kernel,
    mask: masks.MaskFunction | None,
    case_weights: Float[Array, " k"] | None,
) -> Float[Array, "q e"]:
    """The output with predictions in its empty rows; without such rows it costs nothing."""
    if outside == "zero":
        return output
    if outside == "nan":
        return jnp.where(empty[:, None], jnp.nan, output)
    known = concrete(empty)
    if known is not None and not known.any():
        return output
    at = output, empty, outside, query, key, value, score, mask, case_weights
    return compiled(_extrapolated, *at)()


def _extrapolated(output, empty, outside, query, key, value, score, mask, case_weights):
    query, key = compared(score, query, key)

    def of_chunk(query, index, empty):
        def weighted():
            here = mask_of_rows(mask, index)
            allowed = allowed_pairs(here, len(query), len(key), case_weights)
            weights = extrapolation_weights(outside, query, key, score, allowed, case_weights)
            return times(weights, value, None if mask is None else allowed)

        dtype = jax.eval_shape(weighted).dtype
        nothing = jnp.zeros((len(query), value.shape[1]), dtype)
        return jax.lax.cond(jnp.any(empty), weighted, lambda: nothing)

    def with_predictions():
        order = jnp.argsort(~empty)  # few chunks hold the empty rows
        rows = query[order], order, empty[order]
        stored = len(key) * (query.shape[1] if outside == "nearest" else 1)
        predicted = in_chunks(of_chunk, rows, stored=stored)[jnp.argsort(order)]
        return jnp.where(empty[:, None], predicted.astype(output.dtype), output)

    return jax.lax.cond(jnp.any(empty), with_predictions, lambda: output)


def allowed_pairs(
    mask: masks.MaskFunction | None,
    q: int,
    k: int,
    case_weights: Float[Array, " k"] | None = None,
) -> Bool[Array, "q k"]:
    """The mask written out, without rows of weight 0; all pairs where there is neither."""
    allowed = jnp.ones((q, k), bool) if mask is None else masks.dense(mask, q, k)
    return allowed if case_weights is None else allowed & (case_weights > 0)[None, :]


def times(
    weights: Float[Array, "q k"], value: Num[Array, "k e"], allowed: Bool[Array, "q k"] | None
) -> Float[Array, "q e"]:
    """weights · value; a value that no query may use does not count, whatever it holds."""
    if allowed is not None:
        value = jnp.where(attended(allowed), value, 0)
    return jnp.einsum("qk,ke->qe", *accumulate(weights, value))


def _relative_distance(
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    score: Kernel,
    allowed: Bool[Array, "q k"],
) -> Float[Array, "q k"]:
    """Squared distances in units of each row's own, the largest number where not allowed."""
    offset = difference(query[:, None, :], key[None, :, :])
    offset, bandwidth = accumulate(offset, score.bandwidth)
    bandwidth = jnp.broadcast_to(bandwidth / jnp.min(bandwidth), query.shape[1:])
    offset = jnp.abs(offset) / bandwidth[None, None, :]
    far = jnp.finfo(offset.dtype).max
    size = jnp.where(allowed, jnp.max(offset, axis=2), far)
    unit = jnp.min(size, axis=1, keepdims=True)  # some key has a distance of 1 to √d of it
    unit = jnp.where((unit > 0) & (unit < far), unit, 1.0)
    square = jnp.sum(jnp.square(offset / unit[:, :, None]), axis=2)
    return jnp.where(allowed, square, far)
