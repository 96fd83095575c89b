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
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, Num

from attn_jax import masks
from attn_jax.attention import attention, attention_and_logsumexp, attention_weights, choose
from attn_jax.checks import all_hold, require, require_function
from attn_jax.dropout import Dropout
from attn_jax.normalizers import Softmax
from attn_jax.score_mods import Bias, ScoreMod, chain
from attn_jax.scores import ScaledDot, Score
from attn_jax.streaming import size_for_heads


def dot_product_attention(
    query: Num[ArrayLike, "*B T N H"],
    key: Num[ArrayLike, "*B S K H"],
    value: Num[ArrayLike, "*B S K E"],
    bias: Num[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    *,
    scale: Num[ArrayLike, ""] | None = None,
    is_causal: bool = False,
    query_seq_lengths: Int[ArrayLike, "..."] | None = None,
    key_value_seq_lengths: Int[ArrayLike, "..."] | None = None,
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
      return_residual: also return the logsumexp of the scores [B, T, N], which has a gradient.

    Returns:
      [B, T, N, E] in the value's dtype; with `return_residual`, that and the logsumexp.

    Raises:
      ValueError: an argument does not fit; the message names it.

    >>> x = jnp.zeros((1, 2, 1, 4))
    >>> dot_product_attention(x, x, x + 1.0, key_value_seq_lengths=jnp.array([0])).sum().item()
    0.0
    """
    query, key, value = map(jnp.asarray, (query, key, value))
    lengths = (query_seq_lengths, key_value_seq_lengths)
    implementation = "auto" if implementation in (None, "xla") else implementation
    structure = [masks.Causal()] if is_causal else []
    if local_window_size is not None:
        structure.append(masks.Window(*_sides(local_window_size)))
    _require_layout(query, key, value)
    one_by_one = _loops(implementation, Softmax(), query, key)
    heads = math.prod(query.shape[:-3]) * query.shape[-2]
    head = functools.partial(
        attention_and_logsumexp if return_residual else attention,
        score=ScaledDot(scale),
        implementation=implementation,
        block_size=None if one_by_one else size_for_heads(heads),
    )
    arrays = query, key, value, bias, mask
    return _over_heads(head, *arrays, lengths, structure, one_by_one=one_by_one)


def flax_attention_fn(
    *,
    score: Score = ScaledDot(),
    normalizer: Any = Softmax(),
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
    slots = {"score": score, "normalizer": normalizer}
    own_mask, own_mod = mask, score_mod
    if own_mask is not None:
        form = "a function (query_index, key_index) -> bool; masks.Dense(array) wraps an array"
        require_function(own_mask, "mask", form)

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
        batch = _require_batch(query, key, value)
        flat = [each.reshape(-1, *each.shape[-3:]) for each in (query, key, value)]
        arrays = {"bias": bias, "mask": None if mask is None else mask.astype(bool)}
        arrays = {name: _flat_batch(each, batch, name) for name, each in arrays.items()}
        structure = [masks.Causal()] if is_causal else []
        structure += [] if own_mask is None else [own_mask]
        rngs = None
        if dropout_rate != 0 and not deterministic:
            needs = "be a PRNG key where dropout_rate is not 0 and deterministic is False"
            require(dropout_rng is not None, "dropout_rng", needs, dropout_rng)
            Dropout(dropout_rate, dropout_rng)  # refuses an impossible rate
            rngs = dropout_rng
            if not broadcast_dropout:
                rngs = jax.random.split(dropout_rng, (flat[0].shape[0], query.shape[-2]))
        common = {"structure": structure, "score_mod": own_mod}

        def head(query, key, value, **options):
            return attention(query, key, value, **slots, implementation=implementation, **options)

        def head_weights(query, key, value, **options):
            return attention_weights(query, key, **slots, **options)

        dropout = {"dropout_rate": dropout_rate, "rngs": rngs}
        one_by_one = _loops(implementation, normalizer, query, key)
        with _precision(precision):
            output = _over_heads(head, *flat, **arrays, **common, **dropout, one_by_one=one_by_one)
            if module is not None:
                weights = _over_heads(head_weights, *flat, **arrays, **common)
                weights = jnp.swapaxes(weights, -2, -3)  # [B, N, T, S], as Flax has it
                weights = weights.reshape(*batch, *weights.shape[1:]).astype(query.dtype)
                _sow(module, weights)
        return output.reshape(*batch, *output.shape[1:])

    return attention_fn


def _sow(module: Any, weights: Array) -> None:
    from flax import nnx  # only who passes a module has a use for Flax

    module.sow(nnx.Intermediate, "attention_weights", weights)


def _over_heads(
    head: Callable[..., Any],
    query: Num[Array, "*B T N H"],
    key: Num[Array, "*B S K H"],
    value: Num[Array, "*B S K E"],
    bias: Num[ArrayLike, "..."] | None,
    mask: Bool[ArrayLike, "..."] | None,
    lengths: tuple[Any, Any] = (None, None),
    structure: Sequence[masks.MaskFunction] = (),
    score_mod: ScoreMod | None = None,
    dropout_rate: float = 0.0,
    rngs: Array | None = None,
    one_by_one: bool = False,
) -> Any:
    """Apply a function of one head, (query [T, H], key, value, **slots), to all of them.

    `rngs` is one PRNG key that all heads share, or an array of them [B, N]. `one_by_one` is a loop
    over the heads instead of vmap.
    """
    _require_layout(query, key, value)
    batched = query.ndim == 4
    if not batched:
        query, key, value = query[None], key[None], value[None]
    b, t, n, h = query.shape
    s, k = key.shape[1:3]
    if bias is not None:
        bias = jnp.asarray(bias)
        boolean = bias.dtype == bool
        require(not boolean, "bias", "hold numbers (mask takes True = may attend)", bias)
        real = not jnp.issubdtype(bias.dtype, jnp.complexfloating)
        require(real, "bias", "hold real numbers", bias)
    if mask is not None:
        mask = jnp.asarray(mask)
        require(mask.dtype == bool, "mask", "be boolean (bias adds numbers to scores)", mask)
    arrays = {
        "bias": _aligned(bias, (b, n, t, s), batched, "bias"),
        "mask": _aligned(mask, (b, n, t, s), batched, "mask"),
        "query_length": _lengths(lengths[0], b, batched, "query_seq_lengths"),
        "key_length": _lengths(lengths[1], b, batched, "key_value_seq_lengths"),
        "rng": rngs,
    }

    def one_head(query, key, value, arrays):
        allowed = list(structure)
        if arrays["query_length"] is not None or arrays["key_length"] is not None:
            key_length = s if arrays["key_length"] is None else arrays["key_length"]
            allowed.append(masks.Padding(key_length, arrays["query_length"]))
        if arrays["mask"] is not None:
            allowed.append(masks.Dense(arrays["mask"]))
        mods = [] if arrays["bias"] is None else [Bias(arrays["bias"])]
        mods += [] if score_mod is None else [score_mod]
        slots = {"score_mod": chain(*mods) if mods else None}
        slots["mask"] = functools.reduce(_both, allowed) if allowed else None
        if arrays["rng"] is not None:
            slots["dropout"] = Dropout(dropout_rate, arrays["rng"])
        return head(query, key, value, **slots)

    # arrays keep the axes that they have for themselves: batch, key head, head in the group
    own = dict.fromkeys(arrays, (False, False))
    for name in ("bias", "mask"):
        if arrays[name] is not None:
            own[name] = (arrays[name].shape[0] != 1, arrays[name].shape[1] != 1)
            arrays[name] = _split_heads(arrays[name], own[name], k)
    for name in ("query_length", "key_length"):
        own[name] = (arrays[name] is not None, False)
    if rngs is not None and rngs.shape[:2] == (b, n):
        own["rng"] = (True, True)
        arrays["rng"] = rngs.reshape(b, k, n // k, *rngs.shape[2:])

    by_head = {name: 0 if heads else None for name, (_, heads) in own.items()}
    by_example = {name: 0 if batch else None for name, (batch, _) in own.items()}

    def over(count, function, in_axes):  # an axis of one slows XLA's products down on CPUs
        mapped = _loop if one_by_one or count == 1 else jax.vmap
        return mapped(function, in_axes=in_axes)

    group = over(n // k, one_head, (0, None, None, by_head))
    heads = over(k, group, (0, 0, 0, by_head))
    examples = over(b, heads, (0, 0, 0, by_example))
    by_group = query.reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    results = examples(by_group, key.swapaxes(1, 2), value.swapaxes(1, 2), arrays)

    def whole(result):  # [B, K, G, T, …]
        result = jnp.moveaxis(result, 3, 1)
        result = result.reshape(b, t, n, *result.shape[4:])
        return result if batched else result[0]

    return jax.tree.map(whole, results)


def _loop(function: Callable, in_axes: tuple) -> Callable:
    """jax.vmap as a loop, for a function of arrays and, last, a dict of arrays or Nones.

    Axes are 0 or None.
    """
    *axes, by_name = in_axes

    def mapped(*arguments):
        *arrays, named = arguments
        named = {name: each for name, each in named.items() if each is not None}
        every = [*arrays, *named.values()]
        moves = [axis == 0 for axis in [*axes, *(by_name[name] for name in named)]]

        def one(here):
            own = [each if at is None else at for each, at in zip(every, here, strict=True)]
            rest = dict.fromkeys(by_name) | dict(zip(named, own[len(arrays) :], strict=True))
            return function(*own[: len(arrays)], rest)

        moving = [each if moves else None for each, moves in zip(every, moves, strict=True)]
        (count,) = {len(each) for each in moving if each is not None}
        if count > 1:
            return jax.lax.map(one, moving)
        only = one([None if each is None else each[0] for each in moving])
        return jax.tree.map(lambda each: each[None], only)  # a loop would copy all of it

    return mapped


def _loops(implementation: str, normalizer: Any, query: Array, key: Array) -> bool:
    """Whether the heads stream one by one: on a CPU, whose cache then holds the block.

    Not where there are several devices: a batch that is spread over them is not looped over.
    """
    pairs = query.shape[-3] * key.shape[-3]
    streams = choose(implementation, pairs, normalizer) == "streaming"
    return streams and jax.default_backend() == "cpu" and jax.device_count() == 1


def _both(one: masks.MaskFunction, other: masks.MaskFunction) -> masks.MaskFunction:
    return one & other if isinstance(one, masks.Mask) else other & one


def _require_layout(query: Array, key: Array, value: Array) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    for name, array in (("query", query), ("key", key), ("value", value)):
        require(
            array.ndim in (3, 4) and array.ndim == query.ndim,
            name,
            "have shape [B, length, heads, features], or all three without the B",
            shapes,
        )
    require(
        query.shape[:-3] == key.shape[:-3] == value.shape[:-3],
        "query, key and value",
        "have the same batch size",
        shapes,
    )
    same = key.shape[-3:-1] == value.shape[-3:-1]
    require(same, "key and value", "have the same length and heads", shapes)
    rule = "have the same number of features"
    require(query.shape[-1] == key.shape[-1], "query and key", rule, shapes)
    n, k = query.shape[-2], key.shape[-2]
    require(k > 0 and n % k == 0, "query heads", f"be a multiple of the {k} key heads", shapes)


def _aligned(
    array: Array | None, shape: tuple[int, int, int, int], batched: bool, name: str
) -> Array | None:
    """The array as [B or 1, N or 1, T, S], by the module's broadcasting rule."""
    if array is None:
        return None
    fits = 1 <= array.ndim <= 4 and all(
        got in (1, size) for got, size in zip(array.shape[::-1], shape[::-1], strict=False)
    )
    axes = shape if batched else shape[1:]
    letters = "[B, N, T, S]" if batched else "[N, T, S]"
    require(fits, name, f"align from the right with {letters} = {list(axes)}", array)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return jnp.broadcast_to(array, array.shape[:2] + shape[2:])


def _split_heads(array: Array, own: tuple[bool, bool], key_heads: int) -> Array:
    """[B or 1, N or 1, T, S] as [B, K, G, T, S] without the axes that it shares."""
    batch, heads = own
    split = (array.shape[0], key_heads, array.shape[1] // key_heads, *array.shape[2:])
    array = array.reshape(split) if heads else array[:, 0]
    return array if batch else array[0]


def _lengths(lengths: Any, batch: int, batched: bool, name: str) -> Array | None:
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    whole = jnp.issubdtype(lengths.dtype, jnp.integer)
    fits = lengths.shape == (batch,) or (lengths.shape == () and not batched)
    rule = f"be integers, one for each of the {batch} examples"
    require(whole and fits, name, rule, lengths)
    require(all_hold(lengths, lambda v: v >= 0), name, "not be negative", lengths)
    return lengths.reshape(batch)


def _sides(size: Any) -> tuple[int | None, int | None]:
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    whole = all(side is None or isinstance(side, (int, np.integer)) for side in sides)
    proper = len(sides) == 2 and whole and size is not None
    require(proper, "local_window_size", "be one integer or (left, right)", size)
    return tuple(None if side is None else int(side) for side in sides)


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
