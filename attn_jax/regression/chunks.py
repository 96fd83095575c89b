"""Queries in chunks: [q, k] numbers exist for a few queries at a time, also in reverse mode."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Num, Shaped

from attn_jax import slots
from attn_jax.attention import attention_weights
from attn_jax.checks import at_least
from attn_jax.masks import MaskFunction, Rows
from attn_jax.normalizers import Entmax, Softmax
from attn_jax.regression.centering import centred_inputs
from attn_jax.scores import FEW, Kernel

WHOLE = 2**20  # numbers that are stored at once; as many pairs attention stores before it streams
CHUNK = 2**19  # numbers of a chunk: four times as many leave a CPU's cache


# Entmax chooses its iteration by an alpha that it knows
compiled = functools.partial(slots.compiled, as_they_are=(Entmax,))


def is_whole(queries: int, stored: int) -> bool:
    """Whether so many queries, each with so many numbers `stored_per_query`, need no chunks."""
    return not at_least(queries * stored, WHOLE)


def stored_per_query(key: Num[Array, "k d"], degree: int = 0) -> int:
    """Numbers stored for a query: its offsets from the keys for a line and for many features."""
    k, d = jnp.shape(key)
    return k * d if degree == 1 or d > FEW else k


def in_chunks(function: Callable, rows: tuple[Shaped[Array, "q ..."], ...], *, stored: int) -> Any:
    """function(*rows), where each of its results has a row for each query.

    It is called with so many rows at a time that it stores `CHUNK` numbers, `stored` for each, and
    keeps nothing of them for its derivative.
    """
    queries = rows[0].shape[0]
    size = min(max(CHUNK // max(stored, 1), 1), queries)
    if size == queries:
        return function(*rows)
    chunks = -(-queries // size)

    def in_pieces(array):
        padding = [(0, chunks * size - queries)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, padding, mode="edge").reshape(chunks, size, *array.shape[1:])

    @jax.checkpoint
    def one(rows):
        return function(*rows)

    results = jax.lax.map(one, tuple(map(in_pieces, rows)))

    def joined(array):
        return array.reshape(chunks * size, *array.shape[2:])[:queries]

    return jax.tree.map(joined, results)


def mask_of_rows(mask: MaskFunction | None, index: Int[Array, " c"]) -> MaskFunction | None:
    """The mask of the queries with these indices."""
    return None if mask is None else Rows(mask, index)


def per_query(
    statistic: Callable[[Float[Array, "c k"]], Any],
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k d"],
    *,
    score: Kernel = Kernel(),
    normalizer: Any = Softmax(),
    mask: MaskFunction | None = None,
) -> Any:
    """A statistic of each query's weights, which do not exist for all queries at once.

    `statistic` gets the weights of some queries, [c, k], and returns arrays whose first axis is c:
    `effective_neighbours`, `entropy`, or a function of one's own.

    >>> from attn_jax.regression import effective_neighbours
    >>> per_query(effective_neighbours, jnp.zeros((1, 1)), jnp.zeros((3, 1))).round(6).tolist()
    [3.0]
    """
    options = {"score": score, "normalizer": normalizer}
    query, key = centred_inputs(score, query=query, key=key)
    if query.ndim != 2 or key.ndim != 2 or is_whole(query.shape[0], stored_per_query(key)):
        return statistic(attention_weights(query, key, mask=mask, **options))
    check(attention_weights, query, key, mask=mask, **options)
    return compiled(_statistic_in_chunks, query, key, statistic, mask, options)()


def _statistic_in_chunks(query, key, statistic, mask, options):
    def of(query, index):
        return statistic(attention_weights(query, key, mask=mask_of_rows(mask, index), **options))

    return in_chunks(of, (query, jnp.arange(len(query))), stored=stored_per_query(key))


def check(function: Callable, *arrays: ArrayLike, **options: Any) -> Any:
    """Refuse what function(*arrays, **options) refuses, without computing it; its result's shape.

    A chunk has other shapes than those that the caller's mistake should be told by.
    """
    return jax.eval_shape(lambda *arrays: function(*arrays, **options), *arrays)
