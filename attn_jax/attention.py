"""Attention: score → score_mod → mask → normalizer → dropout → weighted sum, for one head.

    output_i = Σ_j w_ij value_j,   w_i = normalizer(mask(score_mod(score(query_i, key_j))))

The dense evaluation here writes the equation down and is the specification of every other
implementation. Its contracts:

- **Empty row** (nothing allowed, or every allowed score -inf, or no key): weights 0, output 0,
  logsumexp -inf (the sink if there is one), every derivative exactly 0; never NaN. A NaN at an
  allowed position shows in that row, and so does a score that overflows to +inf: the row is NaN
  (but for `Sigmoid`, whose weight is 1), its logsumexp inf.
- **Masked = deleted**: a masked score never enters arithmetic that can reach a result or a
  derivative, whatever finite number it, its key or its value holds. A key that no query may attend
  to, its value, and a query that may attend to nothing, may hold inf or NaN. Elsewhere inf or NaN
  in a key or a value shows in the rows that may attend to it, and may show in others (0 · NaN).
- **Causal alignment is explicit**: `Causal(offset)`; top-left is 0, bottom-right is k - q.
- **Precision**: half-precision inputs accumulate in float32, float64 stays float64. The output has
  the value's dtype; weights and logsumexp have the accumulation dtype. Narrower floats (float8) are
  formats to store numbers in: as integers are, they are computed and returned in float32.
- **Derivatives** of any mode and order in query, key, value and every array in every slot.
- **Bad input**: `ValueError` that names the argument or the slot's field, the rule, and what came.

No batch, no heads: `jax.vmap` adds them.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from attn_jax import cudnn, masks, streaming
from attn_jax.attention_slots import AttentionSlots
from attn_jax.block_scores import attended, block_scores
from attn_jax.blocks import all_pairs, indices
from attn_jax.checks import as_array, at_least, require
from attn_jax.dropout import Dropout
from attn_jax.normalizers import Normalizer, Softmax, logsumexp, softmax
from attn_jax.precision import accumulate, computable, output_dtype
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import PRODUCTS, ScaledDot, Score, compared

IMPLEMENTATIONS = ("auto", "dense", "streaming", "cudnn")

_CROSSOVER = 2**20  # pairs of queries and keys
_CHEAP = 4  # numbers of a pair that an array [q, k, d] may hold: it costs memory, hardly time


def attention(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k c"],
    value: Num[ArrayLike, "k e"],
    *,
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: masks.MaskFunction | None = None,
    dropout: Dropout | None = None,
    implementation: str = "auto",
    block_size: tuple[int, int] | None = None,
) -> Float[Array, "q e"]:
    """Attend: the weighted sum of the values for each query.

    Args:
      query: one row per query.
      key: one row per key.
      value: one row per key.
      score: how well each query and key agree; a member of `attn_jax.scores` or a function that
        compares each pair by itself, as score_mod and mask are functions of one pair.
      normalizer: from scores to weights; a member of `attn_jax.normalizers` or a function.
      score_mod: what is done to the scores before the mask.
      mask: True where a query may attend to a key.
      dropout: a `Dropout`, on the weights.
      implementation: how. "dense" writes the [q, k] array down; "streaming" evaluates the same
        block by block in linear memory, for all normalizers here (it sums values before it divides
        them: beyond 1/k of the largest number they overflow); "cudnn" is NVIDIA's kernel for scaled
        dots and softmax in half precision; "auto" is streaming from 2²⁰ pairs of queries and keys
        on, or 2²² numbers that the score holds of them, where the normalizer streams, else dense.
        `jax.experimental.checkify` sees inside "dense" only.
      block_size: (queries, keys) per block, static; vmapped heads hold a block each. All queries in
        a block stay on their devices where they are spread over several. The dense implementation
        has no blocks.

    Raises:
      ValueError: an argument or a slot's field does not fit; the message names it.

    >>> attention(jnp.zeros((1, 2)), jnp.zeros((2, 2)), jnp.array([[1.0], [3.0]])).tolist()
    [[2.0]]
    """
    slots = AttentionSlots(score, normalizer, score_mod, mask, dropout)
    how = {"implementation": implementation, "block_size": block_size}
    return attend(query, key, value, slots, **how)[0]


def attention_weights(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k c"],
    *,
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: masks.MaskFunction | None = None,
) -> Float[Array, "q k"]:
    """The weights by which `attention` sums the values.

    >>> attention_weights(jnp.zeros((1, 2)), jnp.zeros((2, 2))).tolist()
    [[0.5, 0.5]]
    """
    return weigh(query, key, AttentionSlots(score, normalizer, score_mod, mask))


def attention_and_logsumexp(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k c"],
    value: Num[ArrayLike, "k e"],
    *,
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: masks.MaskFunction | None = None,
    dropout: Dropout | None = None,
    implementation: str = "auto",
    block_size: tuple[int, int] | None = None,
) -> tuple[Float[Array, "q e"], Float[Array, " q"]]:
    """`attention` and the log of each row's softmax denominator, a sink included.

    Partial results over disjoint keys go together by `merge` (without a sink, or with the sink in
    one of them).

    >>> query, key, value = jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.ones((1, 1))
    >>> [each.tolist() for each in attention_and_logsumexp(query, key, value)]
    [[[1.0]], [0.0]]
    """
    normalizer = Softmax() if normalizer is softmax else normalizer
    require(isinstance(normalizer, Softmax), "normalizer", "be a Softmax", normalizer)
    slots = AttentionSlots(score, normalizer, score_mod, mask, dropout)
    how = {"implementation": implementation, "block_size": block_size}
    return attend(query, key, value, slots, **how, logsumexp=True)


def merge(
    outputs: Num[ArrayLike, "p q e"], logsumexps: Num[ArrayLike, "p q"]
) -> tuple[Float[Array, "q e"], Float[Array, " q"]]:
    """Join p partial attentions over disjoint keys into the one over all of them.

    output = Σ_p softmax(logsumexps)_p outputs_p; a part that saw no key (-inf) counts for nothing,
    and where all of them are empty the output is 0 and the logsumexp -inf. (Milakov & Gimelshein
    2018; Dao 2023, sec. 3.1.)

    >>> output, lse = merge(jnp.array([[[1.0]], [[3.0]]]), jnp.zeros((2, 1)))
    >>> output.tolist()
    [[2.0]]
    """
    outputs, logsumexps = _real(outputs, "outputs"), _real(logsumexps, "logsumexps")
    require(
        outputs.ndim == 3 and logsumexps.shape == outputs.shape[:2],
        "outputs and logsumexps",
        "have shapes [p, q, e] and [p, q]",
        f"outputs {outputs.shape}, logsumexps {logsumexps.shape}",
    )
    present = (logsumexps != -jnp.inf)[..., None]
    parts = jnp.where(present, outputs, 0)
    weights, parts = accumulate(softmax(logsumexps, axis=0)[..., None], parts)
    merged = jnp.sum(weights * parts, axis=0)
    return merged.astype(output_dtype(outputs)), logsumexp(logsumexps, axis=0)


def choose(implementation: str, pairs: int, normalizer: Normalizer) -> str:
    """What "auto" stands for: streaming from 2²⁰ pairs on if the normalizer streams, else dense.

    >>> choose("auto", 2**20, Softmax()), choose("auto", 2**20 - 1, Softmax())
    ('streaming', 'dense')
    """
    if implementation != "auto":
        return implementation
    streams = at_least(pairs, _CROSSOVER) and streaming.has_form(normalizer)
    return "streaming" if streams else "dense"


def pairs_of(score: Score, query: Any, key: Any) -> int:
    """Pairs of queries and keys, as many more as the score holds more than 4 numbers of each.

    Of query and key the shapes and dtypes count. A `Kernel` of more than 8 features holds [q, k, d]
    numbers, and so do `Additive` and what `pairwise` makes.

    >>> pairs_of(ScaledDot(), jnp.ones((3, 2)), jnp.ones((5, 2)))
    15
    """
    (q, d), (k, c) = query.shape, key.shape
    pairs = q * k
    if isinstance(score, PRODUCTS) or not isinstance(pairs, int):  # symbolic in `jax.export`
        return pairs
    if pairs >= _CROSSOVER or pairs * max(d, c) < _CROSSOVER * _CHEAP:  # it makes no difference
        return pairs
    try:
        numbers = streaming.numbers_per_pair(score, query, key)
    except (TypeError, ValueError):  # a function that knows these shapes alone
        numbers = 1
    return max(pairs, pairs * numbers // _CHEAP)


def attend(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k c"],
    value: Num[ArrayLike, "k e"],
    slots: AttentionSlots,
    *,
    implementation: str = "auto",
    block_size: tuple[int, int] | None = None,
    logsumexp: bool = False,
) -> tuple[Float[Array, "q e"], Float[Array, " q"] | None]:
    """`attention`, its slots being one value; and the logsumexp, or None where it is not wanted."""
    _require_choice(implementation, block_size)
    query, key, value = _arrays(query, key, value)
    slots.check(query, key)
    how = {"block_size": block_size, "logsumexp": logsumexp}
    if implementation == "cudnn":
        query, key, value = (each[None, :, None] for each in (query, key, value))
        return cudnn.attend(query, key, value, slots, **how)[0, :, 0], None
    pairs = pairs_of(slots.score, query, key) if implementation == "auto" else 0
    if choose(implementation, pairs, slots.normalizer) == "streaming":
        slots = dataclasses.replace(slots, normalizer=streaming.as_slot(slots.normalizer))
        if query.shape[0] * key.shape[0] != 0:
            return streaming.stream(query, key, value, slots, **how)
    scores, allowed = _scores(query, key, slots)
    if allowed is not None:
        value = jnp.where(attended(allowed), value, 0)
    output = _weighted_sum(_normalized(scores, allowed, slots.normalizer), value, slots.dropout)
    if not logsumexp:
        return output, None
    assert isinstance(slots.normalizer, Softmax)
    return output, slots.normalizer.logsumexp(scores, where=allowed)


def weigh(
    query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k c"], slots: AttentionSlots
) -> Float[Array, "q k"]:
    """`attention_weights`, its slots being one value."""
    query, key, _ = _arrays(query, key)
    slots.check(query, key)
    return _normalized(*_scores(query, key, slots), slots.normalizer)


def _require_choice(implementation: str, block_size: tuple[int, int] | None) -> None:
    names = ", ".join(map(repr, IMPLEMENTATIONS))
    known = implementation in IMPLEMENTATIONS
    require(known, "implementation", f"be one of {names}", repr(implementation))
    proper = block_size is None or (
        isinstance(block_size, tuple)
        and len(block_size) == 2
        and all(isinstance(size, int) and size > 0 for size in block_size)
    )
    require(proper, "block_size", "be two positive integers (queries, keys)", block_size)


def _arrays(query: Any, key: Any, value: Any = None) -> tuple[Array, Array, Array | None]:
    """The arrays, each [rows, features], with as many values as keys."""
    query, key = _real(query, "query"), _real(key, "key")
    value = None if value is None else _real(value, "value")
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array is None:
            continue
        way_out = ""
        if array.ndim > 2:
            way_out = " (for batches and heads: jax.vmap, or attn_jax.dot_product_attention)"
        require(array.ndim == 2, name, f"have two axes, rows and features{way_out}", array)
    require(
        value is None or key.shape[0] == value.shape[0],
        "key and value",
        "have the same number of rows",
        value is not None and f"key {key.shape}, value {value.shape}",
    )
    return query, key, value


def _real(array: Any, name: str) -> Array:
    """An array of real numbers, in a dtype that JAX computes in."""
    array = as_array(array, name)
    real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    require(real, name, "hold real numbers", array)
    return computable(array)


def _scores(
    query: Num[Array, "q d"], key: Num[Array, "k c"], slots: AttentionSlots
) -> tuple[Float[Array, "q k"], Bool[Array, "q k"] | None]:
    """Modified scores and what the mask allows."""
    q, k = query.shape[0], key.shape[0]
    allowed = None if slots.mask is None else masks.dense(slots.mask, q, k)
    options = {"score": slots.score, "score_mod": slots.score_mod, "allowed": allowed}
    return block_scores(*compared(slots.score, query, key), all_pairs(q, k), **options), allowed


def _normalized(
    scores: Float[Array, "q k"], allowed: Bool[Array, "q k"] | None, normalizer: Normalizer
) -> Float[Array, "q k"]:
    ours = streaming.has_form(normalizer)  # keeps to `where` by itself, at no cost in memory
    if allowed is not None and not ours:
        # `where` carries the mask. The scores behind it weigh nothing and are finite, squared too:
        # a user's normalizer may scale them without inf · 0 in its derivative.
        low = -math.sqrt(float(jnp.finfo(scores.dtype).max))
        scores = jnp.where(allowed, scores, low)
    weights = jnp.asarray(normalizer(scores, where=allowed))
    require(weights.shape == scores.shape, "normalizer", f"return shape {scores.shape}", weights)
    return weights if allowed is None or ours else jnp.where(allowed, weights, 0.0)


def _weighted_sum(
    weights: Float[Array, "q k"], value: Num[Array, "k e"], dropout: Dropout | None
) -> Float[Array, "q e"]:
    if dropout is not None:
        weights = dropout(weights, *indices(*weights.shape))
    total = jnp.einsum("qk,ke->qe", *accumulate(weights, value))
    return total.astype(output_dtype(value))
