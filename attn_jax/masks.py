"""Masks: who may attend to whom. `(query_index [q, 1], key_index [1, k]) -> bool [q, k]`.

True = may attend; i is the query's index, j the key's. Masks combine by `&`, `|`, `~`, with each
other and with plain functions of the same signature. A position given as a Python int is static
(blocks that it empties can be skipped), one given as an array may be traced. Any integer dtype and
a Python int of any size will do: they are compared without wrapping.

>>> (Causal() & Window(1, None)).dense(3, 3).astype(int).tolist()
[[1, 0, 0], [1, 1, 0], [0, 1, 1]]
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Integer

from attn_jax.block_mask import BlockMask, Span
from attn_jax.blocks import Block, Index, all_pairs
from attn_jax.checks import all_hold, require, require_count, require_function, require_integer
from attn_jax.integers import at_least, at_most, compare, moved, relative_position
from attn_jax.slots import index, slot

MaskFunction = Callable[[Index, Index], Bool[Array, "#q #k"]]


class Mask:
    """What every mask can do: be called with indices, be combined, be written out."""

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        raise NotImplementedError

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the mask does not fit this many queries and keys."""

    def dense(self, queries: int, keys: int) -> Bool[Array, "q k"]:
        """The mask written out."""
        return dense(self, queries, keys)

    def in_block(self, block: Block) -> Bool[Array, "#q #k"]:
        """The mask in a block of pairs; what holds an array slices it instead of indexing it."""
        return self(*block.indices)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """What is known of each block before it is computed; here: nothing."""
        return BlockMask.unknown(rows, columns)

    def __and__(self, other: MaskFunction) -> "Mask":
        return And(self, _mask(other))

    def __or__(self, other: MaskFunction) -> "Mask":
        return Or(self, _mask(other))

    def __invert__(self) -> "Mask":
        return Not(self)

    def __rand__(self, other: MaskFunction) -> "Mask":
        return And(_mask(other), self)

    def __ror__(self, other: MaskFunction) -> "Mask":
        return Or(_mask(other), self)


def dense(mask: MaskFunction, queries: int, keys: int) -> Bool[Array, "q k"]:
    """Write out any mask, a plain function included.

    >>> dense(lambda i, j: i != j, 2, 2).tolist()
    [[False, True], [True, False]]
    """
    if hasattr(mask, "check"):
        mask.check(queries, keys)
    return jnp.broadcast_to(in_block(mask, all_pairs(queries, keys)), (queries, keys))


def combined(masks: Iterable[MaskFunction | None]) -> MaskFunction | None:
    """What all of the masks allow; None stands for a mask that allows everything.

    >>> combined([None, Causal(), None])
    Causal(offset=0)
    """
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(lambda one, other: _mask(one) & other, given) if given else None


def looks_back(mask: MaskFunction | None) -> int | None:
    """How many keys before its own position a query may attend to; None where there is no limit.

    >>> looks_back(Causal() & Window(3, None)), looks_back(Causal() | Window(3, 0))
    (3, None)
    """
    if isinstance(mask, Window) and mask.left is not None:
        static = all(isinstance(each, int | np.integer) for each in (mask.left, mask.offset))
        return max(int(mask.left) - int(mask.offset), 0) if static else None
    if isinstance(mask, And):
        limits = [looks_back(each) for each in (mask.left, mask.right)]
        return min((each for each in limits if each is not None), default=None)
    return None


def in_block(mask: MaskFunction, block: Block) -> Bool[Array, "#q #k"]:
    """Any mask in a block of pairs, as small as it broadcasts."""
    q, k = block.size
    allowed = mask.in_block(block) if isinstance(mask, Mask) else mask(*block.indices)
    allowed = jnp.asarray(allowed)
    require(allowed.dtype == bool, "mask", "return booleans", allowed)
    fits = allowed.ndim <= 2 and all(
        got in (1, size) for got, size in zip(allowed.shape[::-1], (k, q), strict=False)
    )
    require(fits, "mask", f"return shape [q, k] = [{q}, {k}]", allowed)
    return allowed.reshape((1,) * (2 - allowed.ndim) + allowed.shape)


def block_mask(mask: MaskFunction, rows: Span, columns: Span) -> BlockMask:
    """`Mask.block_mask` of any mask, a plain function included."""
    return (
        mask.block_mask(rows, columns)
        if hasattr(mask, "block_mask")
        else BlockMask.unknown(rows, columns)
    )


@slot
class Causal(Mask):
    """j ≤ i + offset. Top-left alignment is offset 0, bottom-right is k - q.

    >>> Causal(offset=1).dense(2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """

    offset: Integer[ArrayLike, "..."] = index(default=0)

    def __post_init__(self):
        require_integer(self.offset, "offset")

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return compare(operator.le, relative_position(query_index, key_index), self.offset)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """Blocks on, below and above the diagonal."""
        return Window(None, 0, self.offset).block_mask(rows, columns)


