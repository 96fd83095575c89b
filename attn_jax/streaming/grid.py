"""The grid that divides all pairs of queries and keys into blocks."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Num

from attn_jax import masks
from attn_jax.block_mask import Span
from attn_jax.blocks import Block
from attn_jax.checks import at_least, require

# What a mask leaves of a block: nothing, all, something, only something of one half of its queries.
SKIPPED, WHOLE, PARTIAL, UPPER, LOWER = range(5)

_NUMBERS = 2**20  # of a block
_UNROLLED, _LARGE = 16, 2**12  # blocks, and pairs in each
_BAND = 4  # keys are copied per row of blocks where that takes at most so many copies of them


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Blocks of `size` over all [q, k] pairs.

    `kinds` [rows, columns] says what is known statically of each block. A row of blocks visits
    `columns` [rows, width] of them: where a mask leaves a narrow band, only that.
    """

    of: tuple[int, int]
    size: tuple[int, int]
    kinds: np.ndarray
    columns: np.ndarray

    @property
    def rows(self) -> int:
        """The number of rows of blocks."""
        return self.kinds.shape[0]

    @property
    def is_band(self) -> bool:
        """Whether rows of blocks differ in the columns that they visit."""
        return bool(np.any(self.columns != self.columns[0]))

    @property
    def unrolls(self) -> bool:
        """Whether the blocks are few, and large enough that compiling each one pays."""
        return self.kinds.size <= _UNROLLED and math.prod(self.size) >= _LARGE

    @property
    def beyond(self) -> tuple[bool, bool]:
        """Whether the last blocks extend beyond the last query and the last key."""
        return self.of[0] % self.size[0] != 0, self.of[1] % self.size[1] != 0

    def block(self, start: tuple[Any, Any], *, half: bool = False) -> Block:
        """The block, or the half of a block, that starts there."""
        size = (self.size[0] // 2, self.size[1]) if half else self.size
        return Block(size, self.of, start, self.beyond)

    def split(self, array: Num[Array, "n d"], axis: int) -> Num[Array, "blocks size d"]:
        """The rows of queries (axis 0) or keys (axis 1) in blocks; the last row fills up."""
        size = self.size[axis]
        blocks = math.ceil(len(array) / size)
        padding = blocks * size - len(array)
        if padding:
            array = jnp.pad(array, ((0, padding), (0, 0)), mode="edge")
        return array.reshape(blocks, size, array.shape[1])

    def join(self, blocks: Num[Array, "blocks size *d"]) -> Num[Array, "n *d"]:
        """The rows of queries out of their blocks."""
        rows, size, *rest = blocks.shape
        return blocks.reshape(rows * size, *rest)[: self.of[0]]


def require_known(queries: Any, keys: Any) -> None:
    """Refuse the symbolic lengths of `jax.export`: the blocks are counted when it is traced."""
    rule = "have known lengths to stream, in blocks (implementation='dense' takes symbolic ones)"
    known = isinstance(queries, int) and isinstance(keys, int)
    require(known, "query and key", rule, f"{queries} queries, {keys} keys")


def default_size(
    queries: int, keys: int, mask: Any, *, online: bool, numbers_per_pair: int, spread: bool = False
) -> tuple[int, int]:
    """(queries, keys) per block, at most: as fast as measured on CPUs, few numbers at a time.

    | | block |
    |---|---|
    | the score has an array [q, k, d] | 2²⁰ numbers in all, twice as many keys as queries |
    | Softmax, Sigmoid | 1024 x 512 |
    | the same where a mask empties blocks | half of the queries and keys, at least 128 |
    | the same where it does not, and queries may be spread over devices | all x 128 to 512 |
    | Entmax, Sparsemax: rows at once | from 32 to 256 queries and 2²⁰ scores in a row of blocks |
    | the same where a mask empties blocks | 512 keys in a block |
    """
    if numbers_per_pair > 1:
        rows = max(8, 2 ** int(math.log2(_NUMBERS / numbers_per_pair / 2) / 2))
        size = rows, 2 * rows
    elif online:
        size = 1024, 512
        small = tuple(
            min(max(math.ceil(n / 2), 128), most)
            for n, most in zip((queries, keys), size, strict=True)
        )
        if mask is not None and np.any(make_grid(queries, keys, small, mask)[0].kinds == SKIPPED):
            size = small
        elif spread and queries <= 4 * _NUMBERS // 128:  # a loop over them would gather them
            size = queries, min(max(_NUMBERS // queries, 128), 512)
    else:
        rows = min(max(2 ** int(math.log2(max(_NUMBERS / keys, 1))), 32), 256)
        grid, _ = make_grid(queries, keys, (rows, 512), mask)
        size = rows, 512 if np.any(grid.kinds == SKIPPED) else _NUMBERS // rows
    return _even(queries, size[0]), _even(keys, size[1])


def _even(n: int, size: int) -> int:
    """The size of as many equal blocks as there are of this one, the last one hardly shorter."""
    return math.ceil(n / math.ceil(n / size))


def size_for_heads(heads: int) -> tuple[int, int] | None:
    """A block for softmax where so many heads are vmapped, and hold a block each: 2²⁶ scores.

    None, the default, for few of them on one device.
    """
    rows, columns = size = 1024, 512
    while at_least(rows * columns * heads, _NUMBERS * 2**6 + 1) and columns > 128:
        rows, columns = rows // 2, columns // 2
    one_device = heads == 1 or jax.device_count() == 1
    return None if one_device and (rows, columns) == size else (rows, columns)


def make_grid(
    queries: int, keys: int, size: tuple[int, int], mask: Any
) -> tuple[Grid, Bool[Array, "rows columns"] | None]:
    """The grid, and where only run-time values tell that a block is empty: False there."""
    size = min(size[0], queries), min(size[1], keys)
    rows, columns = (_spans(n, width) for n, width in zip((queries, keys), size, strict=True))
    grid = Grid((queries, keys), size, np.zeros((0, 0)), np.zeros((0, 0)))
    overhang = np.zeros((len(rows.first), len(columns.first)), bool)
    overhang[-1] |= grid.beyond[0]
    overhang[:, -1] |= grid.beyond[1]
    if mask is None:
        kinds, runtime_any = np.where(overhang, PARTIAL, WHOLE), None
    else:
        block_mask = masks.block_mask(mask, rows, columns)
        kinds = np.where(block_mask.all & ~overhang, WHOLE, PARTIAL)
        kinds = np.where(block_mask.any, kinds, SKIPPED)
        runtime_any = block_mask.runtime_any
        spread = len(rows.first) == 1 and jax.device_count() > 1  # a half is not on all devices
        if size[0] % 2 == 0 and size[0] > 2 and not spread:
            upper, lower = (masks.block_mask(mask, half, columns).any for half in _halves(rows))
            kinds = np.where((kinds == PARTIAL) & ~upper, LOWER, kinds)
            kinds = np.where((kinds == PARTIAL) & ~lower, UPPER, kinds)
    return dataclasses.replace(grid, kinds=kinds, columns=_visited(kinds)), runtime_any


def _spans(n: int, size: int) -> Span:
    first = np.arange(0, n, size)
    return Span(first, np.minimum(first + size, n) - 1)


def _halves(rows: Span) -> tuple[Span, Span]:
    middle = rows.first + (rows.last[0] - rows.first[0] + 1) // 2
    upper = Span(rows.first, np.minimum(middle - 1, rows.last))
    return upper, Span(np.minimum(middle, rows.last), rows.last)


def _visited(kinds: np.ndarray) -> np.ndarray:
    """The columns [rows, width] that each row visits: its band if it is narrow, or the same."""
    rows, columns = kinds.shape
    used = kinds != SKIPPED
    if not used.any():
        return np.zeros((rows, 1), int)
    first = np.where(used.any(axis=1), used.argmax(axis=1), 0)
    last = np.where(used.any(axis=1), columns - 1 - used[:, ::-1].argmax(axis=1), 0)
    width = int((last - first).max()) + 1
    if rows * width <= _BAND * columns:
        first = np.minimum(first, columns - width)
        return first[:, None] + np.arange(width)
    inside = np.arange(first[used.any(axis=1)].min(), last.max() + 1)
    return np.broadcast_to(inside, (rows, len(inside)))
