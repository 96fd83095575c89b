"""Attention of one head, applied to batches of them in the layout [B, T, N, H].

Query [B, T, N, H], key [B, S, K, H], value [B, S, K, E]. K divides N, and query head n attends with
key head n // (N / K). Each head is a call of a function of one head: vmapped, or one after the
other where they stream on a CPU.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Num

from attn_jax import masks, streaming
from attn_jax.attention import choose
from attn_jax.checks import all_hold, require
from attn_jax.dropout import Dropout
from attn_jax.score_mods import Bias, ScoreMod, chain
from attn_jax.streaming import size_for_heads


def over_heads(
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
    own_slots: Any = None,
    at_a_time: int = 0,
) -> Any:
    """Apply a function of one head, (query [T, H], key, value, **slots), to all of them.

    `rngs` is one PRNG key that all heads share, or an array of them [B, N]. `own_slots` is a pytree
    of arrays [N, …]: each head gets its part as the keyword `own`. `at_a_time` is how many heads a
    loop computes in one turn; 0 is vmap over all of them.
    """
    require_layout(query, key, value)
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
    leaves, form = jax.tree.flatten(own_slots)
    arrays |= {f"own {number}": leaf for number, leaf in enumerate(leaves)}

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
        if own_slots is not None:
            parts = [arrays[f"own {number}"] for number in range(len(leaves))]
            slots["own"] = jax.tree.unflatten(form, parts)
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

    for number, leaf in enumerate(leaves):
        own[f"own {number}"] = (False, True)
        arrays[f"own {number}"] = leaf.reshape(k, n // k, *leaf.shape[1:])

    by_head = {name: 0 if heads else None for name, (_, heads) in own.items()}
    by_example = {name: 0 if batch else None for name, (batch, _) in own.items()}

    def over(count, function, in_axes, turn):  # an axis of one slows XLA's products down on CPUs
        loop = functools.partial(_loop, turn=turn)
        return (loop if at_a_time or count == 1 else jax.vmap)(function, in_axes=in_axes)

    turns = [1, 1, 1]  # the innermost axis that is one takes several in a turn, if that divides it
    level = next((level for level, count in enumerate((n // k, k, b)) if count > 1), 0)
    if at_a_time and (n // k, k, b)[level] % at_a_time == 0:
        turns[level] = at_a_time
    group = over(n // k, one_head, (0, None, None, by_head), turns[0])
    heads = over(k, group, (0, 0, 0, by_head), turns[1])
    examples = over(b, heads, (0, 0, 0, by_example), turns[2])
    by_group = query.reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    results = examples(by_group, key.swapaxes(1, 2), value.swapaxes(1, 2), arrays)

    def whole(result):  # [B, K, G, T, …]
        result = jnp.moveaxis(result, 3, 1)
        result = result.reshape(b, t, n, *result.shape[4:])
        return result if batched else result[0]

    return jax.tree.map(whole, results)


class Choice(NamedTuple):
    """How the heads are computed: arguments of `attention`, and of `over_heads`."""

    implementation: str
    block_size: tuple[int, int] | None
    at_a_time: int


# pairs of one head on a CPU: from where streaming heads outrun dense ones, and up to where two at a
# time keep its cores busier than one
STREAMS, IN_TWOS = 2**16, 2**18


def choose_for_heads(implementation: str, normalizer: Any, query: Array, key: Array) -> Choice:
    """What "auto" stands for where there are heads: on a CPU they stream in a loop.

    There the cache holds a block, and heads stream from 2¹⁶ pairs on, where the normalizer is
    Softmax or Sigmoid; elsewhere it is as for one head. Not where there are several devices: a
    batch that is spread over them is not looped over.
    """
    pairs = query.shape[-3] * key.shape[-3]
    loops = jax.default_backend() == "cpu" and jax.device_count() == 1
    if implementation == "auto" and loops and streaming.is_online(normalizer):
        implementation = "streaming" if pairs >= STREAMS else "dense"
    implementation = choose(implementation, pairs, normalizer)
    streams = implementation == "streaming"
    heads = math.prod(query.shape[:-3]) * query.shape[-2]
    block_size = size_for_heads(heads) if streams and not loops else None
    at_a_time = (2 if pairs <= IN_TWOS else 1) if streams and loops else 0
    return Choice(implementation, block_size, at_a_time)


def _loop(function: Callable, in_axes: tuple, turn: int = 1) -> Callable:
    """jax.vmap as a loop, for a function of arrays and, last, a dict of arrays or Nones.

    Axes are 0 or None. Each turn of the loop makes so many calls, side by side.
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
        if count > turn > 1:

            def several(here):
                own = [jax.tree.map(operator.itemgetter(i), here) for i in range(turn)]
                results = list(map(one, own))
                return jax.tree.map(lambda *each: jnp.stack(each), *results)

            turns = [
                None if each is None else each.reshape(-1, turn, *each.shape[1:]) for each in moving
            ]
            results = jax.lax.map(several, turns)
            return jax.tree.map(lambda each: each.reshape(count, *each.shape[2:]), results)
        if count > 1:
            return jax.lax.map(one, moving)
        only = one([None if each is None else each[0] for each in moving])
        return jax.tree.map(lambda each: each[None], only)  # a loop would copy all of it

    return mapped


def _both(one: masks.MaskFunction, other: masks.MaskFunction) -> masks.MaskFunction:
    return one & other if isinstance(one, masks.Mask) else other & one


def require_layout(query: Array, key: Array, value: Array) -> None:
    """Refuse arrays that are not heads of one batch, one length, one width."""
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