@slot
class Window(Mask):
    """p - left ≤ j ≤ p + right for p = i + offset; None is unbounded on that side.

    The offset is Causal's: where the first query stands among the keys, in a cache say.

    >>> Window(0, 1).dense(2, 3).astype(int).tolist()
    [[1, 1, 0], [0, 1, 1]]
    >>> Window(0, 1, offset=1).dense(2, 3).astype(int).tolist()
    [[0, 1, 1], [0, 0, 1]]
    """

    left: Integer[ArrayLike, "..."] | None = index()
    right: Integer[ArrayLike, "..."] | None = index()
    offset: Integer[ArrayLike, "..."] = index(default=0)

    def __post_init__(self):
        for name, size in (("left", self.left), ("right", self.right)):
            if size is not None:
                require_count(size, name)
        require_integer(self.offset, "offset")

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        allowed = jnp.ones(jnp.broadcast_shapes(query_index.shape, key_index.shape), bool)
        position = relative_position(query_index, key_index)
        if self.left is not None:
            allowed &= at_least(position, self.offset, self.left)
        if self.right is not None:
            allowed &= at_most(position, self.offset, self.right)
        return allowed

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """Blocks in the band, and those within it."""
        band = BlockMask.unknown(rows, columns)
        band = dataclasses.replace(band, all=band.any)
        first = columns.first[None, :] - rows.last[:, None]
        last = columns.last[None, :] - rows.first[:, None]
        for side, inside, ends in (
            (self.left, at_least, (last, first)),
            (self.right, at_most, (first, last)),
        ):
            if side is not None:
                any_inside, all_inside = (inside(end, self.offset, side) for end in ends)
                band &= BlockMask.of(any_inside, all_inside, rows, columns)
        return band


@slot
class Padding(Mask):
    """j < key_length and i < query_length: what lies beyond an example's end is not there.

    >>> Padding(2, query_length=1).dense(2, 3).astype(int).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """

    key_length: Integer[ArrayLike, "..."] = index()
    query_length: Integer[ArrayLike, "..."] | None = index(default=None)

    def __post_init__(self):
        require_count(self.key_length, "key_length")
        if self.query_length is not None:
            require_count(self.query_length, "query_length")

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        allowed = compare(operator.lt, key_index, self.key_length)
        if self.query_length is not None:
            allowed = allowed & compare(operator.lt, query_index, self.query_length)
        return allowed

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """Blocks before the ends."""
        inside = _before(self.key_length, columns, (1, -1), rows, columns)
        if self.query_length is not None:
            inside &= _before(self.query_length, rows, (-1, 1), rows, columns)
        return inside


@slot
class Segments(Mask):
    """query_ids[i] = key_ids[j]: packed examples do not see each other.

    >>> Segments(jnp.array([0, 1]), jnp.array([0, 0, 1])).dense(2, 3).astype(int).tolist()
    [[1, 1, 0], [0, 0, 1]]
    """

    query_ids: Integer[ArrayLike, "... q"]
    key_ids: Integer[ArrayLike, "... k"]

    def __post_init__(self):
        for name, ids in (("query_ids", self.query_ids), ("key_ids", self.key_ids)):
            require(jnp.ndim(ids) == 1, name, "have one entry per position", ids)
            rule = "be integers, without jax_enable_x64 in int32's range"
            require(jnp.issubdtype(ids.dtype, jnp.integer), name, rule, ids)

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return compare(operator.eq, self.query_ids[query_index], self.key_ids[key_index])

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """Blocks whose ranges of ids overlap, known at run time."""
        low, high = rows.of(self.query_ids)
        first, last = columns.of(self.key_ids)
        overlap = compare(operator.le, low[:, None], last[None, :])
        overlap &= compare(operator.le, first[None, :], high[:, None])
        return BlockMask.of(overlap, None, rows, columns)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        for name, ids, size in (
            ("query_ids", self.query_ids, queries),
            ("key_ids", self.key_ids, keys),
        ):
            which = name.removesuffix("_ids")
            rule = f"have one entry per {which}, {size} here"
            require(ids.shape == (size,), name, rule, ids)


@slot
class Prefix(Mask):
    """j < length: every query sees the prefix. `Causal() | Prefix(n)` is a prefix language model.

    The same rule as `Padding(length)`, by the name of what is added to another mask by `|`; padding
    is what is taken from one by `&`.

    >>> (Causal() | Prefix(2)).dense(3, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    length: Integer[ArrayLike, "..."] = index()

    def __post_init__(self):
        require_count(self.length, "length")

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return Padding(self.length)(query_index, key_index)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """Blocks before the prefix's end."""
        return Padding(self.length).block_mask(rows, columns)


