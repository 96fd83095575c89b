"""The grid that cuts all pairs of queries and keys into blocks, and the walk over it."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Num

from attn_jax import masks
from attn_jax.positions import Block
from attn_jax.reach import Span
from attn_jax.streaming.manual_axes import axes_of, varying

# What a mask leaves of a block: nothing, all, something, only something of one half of its queries.
SKIPPED, WHOLE, PARTIAL, UPPER, LOWER = range(5)

_HELD = 2**20  # numbers that a block holds
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
    def beyond(self) -> tuple[bool, bool]:
        """Whether the last blocks reach beyond the last query and the last key."""
        return self.of[0] % self.size[0] != 0, self.of[1] % self.size[1] != 0

    def block(self, start: tuple[Any, Any], *, half: bool = False) -> Block:
        """The block, or the half of a block, that starts there."""
        size = (self.size[0] // 2, self.size[1]) if half else self.size
        return Block(size, self.of, start, self.beyond)

    def cut(self, array: Num[Array, "n d"], axis: int) -> Num[Array, "blocks size d"]:
        """The rows of queries (axis 0) or keys (axis 1) in blocks; the last row fills up."""
        size = self.size[axis]
        blocks = self.kinds.shape[axis]
        padding = blocks * size - self.of[axis]
        if padding:
            array = jnp.pad(array, ((0, padding), (0, 0)), mode="edge")
        return array.reshape(blocks, size, array.shape[1])

    def join(self, blocks: Num[Array, "blocks size *d"]) -> Num[Array, "n *d"]:
        """The rows of queries out of their blocks."""
        return blocks.reshape(self.rows * self.size[0], *blocks.shape[2:])[: self.of[0]]


def default_size(
    queries: int, keys: int, mask: Any, *, online: bool, held_per_pair: int
) -> tuple[int, int]:
    """(queries, keys) per block, at most: as fast as measured on CPUs, few numbers at a time.

    | | block |
    |---|---|
    | the score holds [q, k, d] | 2²⁰ numbers in all, twice as many keys as queries |
    | Softmax, Sigmoid | 1024 x 512 |
    | Entmax, Sparsemax: rows at once | from 32 to 256 queries and 2²⁰ scores in a row of blocks |
    | the same where a mask empties blocks | 512 keys in a block |
    """
    if held_per_pair > 1:
        rows = max(8, 2 ** int(math.log2(_HELD / held_per_pair / 2) / 2))
        size = rows, 2 * rows
    elif online:
        size = 1024, 512
    else:
        rows = min(max(2 ** int(math.log2(max(_HELD / keys, 1))), 32), 256)
        grid, _ = make_grid(queries, keys, (rows, 512), mask)
        size = rows, 512 if np.any(grid.kinds == SKIPPED) else _HELD // rows
    return _even(queries, size[0]), _even(keys, size[1])


def _even(n: int, size: int) -> int:
    """The size of as many equal blocks as there are of this one, the last one hardly shorter."""
    return math.ceil(n / math.ceil(n / size))


def size_for_heads(heads: int) -> tuple[int, int] | None:
    """A block for softmax where so many heads are vmapped, and hold a block each: 2²⁶ scores.

    None, the default, for few of them.
    """
    rows, columns = size = 1024, 512
    while rows * columns * heads > _HELD * 2**6 and columns > 128:
        rows, columns = rows // 2, columns // 2
    return None if (rows, columns) == size else (rows, columns)


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
        kinds, maybe = np.where(overhang, PARTIAL, WHOLE), None
    else:
        reach = masks.reach(mask, rows, columns)
        kinds = np.where(reach.every & ~overhang, WHOLE, PARTIAL)
        kinds, maybe = np.where(reach.some, kinds, SKIPPED), reach.maybe
        if size[0] % 2 == 0 and size[0] > 2:
            upper, lower = (masks.reach(mask, half, columns).some for half in _halves(rows))
            kinds = np.where((kinds == PARTIAL) & ~upper, LOWER, kinds)
            kinds = np.where((kinds == PARTIAL) & ~lower, UPPER, kinds)
    return dataclasses.replace(grid, kinds=kinds, columns=_visited(kinds)), maybe


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


def walk(
    grid: Grid,
    one_row: Callable,
    rows: Any,
    keys: Any,
    maybe: Bool[Array, "rows columns"] | None = None,
    *,
    transposes: bool = False,
) -> Any:
    """Call `one_row(rows[i], first_key, visit)` for each row of blocks; the results are stacked.

    `visit(step, carry, values)` folds the blocks of keys in that row, which begin at `first_key`:
    `step(carry, values, keys=keys[j], block=block, is_partial=…) -> carry`, not called for skipped
    blocks. The carry and the values have the row's queries as their first axis: a block of which
    the mask leaves one half gets, and changes, only that half.

    A walk that `transposes` keeps nothing of a block for its derivative; one that does not has no
    reverse mode, and does not even count the blocks before a row's first and after its last.
    """
    remat = functools.partial(jax.checkpoint, prevent_cse=False) if transposes else lambda f: f
    columns = jnp.asarray(grid.columns)
    kinds = np.take_along_axis(grid.kinds, grid.columns, axis=1)
    band = grid.is_band
    if band:
        keys = jax.tree.map(lambda each: each[columns], keys)
    elif grid.columns.shape[1] != grid.kinds.shape[1]:
        keys = jax.tree.map(lambda each: each[grid.columns[0][0] : grid.columns[0][-1] + 1], keys)
    if maybe is not None:
        maybe = jnp.take_along_axis(maybe, columns, axis=1)
    present = sorted(set(kinds.ravel().tolist()))
    used = kinds != SKIPPED
    first, end = used.argmax(axis=1), kinds.shape[1] - used[:, ::-1].argmax(axis=1)
    axes = axes_of((rows, keys, maybe))
    per_row = {
        "first": jnp.asarray(first),
        "end": jnp.asarray(np.where(used.any(axis=1), end, first)),
        "start": jnp.arange(grid.rows) * grid.size[0],
        "kinds": jnp.asarray(np.searchsorted(present, kinds)),
        "columns": columns * grid.size[1],
        "maybe": maybe,
        "keys": keys if band else None,
    }

    @remat
    def row(inputs):
        values, here = inputs

        def visit(step, carry, values):
            carry = varying(carry, axes)

            @remat
            def body(carry, inputs):
                keys, kind, start, maybe = inputs

                def compute(part, half, is_partial, carry):
                    row = here["start"] + part.start
                    block = grid.block((row, start), half=half)
                    inside = jax.tree.map(lambda each: each[part], (carry, values))
                    changed = step(*inside, keys=keys, block=block, is_partial=is_partial)
                    return _replaced(carry, part, changed)

                def branch(kind):
                    if kind == SKIPPED:
                        return _same
                    rows, middle = grid.size[0], grid.size[0] // 2
                    part = {UPPER: slice(0, middle), LOWER: slice(middle, rows)}
                    half, is_partial = kind in part, kind != WHOLE
                    part = part.get(kind, slice(0, rows))
                    run = remat(functools.partial(compute, part, half, is_partial))
                    if maybe is None or not is_partial:
                        return run
                    return functools.partial(jax.lax.cond, maybe, run, _same)

                return jax.lax.switch(kind, list(map(branch, present)), carry), None

            inputs = (here["keys"] if band else keys, here["kinds"], here["columns"], here["maybe"])
            if transposes:
                return jax.lax.scan(body, carry, inputs)[0]

            def one(n, carry):
                return body(carry, jax.tree.map(lambda each: each[n], inputs))[0]

            return jax.lax.fori_loop(here["first"], here["end"], one, carry)

        return one_row(values, here["columns"][0], visit)

    return jax.lax.map(row, (rows, per_row))


def _same(carry: Any) -> Any:
    return carry


def _replaced(carry: Any, part: slice, changed: Any) -> Any:
    def replaced(old, new):
        return new if old.shape == new.shape else old.at[part].set(new)

    return jax.tree.map(replaced, carry, changed)
