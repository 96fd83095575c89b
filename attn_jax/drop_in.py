"""Attention in other libraries' signatures: jax.nn's, and Flax's `attention_fn`.

Layout: query [B, T, N, H], key [B, S, K, H], value [B, S, K, E] for batch B, queries T, keys S, N
query heads, K key heads, features H and value features E (E ≠ H is fine). Without a batch, the
leading axis is left out everywhere.

- **Grouped heads** are interleaved: K divides N, and query head n attends with key head
  n // (N / K). K = 1 is multi-query attention.
- **bias and mask** broadcast by one rule: their axes align from the right with [B, N, T, S], and
  each is 1 or that size. So [S] and [B, 1, 1, S] are key biases, [T, S] serves all heads; more axes
  than the scores have, or other sizes, are refused.
- **Masks combine**: mask, causal, window and lengths each hold, alone or together.
- A query that may attend to nothing gets 0, and so do its derivatives.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Integer, Num

from attn_jax import masks
from attn_jax.attention import weigh
from attn_jax.attention_slots import AttentionSlots, require_slots
from attn_jax.checks import as_array, require, require_integer
from attn_jax.dropout import Dropout
from attn_jax.heads import choose_for_heads, over_heads, require_layout
from attn_jax.normalizers import Normalizer, Softmax
from attn_jax.precision import computable, output_dtype
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score


def dot_product_attention(
    query: Num[ArrayLike, "*B T N H"],
    key: Num[ArrayLike, "*B S K H"],
    value: Num[ArrayLike, "*B S K E"],
    bias: Num[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    scale: Num[ArrayLike, ""] | None = None,
    is_causal: bool = False,
    query_seq_lengths: Integer[ArrayLike, "..."] | None = None,
    key_value_seq_lengths: Integer[ArrayLike, "..."] | None = None,
    local_window_size: Any = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """softmax(scale · query keyᵀ + bias, where mask) value: `jax.nn.dot_product_attention`.

    The module's docstring gives the layout, the grouping of heads and the broadcasting rule.

    Args:
      query: [B, T, N, H] or [T, N, H].
      key: [B, S, K, H] or [S, K, H].
      value: [B, S, K, E] or [S, K, E].
      bias: added to the scores; broadcasts to [B, N, T, S].
      mask: boolean, True = may attend; broadcasts to [B, N, T, S].
      scale: 1/√H by default.
      is_causal: query i sees keys j ≤ i (top-left alignment, also where T ≠ S).
      query_seq_lengths: how many queries of each example there are [B]; the rest get 0.
      key_value_seq_lengths: how many keys of each example there are [B].
      local_window_size: (left, right), i - left ≤ j ≤ i + right; one number is both.
      implementation: as in `attn_jax.attention`; None is "auto", and so is jax.nn's "xla".
      return_residual: also return the logsumexp of the scores [B, T, N], which has a gradient; in
        the key's dtype, as jax.nn has it (`attention_and_logsumexp` does not round it).

    Returns:
      [B, T, N, E] in the value's dtype; with `return_residual`, that and the logsumexp.

    Raises:
      ValueError: an argument does not fit; the message names it.

    >>> x = jnp.zeros((1, 2, 1, 4))
    >>> dot_product_attention(x, x, x + 1.0, key_value_seq_lengths=jnp.array([0])).sum().item()
    0.0
    """
    named = {"query": query, "key": key, "value": value}
    query, key, value = (computable(as_array(array, name)) for name, array in named.items())
    lengths = (query_seq_lengths, key_value_seq_lengths)
    implementation = "auto" if implementation in (None, "xla") else implementation
    causal = masks.Causal() if is_causal else None
    window = None if local_window_size is None else masks.Window(*_sides(local_window_size))
    slots = AttentionSlots(ScaledDot(scale), Softmax(), mask=masks.combined([causal, window]))
    require_layout(query, key, value)
    chosen = choose_for_heads(implementation, slots.normalizer, query, key)
    head = chosen.head(logsumexp=return_residual)
    arrays = {"bias": bias, "mask": mask, "lengths": lengths}
    results = over_heads(head, query, key, value, slots, **arrays, **chosen.turns)
    if not return_residual:
        return results
    output, logsumexp = results
    return output, logsumexp.astype(output_dtype(key))


def flax_attention_fn(
    *,
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: masks.MaskFunction | None = None,
    implementation: str = "auto",
) -> Callable[..., Array]:
    """Make an `attention_fn` for `flax.nnx.MultiHeadAttention` from slots.

    Its masks (any shape that broadcasts, also of 0 and 1), `is_causal`, grouped heads, dropout
    (`broadcast_dropout` shares one fate over batch and heads), its cache and `sow_weights` work as
    in Flax; a query that may attend to nothing gets 0. Args are those of `attn_jax.attention`.

    >>> from flax import nnx
    >>> layer = nnx.MultiHeadAttention(
    ...     num_heads=2, in_features=4, decode=False, rngs=nnx.Rngs(0),
    ...     attention_fn=flax_attention_fn(normalizer=Softmax(sink=0.0)),
    ... )
    >>> layer(jnp.ones((3, 5, 4))).shape
    (3, 5, 4)
    """
    given = AttentionSlots(score, normalizer, score_mod, mask)
    require_slots(mask=mask)

    def attention_fn(
        query: Num[Array, "*B T N H"],
        key: Num[Array, "*B S K H"],
        value: Num[Array, "*B S K E"],
        bias: Num[Array, "..."] | None = None,
        mask: Num[Array, "..."] | Bool[Array, "..."] | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        promote_dtype: Any = None,
        is_causal: bool = False,
    ) -> Array:
        del promote_dtype  # attention accumulates as it should whatever the dtypes
        if dtype is not None:
            query, key, value = (each.astype(dtype) for each in (query, key, value))
        query, key, value = map(computable, (query, key, value))
        batch = _require_batch(query, key, value)
        flat = [each.reshape(-1, *each.shape[-3:]) for each in (query, key, value)]
        arrays = {"bias": bias, "mask": None if mask is None else mask.astype(bool)}
        arrays = {name: _flat_batch(each, batch, name) for name, each in arrays.items()}
        causal = masks.Causal() if is_causal else None
        slots = dataclasses.replace(given, mask=masks.combined([causal, given.mask]))
        rngs = None
        if dropout_rate != 0 and not deterministic:
            needs = "be a PRNG key where dropout_rate is not 0 and deterministic is False"
            require(dropout_rng is not None, "dropout_rng", needs, dropout_rng)
            Dropout(dropout_rate, dropout_rng)  # refuses an impossible rate
            rngs = dropout_rng
            if not broadcast_dropout:
                rngs = jax.random.split(dropout_rng, (flat[0].shape[0], query.shape[-2]))
        chosen = choose_for_heads(implementation, normalizer, query, key, score)

        def head_weights(query, key, value, slots):
            return weigh(query, key, slots)

        dropout = {"dropout_rate": dropout_rate, "rngs": rngs}
        with _precision(precision):
            where = arrays | dropout | chosen.turns
            output = over_heads(chosen.head(), *flat, slots=slots, **where)
            if module is not None:
                weights = over_heads(head_weights, *flat, slots=slots, **arrays)
                weights = jnp.swapaxes(weights, -2, -3)  # [B, N, T, S], as Flax has it
                weights = weights.reshape(*batch, *weights.shape[1:]).astype(query.dtype)
                _sow(module, weights)
        return output.reshape(*batch, *output.shape[1:])

    return attention_fn


def _sow(module: Any, weights: Array) -> None:
    from flax import nnx  # only who passes a module has a use for Flax

    module.sow(nnx.Intermediate, "attention_weights", weights)


def _sides(size: Any) -> tuple[Any, Any]:
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    require(len(sides) == 2, "local_window_size", "be one integer or (left, right)", size)
    for side in sides:
        if side is not None:
            require_integer(side, "local_window_size")
    return sides


def _precision(precision: Any) -> contextlib.AbstractContextManager:
    """JAX's matmul precision for what happens inside, from what Flax accepts."""
    if precision is None:
        return contextlib.nullcontext()
    if isinstance(precision, (tuple, list)):
        same = len(set(precision)) == 1
        require(same, "precision", "be one, or the same for both operands", precision)
        precision = precision[0]
    if isinstance(precision, jax.lax.Precision):
        precision = precision.name.lower()
    return jax.default_matmul_precision(precision)


def _require_batch(query: Array, key: Array, value: Array) -> tuple[int, ...]:
    """The batch axes, any number of them, that query, key and value have in common."""
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    for name, array in (("query", query), ("key", key), ("value", value)):
        require(array.ndim >= 3, name, "have shape [*batch, length, heads, features]", shapes)
    same = query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
    require(same, "query, key and value", "have the same batch axes", shapes)
    return query.shape[:-3]


def _flat_batch(array: Array | None, batch: tuple[int, ...], name: str) -> Array | None:
    """An array that broadcasts to [*batch, N, T, S], with the batch axes made one."""
    if array is None or array.ndim <= 3:
        return array
    own = array.shape[:-3]
    fits = len(own) <= len(batch) and all(
        got in (1, size) for got, size in zip(own[::-1], batch[::-1], strict=False)
    )
    require(fits, name, f"align from the right with [*batch, N, T, S], batch {batch}", array)
    if all(size == 1 for size in own):
        return array.reshape(1, *array.shape[-3:])
    return jnp.broadcast_to(array, batch + array.shape[-3:]).reshape(-1, *array.shape[-3:])