@slot
class Dense(Mask):
    """array[i, j], a boolean array [q, k].

    >>> Dense(jnp.array([[True, False]])).dense(1, 2).tolist()
    [[True, False]]
    """

    array: Bool[ArrayLike, "... q k"]

    def __post_init__(self):
        require(jnp.ndim(self.array) == 2, "array", "have shape [q, k]", self.array)
        boolean = self.array.dtype == bool
        require(boolean, "array", "be boolean (score_mods.Bias adds numbers to scores)", self.array)

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return self.array[query_index, key_index]

    def in_block(self, block: Block) -> Bool[Array, "q k"]:
        """A slice of the array."""
        return block.take(jnp.asarray(self.array))

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        require(
            self.array.shape == (queries, keys),
            "array",
            "have one entry for each query and key",
            f"array {self.array.shape}, scores {(queries, keys)}",
        )


@slot
class And(Mask):
    """Both masks allow it: `left & right`."""

    left: Any
    right: Any

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return self.left(query_index, key_index) & self.right(query_index, key_index)

    def in_block(self, block: Block) -> Bool[Array, "#q #k"]:
        """Both masks, in a block."""
        return self.left.in_block(block) & self.right.in_block(block)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """What is known of both masks."""
        return self.left.block_mask(rows, columns) & self.right.block_mask(rows, columns)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        self.left.check(queries, keys)
        self.right.check(queries, keys)


@slot
class Or(Mask):
    """Either mask allows it: `left | right`."""

    left: Any
    right: Any

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return self.left(query_index, key_index) | self.right(query_index, key_index)

    def in_block(self, block: Block) -> Bool[Array, "#q #k"]:
        """Either mask, in a block."""
        return self.left.in_block(block) | self.right.in_block(block)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """What is known of either mask."""
        return self.left.block_mask(rows, columns) | self.right.block_mask(rows, columns)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        self.left.check(queries, keys)
        self.right.check(queries, keys)


@slot
class Not(Mask):
    """The mask does not allow it: `~mask`."""

    mask: Any

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return ~self.mask(query_index, key_index)

    def in_block(self, block: Block) -> Bool[Array, "#q #k"]:
        """What the mask does not allow in a block."""
        return ~self.mask.in_block(block)

    def block_mask(self, rows: Span, columns: Span) -> BlockMask:
        """The complement of what is known of the mask."""
        return ~self.mask.block_mask(rows, columns)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        self.mask.check(queries, keys)


@slot
class Rows(Mask):
    """mask(rows[i], j): what these rows of a larger [q, k] may attend to.

    >>> Rows(Causal(), jnp.array([2, 0])).dense(2, 3).astype(int).tolist()
    [[1, 1, 1], [1, 0, 0]]
    """

    mask: Any
    rows: Integer[ArrayLike, "... q"]

    def __post_init__(self):
        object.__setattr__(self, "mask", _mask(self.mask))
        proper = jnp.ndim(self.rows) == 1 and jnp.issubdtype(self.rows.dtype, jnp.integer)
        require(proper, "rows", "be integers, one for each query", self.rows)
        require(all_hold(self.rows, lambda v: v >= 0), "rows", "not be negative", self.rows)

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return self.mask(self.rows[query_index], key_index)

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        rule = f"have one entry per query, {queries} here"
        require(self.rows.shape == (queries,), "rows", rule, self.rows)


@slot
class Shifted(Mask):
    """mask(i + start, j + first_key): of queries from `start` on, and keys from `first_key` on.

    >>> Shifted(Causal(), jnp.array(1)).dense(2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """

    mask: Any
    start: Integer[ArrayLike, "..."] = index()
    first_key: Integer[ArrayLike, "..."] = index(default=0)

    def __post_init__(self):
        object.__setattr__(self, "mask", _mask(self.mask))
        require_integer(self.start, "start")
        require_integer(self.first_key, "first_key")

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return self.mask(moved(query_index, self.start), moved(key_index, self.first_key))


class _Function(Mask):
    """A plain function as an operand of `&` and `|`."""

    def __init__(self, function: MaskFunction):
        self.function = function

    def __call__(self, query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
        return jnp.asarray(self.function(query_index, key_index))


jax.tree_util.register_pytree_node(
    _Function, lambda self: ((), self.function), lambda function, _: _Function(function)
)


def _before(length: Any, ends: Span, shape: tuple, rows: Span, columns: Span) -> BlockMask:
    """Blocks whose indices along one axis lie before a length."""
    any_inside, all_inside = (
        compare(operator.lt, end.reshape(shape), length) for end in (ends.first, ends.last)
    )
    return BlockMask.of(any_inside, all_inside, rows, columns)


def _mask(mask: Any) -> Mask:
    require_function(mask, "mask", "a function (query_index, key_index) -> bool")
    return mask if isinstance(mask, Mask) else _Function(mask)
