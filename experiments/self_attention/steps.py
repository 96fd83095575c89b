"""The six steps of self-attention, by `attn_jax` and by hand; several heads; another sentence.

Nothing is trained: embeddings and projections are random, scaled so that every feature of a query
or key has variance 1. A score of two independent ones then has variance 64, and divided by 8 it has
1 again, which is why it is divided. (Vaswani et al. 2017, §3.2.1.)
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import Dot, ScaledDot, attention, attention_weights
from attn_jax.nn import MultiHeadAttention

EMBEDDING, HEAD, HEADS = 512, 64, 8
STEPS = {  # name → what it is, and its line of NumPy
    "embeddings": (
        "1. embeddings: 512 numbers for each token",
        "x = np.stack([random(token) for token in sentence])",
    ),
    "query": ("2. query: 64 numbers to compare with keys", "query = x @ W_query"),
    "key": ("2. key: 64 numbers to compare with queries", "key = x @ W_key"),
    "value": ("2. value: 64 numbers to sum", "value = x @ W_value"),
    "scores": ("3. scores: each query with each key", "scores = query @ key.T"),
    "scaled": ("4. scores divided by 8, the root of 64", "scaled = scores / np.sqrt(64)"),
    "weights": (
        "5. softmax: positive weights, 1 in each row",
        "weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)",
    ),
    "output": ("6. the values, summed by their weights", "output = weights @ value"),
}


Projections = tuple[np.ndarray, np.ndarray, np.ndarray]  # to query, key and value, [512, 64] each


class Steps(NamedTuple):
    """What each step gives for t queries and k keys."""

    embeddings: np.ndarray  # [t, 512]
    query: np.ndarray  # [t, 64]
    key: np.ndarray  # [k, 64]
    value: np.ndarray  # [k, 64]
    scores: np.ndarray  # [t, k]
    scaled: np.ndarray  # [t, k]
    weights: np.ndarray  # [t, k]
    output: np.ndarray  # [t, 64]


def embed(tokens: Sequence[str], seed: int) -> np.ndarray:
    """Return a vector [512] of variance 1 for each token, the same wherever the token stands."""
    rngs = [np.random.default_rng([seed, zlib.crc32(token.encode())]) for token in tokens]
    return np.stack([rng.normal(size=EMBEDDING) for rng in rngs]).astype(np.float32)


def layer_of(seed: int) -> MultiHeadAttention:
    """Return the layer of eight heads whose first one takes the six steps."""
    return MultiHeadAttention(EMBEDDING, HEADS, bias=False, rngs=nnx.Rngs(seed))


def projections(layer: MultiHeadAttention) -> list[Projections]:
    """Return the projections of each head."""
    of_heads = (
        np.split(np.asarray(each.kernel[...]), HEADS, axis=1)
        for each in (layer.query, layer.key, layer.value)
    )
    return list(zip(*of_heads, strict=True))


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
    query_map, key_map, value_map = maps
    query = x @ query_map
    key = memory @ key_map
    value = memory @ value_map
    scores = query @ key.T
    scaled = scores / np.sqrt(HEAD)
    weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
    output = weights @ value
    return Steps(x, query, key, value, scores, scaled, weights, output)


def heads_by_library(x: np.ndarray, layer: MultiHeadAttention) -> tuple[np.ndarray, np.ndarray]:
    """Return a layer's weights [8, t, t] and its output [t, 512]."""
    return np.asarray(layer.weights(x[None])[0]), np.asarray(layer(x[None])[0])


def heads_by_hand(x: np.ndarray, layer: MultiHeadAttention) -> tuple[np.ndarray, np.ndarray]:
    """Return the same by NumPy: the steps of each head, joined and projected."""
    steps = [by_hand(x, x, maps) for maps in projections(layer)]
    joined = np.concatenate([each.output for each in steps], axis=1)
    return np.stack([each.weights for each in steps]), joined @ np.asarray(layer.out.kernel[...])
