"""`sharded.attention`: the function, and what each device computes in each of the three ways."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax import streaming
from attn_jax.attention_slots import AttentionSlots
from attn_jax.checks import as_array, require
from attn_jax.dropout import Dropout
from attn_jax.heads import heads_of_slots, over_heads, require_layout
from attn_jax.masks import MaskFunction
from attn_jax.meshes import sharded_as, spread_over
from attn_jax.multi_head import multi_head_attention
from attn_jax.normalizers import Normalizer, Softmax
from attn_jax.precision import computable
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score
from attn_jax.sharded.layout import LAYOUTS, zigzag
from attn_jax.slots import apart, together
from attn_jax.streaming.placement import Placement

WAYS = ("auto", "heads", "ring", "gather")


def attention(
    query: Num[ArrayLike, "*b t h d"],
    key: Num[ArrayLike, "*b s g c"],
    value: Num[ArrayLike, "*b s g e"],
    *,
    axis: str,
    mesh: Any = None,
    how: str = "auto",
    layout: str = "contiguous",
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: MaskFunction | None = None,
    dropout: Dropout | None = None,
    block_size: tuple[int, int] | None = None,
) -> Float[Array, "*b t h e"]:
    """`multi_head_attention` whose queries, keys and values are spread over a mesh axis by length.

    Args:
      query: [b, t, h, d] or [t, h, d].
      key: [b, s, g, c].
      value: [b, s, g, e].
      axis: the mesh axis over which t and s are divided; its size divides both, in layout "zigzag"
        twice its size does.
      mesh: the mesh; None is the one that `jax.set_mesh` has set. Its other axes stay as they are.
      how: "heads", "ring", "gather", or "auto": the first of them that serves.
      layout: "contiguous", or "zigzag": the order of `sharded.zigzag` along t and along s.
      score: this and the following ones as for `multi_head_attention`.
      normalizer: likewise.
      score_mod: likewise.
      mask: likewise.
      dropout: likewise.
      block_size: as for `attention`; the nearest size that divides what a device has.

    Raises:
      ValueError: an argument or a slot's field does not fit; the message names it.

    >>> from jax.sharding import Mesh
    >>> x = jnp.ones((4, 1, 2))
    >>> attention(x, x, x, axis="sequence", mesh=Mesh(jax.devices()[:1], "sequence")).shape
    (4, 1, 2)
    """
    named = {"query": query, "key": key, "value": value}
    query, key, value = (computable(as_array(array, name)) for name, array in named.items())
    require_layout(query, key, value, same_features=False)
    slots = AttentionSlots(score, normalizer, score_mod, mask, dropout)
    require(layout in LAYOUTS, "layout", f"be one of {', '.join(LAYOUTS)}", repr(layout))
    require(how in WAYS, "how", f"be one of {', '.join(WAYS)}", repr(how))
    names = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    require(axis in names.axis_names, "axis", f"be one of the mesh's, {names.axis_names}", axis)
    devices = names.shape[axis]
    least = devices * (1 + (layout == "zigzag"))
    for name, array in (("query", query), ("key", key)):
        rule = f"have a length that {least} divides, for {devices} devices in layout {layout!r}"
        require(array.shape[-3] % least == 0, name, rule, array)
    if devices == 1 or 0 in (query.shape[-3], key.shape[-3]):
        return _whole(query, key, value, slots, block_size)  # one device's zigzag is the sequence
    way = _chosen(how, slots, query, key, devices)
    spread = PartitionSpec(*[None] * (query.ndim - 3), axis)
    leaves, structure = jax.tree.flatten(slots)
    arrays, plain = apart(leaves, known=True)

    def on_a_device(query, key, value, arrays):
        slots = structure.unflatten(together(arrays, plain))
        return way(query, key, value, slots, axis, devices, layout, block_size)

    # check_vma would insert collectives into branches that only some devices take
    run = jax.shard_map(
        on_a_device,
        mesh=mesh,
        in_specs=(spread, spread, spread, PartitionSpec()),
        out_specs=spread,
        axis_names={axis},
        check_vma=False,
    )
    given = query
    query, key, value = (spread_over(each, axis, each.ndim - 3) for each in (query, key, value))
    return sharded_as(given, run(query, key, value, arrays))


def _chosen(how: str, slots: AttentionSlots, query: Array, key: Array, devices: int) -> Callable:
    """What each device computes."""
    heads = query.shape[-2], key.shape[-2]
    divided = all(count % devices == 0 for count in heads)
    online = streaming.is_online(slots.normalizer)
    if how == "auto":
        how = "heads" if divided else "ring" if online else "gather"
    rule = f"not be 'heads' unless the {devices} devices divide the heads of queries and of keys"
    require(how != "heads" or divided, "how", rule, f"{heads[0]} and {heads[1]} heads")
    rule = "not be 'ring' unless the normalizer is Softmax or Sigmoid"
    require(how != "ring" or online, "how", rule, slots.normalizer)
    rule = "be Softmax, Sigmoid, Sparsemax or Entmax where how is not 'heads'"
    streams = how == "heads" or streaming.has_form(slots.normalizer)
    require(streams, "normalizer", rule, slots.normalizer)
    return {"heads": _by_heads, "ring": _ring, "gather": _gathered}[how]


def _whole(query: Array, key: Array, value: Array, slots: AttentionSlots, block_size: Any) -> Array:
    given = {name: getattr(slots, name) for name in AttentionSlots.__dataclass_fields__}
    how = {} if block_size is None else {"implementation": "streaming", "block_size": block_size}
    return multi_head_attention(query, key, value, **given, **how)


def _by_heads(query, key, value, slots, axis, devices, layout, block_size):
    """Some heads, all of their queries and keys."""
    length, heads = query.ndim - 3, query.ndim - 2

    def swapped(array, split, joined):
        return jax.lax.all_to_all(array, axis, split, joined, tiled=True)

    own = jax.lax.axis_index(axis), devices
    slots = heads_of_slots(slots, query.shape[-2], query.shape[-1], *own)
    arrays = [swapped(each, heads, length) for each in (query, key, value)]
    arrays = [_in_order(each, devices, layout) for each in arrays]
    output = _whole(*arrays, slots, block_size)
    if layout == "zigzag":
        output = jnp.take(output, zigzag(output.shape[length], devices), axis=length)
    return swapped(output, length, heads)


def _ring(query, key, value, slots, axis, devices, layout, block_size):
    """Own queries, the keys of one device after the other."""
    placement = Placement(axis, devices, layout == "zigzag", ring=True)
    return _placed(query, key, value, slots, placement, block_size)


def _gathered(query, key, value, slots, axis, devices, layout, block_size):
    """Own queries, all keys."""
    how = {"axis": key.ndim - 3, "tiled": True}
    both = (jax.lax.all_gather(each, axis, **how) for each in (key, value))
    key, value = (_in_order(each, devices, layout) for each in both)
    placement = Placement(axis, devices, layout == "zigzag", ring=False)
    return _placed(query, key, value, slots, placement, block_size)


def _in_order(array: Array, devices: int, layout: str) -> Array:
    """A whole array in the order of the sequence."""
    if layout == "contiguous":
        return array
    length = array.ndim - 3
    return jnp.take(array, np.argsort(zigzag(array.shape[length], devices)), axis=length)


def _placed(query, key, value, slots, placement, block_size):
    whole = placement.whole(query.shape[-3], key.shape[-3])
    if block_size is None:
        heads = int(np.prod(query.shape[:-3])) * query.shape[-2]
        block_size = streaming.size_for_heads(heads)
    head = functools.partial(_one_head, whole, placement, block_size)
    return over_heads(head, query, key, value, slots)


def _one_head(whole, placement, block_size, query, key, value, slots):
    lengths = (
        jax.ShapeDtypeStruct((n, each.shape[-1]), each.dtype)
        for n, each in zip(whole, (query, key), strict=True)
    )
    slots.check(*lengths)
    slots = dataclasses.replace(slots, normalizer=streaming.as_slot(slots.normalizer))
    how = {"block_size": block_size, "logsumexp": False, "placement": placement}
    return streaming.stream(query, key, value, slots, **how)[0]
