"""The six steps of self-attention, by `attn_jax` and by hand; several heads; another sentence.

Nothing is trained: embeddings and projections are random, scaled so that every feature of a query
or key has variance 1. A score of two independent ones then has variance 64, and divided by 8 it has
1 again, which is why it is divided. (Vaswani et al. 2017, §3.2.1.)
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import Dot, ScaledDot, attention, attention_weights
from attn_jax.nn import MultiHeadAttention

EMBEDDING, HEAD, HEADS = 512, 64, 8


class Projections(NamedTuple):
    """What maps embeddings to queries, keys and values, [512, 64] each."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


class Steps(NamedTuple):
    """What each step gives for t tokens that ask and k tokens that are asked."""

    embeddings: np.ndarray  # [t, 512]
    query: np.ndarray  # [t, 64]
    key: np.ndarray  # [k, 64]
    value: np.ndarray  # [k, 64]
    scores: np.ndarray  # [t, k]
    scaled: np.ndarray  # [t, k]
    weights: np.ndarray  # [t, k]
    output: np.ndarray  # [t, 64]


TITLES = {
    "embeddings": "1. embeddings: 512 numbers for each token",
    "query": "2. query: what a token asks, 64 numbers",
    "key": "2. key: what a token answers to, 64 numbers",
    "value": "2. value: what a token gives, 64 numbers",
    "scores": "3. scores: each query with each key",
    "scaled": "4. scores divided by 8, the root of 64",
    "weights": "5. softmax: positive weights, 1 in each row",
    "output": "6. the values, summed by their weights",
}
BY_HAND = {
    "embeddings": "x = np.stack([random(token) for token in sentence])",
    "query": "query = x @ W_query",
    "key": "key = x @ W_key",
    "value": "value = x @ W_value",
    "scores": "scores = query @ key.T",
    "scaled": "scaled = scores / np.sqrt(64)",
    "weights": "weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)",
    "output": "output = weights @ value",
}


def embed(tokens: Sequence[str], seed: int) -> np.ndarray:
    """Return a vector [512] of variance 1 for each token, the same wherever the token stands."""
    return np.stack(
        [
            np.random.default_rng([seed, zlib.crc32(token.encode())]).normal(size=EMBEDDING)
            for token in tokens
        ]
    ).astype(np.float32)


def layer_of(seed: int) -> MultiHeadAttention:
    """Return the layer of eight heads whose first one takes the six steps."""
    return MultiHeadAttention(EMBEDDING, HEADS, bias=False, rngs=nnx.Rngs(seed))


def first_head(layer: MultiHeadAttention) -> Projections:
    """Return the projections of the layer's first head."""
    maps = (layer.query, layer.key, layer.value)
    return Projections(*(np.asarray(each.kernel[:, :HEAD]) for each in maps))


def by_library(x: np.ndarray, memory: np.ndarray, maps: Projections) -> Steps:
    """Take the steps by `attn_jax`; self-attention is where the memory is x itself."""
    query, key, value = (
        jnp.asarray(rows) @ kernel for rows, kernel in zip((x, memory, memory), maps, strict=True)
    )
    steps = (
        Dot()(query, key),
        ScaledDot()(query, key),
        attention_weights(query, key),
        attention(query, key, value),
    )
    return Steps(x, *map(np.asarray, (query, key, value, *steps)))


def by_hand(x: np.ndarray, memory: np.ndarray, maps: Projections) -> Steps:
    """Take the steps by one line of NumPy each, in float64."""
    x, memory = x.astype(np.float64), memory.astype(np.float64)
    query = x @ maps.query
    key = memory @ maps.key
    value = memory @ maps.value
    scores = query @ key.T
    scaled = scores / np.sqrt(HEAD)
    weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    output = weights @ value
    return Steps(x, query, key, value, scores, scaled, weights, output)


def heads_by_hand(x: np.ndarray, layer: MultiHeadAttention) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight heads' weights [8, t, t] and the layer's output [t, 512], by NumPy."""
    maps = [np.asarray(each.kernel[...]) for each in (layer.query, layer.key, layer.value)]
    steps = [
        by_hand(x, x, Projections(*(each[:, i : i + HEAD] for each in maps)))
        for i in range(0, EMBEDDING, HEAD)
    ]
    joined = np.concatenate([each.output for each in steps], axis=1)
    return np.stack([each.weights for each in steps]), joined @ np.asarray(layer.out.kernel[...])


def differences(one: Steps, other: Steps) -> Iterator[tuple[str, float]]:
    """Yield each step's name and the largest difference between two ways to take it."""
    for name, a, b in zip(Steps._fields, one, other, strict=True):
        yield name, largest_difference(a, b)


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return max |one - other|.

    >>> largest_difference(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    0.5
    """
    return float(np.max(np.abs(one - other)))
