"""The visit of all blocks of a grid: in one loop, or a few of them one by one."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from attn_jax.meshes import axes_of, varying
from attn_jax.streaming.grid import LOWER, SKIPPED, UPPER, WHOLE, Grid
from attn_jax.streaming.placement import Placed


def walk(
    grid: Grid,
    one_row: Callable,
    rows: Any,
    keys: Any,
    runtime_any: Bool[Array, "rows columns"] | None = None,
    *,
    transposes: bool = False,
    placed: Placed | None = None,
) -> Any:
    """Call `one_row(rows[i], first_key, visit)` for each row of blocks; the results are stacked.

    `visit(step, carry, values)` folds the blocks of keys in that row, which begin at `first_key`:
    `step(carry, values, keys=keys[j], block=block, is_partial=…) -> carry`, not called for skipped
    blocks. The carry and the values have the row's queries as their first axis: a block of which
    the mask leaves one half gets, and changes, only that half.

    A walk that `transposes` keeps nothing of a block for its derivative; one that does not has no
    reverse mode, and does not even count the blocks before a row's first and after its last.
    """

    def scanned(rows, keys, runtime_any):
        return _scanned(grid, one_row, rows, keys, runtime_any, transposes, placed)

    def unrolled(rows, keys, runtime_any):
        return _unrolled(grid, one_row, rows, keys, runtime_any, transposes)

    if placed is not None or not grid.unrolls:
        return scanned(rows, keys, runtime_any)
    # elsewhere a copy of the program for each block takes minutes to compile, and holds them all
    return jax.lax.platform_dependent(rows, keys, runtime_any, cpu=unrolled, default=scanned)


def _unrolled(grid, one_row, rows, keys, runtime_any, transposes):
    """Each block by itself: XLA knows where it is."""
    remat = jax.checkpoint if transposes else lambda f: f

    def row_of(number):
        @remat
        def row(values, keys, runtime_any):
            def visit(step, carry, values):
                for column in grid.columns[number].tolist():
                    kind = int(grid.kinds[number, column])
                    start = number * grid.size[0], column * grid.size[1]
                    here = jax.tree.map(operator.itemgetter(column), keys)
                    there = None if runtime_any is None else runtime_any[column]
                    carry = _after(grid, step, kind, start, values, here, there)(carry)
                return carry

            return one_row(values, int(grid.columns[number][0]) * grid.size[1], visit)

        inputs = jax.tree.map(operator.itemgetter(number), (rows, runtime_any))
        return row(inputs[0], keys, inputs[1])

    results = [row_of(number) for number in range(grid.rows)]
    return jax.tree.map(lambda *each: jnp.stack(each), *results)


def _scanned(grid, one_row, rows, keys, runtime_any, transposes, placed):
    """One program for all blocks."""
    remat = functools.partial(jax.checkpoint, prevent_cse=False) if transposes else lambda f: f
    band = placed is None and grid.is_band
    columns = grid.columns
    if band:
        keys = jax.tree.map(lambda each: each[jnp.asarray(columns)], keys)
    elif placed is None and columns.shape[1] != grid.kinds.shape[1]:
        keys = jax.tree.map(lambda each: each[columns[0][0] : columns[0][-1] + 1], keys)
    kinds = grid.kinds if placed is not None else np.take_along_axis(grid.kinds, columns, axis=1)
    present = sorted(set(kinds.ravel().tolist()))
    if placed is None:
        numbers, here = np.arange(grid.rows), np.searchsorted(present, kinds)
    else:
        numbers, columns = placed.rows, placed.columns[None, :]
        here = jnp.asarray(np.searchsorted(present, kinds))[numbers[:, None], columns]
        columns = jnp.broadcast_to(columns, here.shape)
    if runtime_any is not None:
        runtime_any = runtime_any[jnp.asarray(numbers)[:, None], jnp.asarray(columns)]
    used = _where(np.asarray(present) != SKIPPED, here)
    first, end = used.argmax(axis=1), here.shape[1] - used[:, ::-1].argmax(axis=1)
    axes = axes_of((rows, keys, runtime_any))
    per_row = {
        "first": jnp.asarray(first),
        "end": jnp.where(used.any(axis=1), end, first),
        "start": jnp.asarray(numbers * grid.size[0]),
        "kinds": jnp.asarray(here),
        "columns": jnp.asarray(columns * grid.size[1]),
        "runtime_any": runtime_any,
        "keys": keys if band else None,
    }

    @remat
    def row(inputs):
        values, here = inputs

        def visit(step, carry, values):
            carry = varying(carry, axes)

            @remat
            def body(carry, inputs):
                keys, kind, column, runtime_any = inputs
                start = here["start"], column

                def branch(kind):
                    return _after(grid, step, kind, start, values, keys, runtime_any, remat)

                return jax.lax.switch(kind, list(map(branch, present)), carry), None

            inputs = (
                here["keys"] if band else keys,
                here["kinds"],
                here["columns"],
                here["runtime_any"],
            )
            if transposes:
                return jax.lax.scan(body, carry, inputs)[0]

            def one(n, carry):
                return body(carry, jax.tree.map(lambda each: each[n], inputs))[0]

            return jax.lax.fori_loop(here["first"], here["end"], one, carry)

        return one_row(values, here["columns"][0], visit)

    return jax.lax.map(row, (rows, per_row))


def _where(table: np.ndarray, index: Any) -> Any:
    """table[index], static where the index is."""
    return table[index] if isinstance(index, np.ndarray) else jnp.asarray(table)[index]


def _after(grid, step, kind, start, values, keys, runtime_any, remat=lambda f: f) -> Callable:
    """carry -> carry after the block of this kind that starts there."""
    if kind == SKIPPED:
        return _same
    rows, middle = grid.size[0], grid.size[0] // 2
    parts = {UPPER: slice(0, middle), LOWER: slice(middle, rows)}
    part, is_partial = parts.get(kind, slice(0, rows)), kind != WHOLE

    @remat
    def run(carry):
        block = grid.block((start[0] + part.start, start[1]), half=kind in parts)
        inside = jax.tree.map(lambda each: each[part], (carry, values))
        return _replaced(carry, part, step(*inside, keys=keys, block=block, is_partial=is_partial))

    if runtime_any is None or not is_partial:
        return run
    return functools.partial(jax.lax.cond, runtime_any, run, _same)


def _same(carry: Any) -> Any:
    return carry


def _replaced(carry: Any, part: slice, changed: Any) -> Any:
    def replaced(old, new):
        return new if old.shape == new.shape else old.at[part].set(new)

    return jax.tree.map(replaced, carry, changed)
