"""The scores of a block of pairs, up to the mask: what every implementation computes alike."""

import functools
import inspect

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from attn_jax import score_mods, scores
from attn_jax.blocks import Block
from attn_jax.checks import require
from attn_jax.precision import accumulate

_INTERIOR = 0.5  # stands in for a deleted score: inside the domain of every usual function


def block_scores(
    query: Num[Array, "q d"],
    key: Num[Array, "k c"],
    block: Block,
    *,
    score: scores.Score,
    score_mod: score_mods.ScoreMod | None = None,
    allowed: Bool[Array, "#q #k"] | None = None,
) -> Float[Array, "q k"]:
    """score_mod(score(query, key)) of a block's rows, in which nothing derives from deleted rows.

    A key that no query of the block may attend to, and a query that may attend to none of its keys,
    are replaced before they are compared: they may hold inf or NaN.
    """
    q, k = block.size
    if allowed is not None:
        query = jnp.where(_any(allowed, 1)[:, None], query, 0)
        key = jnp.where(attended(allowed), key, 0)
    found = jnp.asarray(score(query, key))
    require(found.shape == (q, k), "score", f"return shape [q, k] = [{q}, {k}]", found)
    (found,) = accumulate(found)
    if score_mod is not None:
        found = _modify(found, allowed, score_mod, block)
    return found if _is_product(score, key) else _written(found)


def attended(allowed: Bool[Array, "#q #k"]) -> Bool[Array, "#k 1"]:
    """True for keys that some query may attend to."""
    return _any(allowed, 0)[:, None]


def _any(allowed: Bool[Array, "q k"], axis: int) -> Bool[Array, " n"]:
    return jnp.max(allowed.astype(jnp.int8), axis=axis, initial=0) > 0  # faster than a logical or


def _modify(
    scores: Float[Array, "q k"],
    allowed: Bool[Array, "#q #k"] | None,
    score_mod: score_mods.ScoreMod,
    block: Block,
) -> Float[Array, "q k"]:
    """score_mod(scores) that derives nothing from deleted scores; any number where one is masked.

    A masked score, and one that is -inf before and after (outside a compact kernel's support), is
    replaced before the mod: 0 · inf in the mod's derivative would reach what the mod closes over.
    """
    modified = score_mods.in_block(score_mod, scores, block)
    require(modified.shape == scores.shape, "score_mod", f"return shape {scores.shape}", modified)
    outside = (scores == -jnp.inf) & (modified == -jnp.inf)
    deleted = outside if allowed is None else outside | ~allowed
    modified = score_mods.in_block(score_mod, jnp.where(deleted, _INTERIOR, scores), block)
    (modified,) = accumulate(modified)
    return jnp.where(outside, -jnp.inf, modified)


def _is_product(score: scores.Score, key: Array) -> bool:
    """Whether the scores are surely a product of matrices, which XLA writes to memory."""
    products = (*scores.PRODUCTS, scores.Additive)
    return isinstance(inspect.unwrap(score), products) and key.shape[1] > 1


@functools.partial(jax.jit, inline=True)  # compiled once where the caller is not
def _written(scores: Float[Array, "q k"]) -> Float[Array, "q k"]:
    """The scores, computed once and written to memory: a loop reads them there.

    What is elementwise XLA computes again wherever it is used, each time with other roundings (a
    product and a sum are fused, or not): a large score would exceed the maximum of its own row.
    """
    keys = scores.shape[1]
    half = -(-keys // 2)
    if scores.size == 0:
        return scores

    def part(start):
        return jax.lax.dynamic_slice_in_dim(scores, start, half, axis=1)

    first, second = jax.lax.map(part, jnp.arange(2) * (keys - half))
    return jnp.concatenate([first[:, : keys - half], second], axis=1)
