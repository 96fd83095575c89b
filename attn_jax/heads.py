"""Attention of one head, applied to batches of them in the layout [B, T, N, H].

Query [B, T, N, H], key [B, S, K, H], value [B, S, K, E]. K divides N, and query head n attends with
key head n // (N / K). Each head is a call of a function of one head: vmapped, or one after the
other where they stream on a CPU.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from attn_jax import cudnn, masks, streaming
from attn_jax.attention import attend, choose, pairs_of
from attn_jax.attention_slots import AttentionSlots
from attn_jax.checks import all_hold, as_array, at_least, require
from attn_jax.dropout import Dropout
from attn_jax.meshes import beside
from attn_jax.normalizers import Normalizer
from attn_jax.precision import computable
from attn_jax.score_mods import Bias, chain
from attn_jax.scores import ScaledDot, Score
from attn_jax.slots import compiled, extra_axes, ranks_of
from attn_jax.streaming import size_for_heads


class Part(NamedTuple):
    """An array of which each head takes its part: its examples' or its own, if they have one."""

    array: Array
    examples: bool
    heads: bool

    @property
    def axes(self) -> int:
        """How many leading axes choose an example, [B], and a head, [K, G]."""
        return self.examples + 2 * self.heads


def over_heads(
    head: Callable[..., Any],
    query: Num[Array, "*B T N H"],
    key: Num[Array, "*B S K C"],
    value: Num[Array, "*B S K E"],
    slots: AttentionSlots,
    *,
    bias: Num[ArrayLike, "..."] | None = None,
    mask: Bool[ArrayLike, "..."] | None = None,
    lengths: tuple[Any, Any] = (None, None),
    dropout_rate: float = 0.0,
    rngs: Array | None = None,
    own_slots: Any = None,
    at_a_time: int = 0,
    at_once: bool = False,
) -> Any:
    """Apply a function of one head, (query [T, H], key, value, slots), to all of them.

    It gets the slots with its own bias, mask, lengths and dropout in them; an array in a slot that
    has more axes than one head's (`slots.ranks_of`) is [N, …] or [B, N, …], each 1 or that size.
    `lengths` are those of
    queries and keys [B]. `rngs` is one PRNG key that all heads share, or an array of them [B, N].
    `own_slots` is a pytree of arrays [N, …]: each head gets its part as the keyword `own`.
    `at_a_time` is how many heads a loop computes in one turn; 0 is vmap over all. A function that
    takes all heads `at_once` gets the arrays as they are, with a batch, and the slots of the first
    head.
    """
    require_layout(query, key, value, same_features=False)
    batched = query.ndim == 4
    if not batched:
        query, key, value = query[None], key[None], value[None]
    b, t, n, h = query.shape
    s, k = key.shape[1:3]
    pairs = {"shape": (b, n, t, s), "key_heads": k, "batched": batched}
    parts = {
        "bias": _of_pairs(_numbers(bias), "bias", **pairs),
        "mask": _of_pairs(_booleans(mask), "mask", **pairs),
        "query_length": _lengths(lengths[0], b, batched, "query_seq_lengths"),
        "key_length": _lengths(lengths[1], b, batched, "key_value_seq_lengths"),
        "rng": _rngs(rngs, b, n, k),
        **{f"own {i}": _of_heads(leaf, k) for i, leaf in enumerate(jax.tree.leaves(own_slots))},
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    of_slots = _of_slots(slots, (b, n), k, h)
    parts |= of_slots
    if at_once:
        rule = "be the same for all heads where implementation is 'cudnn'"
        require(not of_slots, "arrays in slots", rule, f"{len(of_slots)} that are not")
        first = {
            name: part.array[(0,) * (part.examples + 2 * part.heads)]
            for name, part in parts.items()
        }
        own = jax.tree.map(lambda _: 0, own_slots)
        slots, own = _of_one_head(first, s, slots, dropout_rate, own)
        result = head(query, key, value, slots, **own)
        return result if batched else result[0]
    by_group = query.reshape(b, t, k, n // k, h).transpose(0, 2, 3, 1, 4)
    arrays = {name: part.array for name, part in parts.items()}
    of_examples = {name: part.array for name, part in parts.items() if part.examples}
    by_group, key, value, *own = beside([by_group, key, value, *of_examples.values()])
    arrays |= dict(zip(of_examples, own, strict=True))
    inputs = by_group, key.swapaxes(1, 2), value.swapaxes(1, 2), arrays
    axes = {name: (part.examples, part.heads) for name, part in parts.items()}
    own = jax.tree.map(lambda _: 0, own_slots)  # their structure
    how = head, axes, (n // k, k, b), at_a_time, s, slots, dropout_rate, own
    # a loop is compiled at each call; traced, it is a part of what its caller compiles
    traced = any(isinstance(each, jax.core.Tracer) for each in jax.tree.leaves((inputs, how)))
    loops = at_a_time and not traced
    results = compiled(_every_head, *how)(*inputs) if loops else _every_head(*inputs, *how)

    def whole(result):  # [B, K, G, T, …]
        result = jnp.moveaxis(result, 3, 1)
        result = result.reshape(b, t, n, *result.shape[4:])
        return result if batched else result[0]

    return jax.tree.map(whole, results)


def _every_head(
    query, key, value, arrays, head, axes, counts, at_a_time, keys, slots, dropout_rate, own
):
    def one_head(query, key, value, arrays):
        of_head, options = _of_one_head(arrays, keys, slots, dropout_rate, own)
        return head(query, key, value, of_head, **options)

    return _nested(one_head, counts, axes, at_a_time)(query, key, value, arrays)


def _of_one_head(
    arrays: dict[str, Array],
    keys: int,
    slots: AttentionSlots,
    dropout_rate: Float[ArrayLike, ""],
    own: Any,
) -> tuple[AttentionSlots, dict[str, Any]]:
    """The slots with one head's parts of the arrays; what is its `own`, of which own is a model."""
    leaves, structure = jax.tree.flatten(slots)
    leaves = [arrays.get(f"slot {i}", leaf) for i, leaf in enumerate(leaves)]
    slots = jax.tree.unflatten(structure, leaves)
    allowed = [slots.mask]
    if {"query_length", "key_length"} & arrays.keys():
        key_length = arrays.get("key_length", keys)
        allowed.append(masks.Padding(key_length, arrays.get("query_length")))
    if "mask" in arrays:
        allowed.append(masks.Dense(arrays["mask"]))
    changes = {"mask": masks.combined(allowed)}
    if "bias" in arrays:
        bias = Bias(arrays["bias"])
        changes["score_mod"] = bias if slots.score_mod is None else chain(bias, slots.score_mod)
    if "rng" in arrays:
        changes["dropout"] = Dropout(dropout_rate, arrays["rng"])
    options = {}
    if own is not None:
        leaves, structure = jax.tree.flatten(own)
        parts = [arrays[f"own {i}"] for i in range(len(leaves))]
        options["own"] = jax.tree.unflatten(structure, parts)
    return dataclasses.replace(slots, **changes), options


def _nested(
    function: Callable,
    counts: tuple[int, int, int],
    has: dict[str, tuple[bool, bool]],
    at_a_time: int,
) -> Callable:
    """A function of one head over heads of a group, key heads and examples: vmapped, or in loops.

    `has` says of each array, by name, whether it has an axis of examples and one of heads.

    The innermost axis that is not one takes `at_a_time` in each turn of its loop, if that divides
    it.
    """
    by_head = {name: 0 if heads else None for name, (_, heads) in has.items()}
    by_example = {name: 0 if examples else None for name, (examples, _) in has.items()}
    axes = (0, None, None, by_head), (0, 0, 0, by_head), (0, 0, 0, by_example)
    innermost = next((level for level, count in enumerate(counts) if count not in (0, 1)), 0)
    for level, (count, in_axes) in enumerate(zip(counts, axes, strict=True)):
        divides = level == innermost and at_a_time and count % at_a_time == 0
        if at_a_time or count == 1:  # vmap over an axis of one slows XLA's products down on CPUs
            function = _loop(function, in_axes, turn=at_a_time if divides else 1)
        else:
            function = jax.vmap(function, in_axes=in_axes)
    return function


class Choice(NamedTuple):
    """How the heads are computed."""

    implementation: str
    block_size: tuple[int, int] | None
    at_a_time: int

    def head(self, *, logsumexp: bool = False) -> Callable[..., Any]:
        """What `over_heads` calls: attention, or attention and its logsumexp."""
        how = {"block_size": self.block_size, "logsumexp": logsumexp}
        if self.implementation == "cudnn":
            return jax.tree_util.Partial(cudnn.attend, **how)
        return jax.tree_util.Partial(_one_head, implementation=self.implementation, **how)

    @property
    def turns(self) -> dict[str, Any]:
        """How `over_heads` calls it: cuDNN takes all heads at once."""
        return {"at_a_time": self.at_a_time, "at_once": self.implementation == "cudnn"}


def _one_head(query, key, value, slots, *, logsumexp, **how):
    both = attend(query, key, value, slots, logsumexp=logsumexp, **how)
    return both if logsumexp else both[0]


# pairs of one head on a CPU: from where streaming heads outrun dense ones, and up to where two at a
# time keep its cores busier than one
STREAMS, IN_TWOS = 2**16, 2**18


def choose_for_heads(
    implementation: str,
    normalizer: Normalizer,
    query: Array,
    key: Array,
    score: Score = ScaledDot(),
    block_size: tuple[int, int] | None = None,
) -> Choice:
    """What "auto" stands for where there are heads: on a CPU they stream in a loop.

    There the cache holds a block, and heads stream from 2¹⁶ pairs on, where the normalizer is
    Softmax or Sigmoid; elsewhere it is as for one head. Not where there are several devices: a
    batch that is spread over them is not looped over.
    """
    pairs = query.shape[-3] * key.shape[-3]
    loops = jax.default_backend() == "cpu" and jax.device_count() == 1
    if implementation == "auto" and loops and streaming.is_online(normalizer):
        implementation = "streaming" if at_least(pairs, STREAMS) else "auto"
    one_head = [
        jax.ShapeDtypeStruct((each.shape[-3], each.shape[-1]), each.dtype) for each in (query, key)
    ]
    counted = pairs_of(score, *one_head)
    implementation = choose(implementation, counted, normalizer)
    streams = implementation == "streaming"
    heads = math.prod(query.shape[:-3]) * query.shape[-2]
    if block_size is None and streams and not loops and counted == pairs:
        block_size = size_for_heads(heads)
    at_a_time = (1 if at_least(pairs, IN_TWOS + 1) else 2) if streams and loops else 0
    return Choice(implementation, block_size, at_a_time)


def _loop(function: Callable, in_axes: tuple, turn: int = 1) -> Callable:
    """jax.vmap as a loop, for a function of arrays and, last, a dict of arrays; axes: 0 or None.

    Each turn of the loop makes so many calls, side by side.
    """
    *axes, by_name = in_axes

    def mapped(*arguments):
        *arrays, named = arguments
        every = [*arrays, *named.values()]
        moves = [axis == 0 for axis in [*axes, *(by_name[name] for name in named)]]

        def one(here):
            own = [each if at is None else at for each, at in zip(every, here, strict=True)]
            rest = dict(zip(named, own[len(arrays) :], strict=True))
            return function(*own[: len(arrays)], rest)

        moving = [each if moves else None for each, moves in zip(every, moves, strict=True)]
        (count,) = {each.shape[0] for each in moving if each is not None}
        if 1 < turn < count:

            def several(here):
                own = [jax.tree.map(operator.itemgetter(i), here) for i in range(turn)]
                results = list(map(one, own))
                return jax.tree.map(lambda *each: jnp.stack(each), *results)

            turns = [
                None if each is None else each.reshape(-1, turn, *each.shape[1:]) for each in moving
            ]
            results = jax.lax.map(several, turns)
            return jax.tree.map(lambda each: each.reshape(count, *each.shape[2:]), results)
        if count not in (0, 1):
            return jax.lax.map(one, moving)
        only = one([None if each is None else each[0] for each in moving])
        return jax.tree.map(lambda each: each[None], only)  # a loop would copy all of it

    return mapped


def require_layout(query: Array, key: Array, value: Array, *, same_features: bool = True) -> None:
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
    layout = "in the layout [B, length, heads, features]"
    require(same, "key and value", f"have the same length and heads, {layout}", shapes)
    rule = "have the same number of features"
    equal = query.shape[-1] == key.shape[-1] or not same_features
    require(equal, "query and key", rule, shapes)
    n, k = query.shape[-2], key.shape[-2]
    rule = f"be a multiple of the {k} key heads, {layout}"
    require(k > 0 and n % k == 0, "query heads", rule, f"{n} query heads, {shapes}")


def _numbers(bias: ArrayLike | None) -> Array | None:
    if bias is None:
        return None
    bias = computable(as_array(bias, "bias"))
    require(bias.dtype != bool, "bias", "hold numbers (mask takes True = may attend)", bias)
    real = not jnp.issubdtype(bias.dtype, jnp.complexfloating)
    require(real, "bias", "hold real numbers", bias)
    return bias


def _booleans(mask: ArrayLike | None) -> Array | None:
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    require(mask.dtype == bool, "mask", "be boolean (bias adds numbers to scores)", mask)
    return mask


def _of_pairs(
    array: Array | None,
    name: str,
    *,
    shape: tuple[int, int, int, int],
    key_heads: int,
    batched: bool,
) -> Part | None:
    """An array that broadcasts to [B, N, T, S] as [B, K, G, T, S], less the axes that it shares."""
    if array is None:
        return None
    fits = 1 <= array.ndim <= 4 and all(
        got in (1, size) for got, size in zip(array.shape[::-1], shape[::-1], strict=False)
    )
    axes = shape if batched else shape[1:]
    letters = "[B, N, T, S]" if batched else "[N, T, S]"
    require(fits, name, f"align from the right with {letters} = {list(axes)}", array)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    examples, heads = array.shape[0] != 1, array.shape[1] != 1
    array = jnp.broadcast_to(array, array.shape[:2] + shape[2:])
    split = (array.shape[0], key_heads, array.shape[1] // key_heads, *shape[2:])
    array = array.reshape(split) if heads else array[:, 0]
    return Part(array if examples else array[0], examples, heads)


def _of_slots(
    slots: AttentionSlots, counts: tuple[int, int], key_heads: int, features: int
) -> dict[str, Part]:
    """The arrays in slots that have axes of examples and heads, by the number of their leaf."""
    parts = {}
    for number, name, leaf, axes in _per_head(slots, counts[1], features):
        leading = (1,) * (2 - axes) + leaf.shape[:axes]
        fits = axes <= 2 and all(
            got in (1, size) for got, size in zip(leading, counts, strict=True)
        )
        one = "[…]" if axes < leaf.ndim else ""
        rule = f"have in front of its axes of one head {one} those of the heads, {counts[1]}, or of"
        rule += f" the examples and heads, {list(counts)}, each of this size or 1"
        require(fits, name, rule, leaf)
        array = leaf.reshape(*leading, *leaf.shape[axes:])
        examples, heads = leading[0] != 1, leading[1] != 1
        split = (key_heads, leading[1] // key_heads) if heads else ()
        array = array.reshape(leading[0], *split, *array.shape[2:])
        parts[f"slot {number}"] = Part(array if examples else array[0], examples, heads)
    return parts


def heads_of_slots(
    slots: AttentionSlots, heads: int, features: int, part: Any, parts: int
) -> AttentionSlots:
    """The slots with the arrays of one of so many equal parts of the heads."""
    leaves, structure = jax.tree.flatten(slots)
    for number, _, leaf, axes in _per_head(slots, heads, features):
        if leaf.shape[axes - 1] == heads:
            size = heads // parts
            leaves[number] = jax.lax.dynamic_slice_in_dim(leaf, part * size, size, axes - 1)
    return jax.tree.unflatten(structure, leaves)


def _per_head(
    slots: AttentionSlots, heads: int, features: int
) -> Iterator[tuple[int, str, Any, int]]:
    """(number, name, array, axes) of the leaves with axes in front of those of one head."""
    leaves = jax.tree_util.tree_leaves_with_path(slots)
    for number, ((path, leaf), ranks) in enumerate(zip(leaves, ranks_of(slots), strict=True)):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        leaf, axes = _with_axes(leaf, name, ranks, heads, features)
        if axes:
            yield number, name, leaf, axes


def _with_axes(
    leaf: Any, name: str, ranks: frozenset[int], heads: int, features: int
) -> tuple[Any, int]:
    """An array of a slot, and how many axes it has in front of those of one head.

    A bandwidth [h] is one for each head, unless it is one for each feature.
    """
    axes = extra_axes(leaf, ranks)
    if ranks == {0, 1} and name == "bandwidth" and jnp.ndim(leaf) == 1 and leaf.shape[0] == heads:
        rule = "be [heads, 1] or [heads, features] where there are as many heads as features"
        require(heads != features or heads == 1, name, rule, leaf)
        return leaf, 1 if heads != features else 0
    if name == "bandwidth" and axes and leaf.shape[-1] == 1 != features:
        return leaf[..., 0], axes
    return leaf, axes


def _of_heads(array: Array, key_heads: int) -> Part:
    split = key_heads, array.shape[0] // key_heads
    return Part(array.reshape(*split, *array.shape[1:]), examples=False, heads=True)


def _rngs(rngs: Array | None, batch: int, heads: int, key_heads: int) -> Part | None:
    if rngs is None:
        return None
    if rngs.shape[:2] != (batch, heads):
        return Part(rngs, examples=False, heads=False)
    split = batch, key_heads, heads // key_heads
    return Part(rngs.reshape(*split, *rngs.shape[2:]), examples=True, heads=True)


def _lengths(lengths: Any, batch: int, batched: bool, name: str) -> Part | None:
    if lengths is None:
        return None
    lengths = as_array(lengths, name)
    whole = jnp.issubdtype(lengths.dtype, jnp.integer)
    fits = lengths.shape == (batch,) or (lengths.shape == () and not batched)
    rule = f"be integers of int32's range, one for each of the {batch} examples"
    require(whole and fits, name, rule, lengths)
    require(all_hold(lengths, lambda v: v >= 0), name, "not be negative", lengths)
    return Part(lengths.reshape(batch), examples=True, heads=False)
