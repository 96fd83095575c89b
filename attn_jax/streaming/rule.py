"""Attention over a grid of blocks, and its one differentiation rule."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_jax.blocks import Block
from attn_jax.primitive import Differentiable
from attn_jax.streaming.forms import Form, RowState
from attn_jax.streaming.problem import Arrays, Problem
from attn_jax.streaming.walk import walk

# What a policy of `jax.checkpoint` may keep, so that a backward pass does not attend once more.
KEPT = "attention"


def forward(problem: Problem, x: Arrays) -> tuple[Array, RowState]:
    """The output [rows, size, e] and the row state [rows, size]."""
    form = problem.form(x)
    if problem.placement is not None and problem.placement.ring:
        return _ring_forward(problem, form, x)
    one_row = _online_row if form.online else _whole_row

    def row(query, first_key, visit):
        return one_row(problem, form, x._replace(query=query), first_key, visit)

    return _walk(problem, x, row, x.query, key_side(x))


def _walk(problem: Problem, x: Arrays, one_row: Callable, rows: Any, keys: Any, **how: Any) -> Any:
    """`walk` over the blocks that are here; of a ring after so many `hops`."""
    hops, placement = how.pop("hops", 0), problem.placement
    if placement is not None:
        how["placed"] = placement.placed(problem.grid, x.device, hops)
    return walk(problem.grid, one_row, rows, keys, x.runtime_any, **how)


def _ring_forward(problem: Problem, form: Form, x: Arrays) -> tuple[Array, RowState]:
    """Keys and values go from device to device; the online state of each row goes on."""
    rows, size = x.query.shape[:2]
    step = _online_step(problem, form, x)

    def row(inputs, first_key, visit):
        del first_key
        query, carry = inputs
        return visit(step, carry, query)

    def hop(hops, state):
        keys, carry = state
        carry = _walk(problem, x, row, (x.query, carry), keys, hops=hops)
        return problem.placement.hop(keys), carry

    def started(_):
        return zeros(problem, x)[0], form.start(size, problem.dtype)

    carry = jax.vmap(started)(jnp.arange(rows))
    state = jax.lax.fori_loop(0, problem.placement.devices, hop, (key_side(x), carry))
    output, row_state = state[1]
    row_state, scale = jax.vmap(form.finish)(row_state)
    return (output if scale is None else output * scale[..., None]), row_state


def key_side(x: Arrays) -> dict[str, Any]:
    """What there is of each key."""
    return {"key": x.key, "value": x.value}


def _online_step(problem: Problem, form: Form, x: Arrays) -> Callable:
    """(output, state) of a row of blocks after one more block."""

    def step(carry, query, keys, block, is_partial):
        output, state = carry
        here = x._replace(query=query, **keys)
        scores, value = problem.scores(here, block, is_partial)
        state, weights, factor = form.step(state, scores, block.start[1])
        weights = problem.dropout(here, weights, block)
        if factor is not None:
            output = output * factor[:, None]
        return output + weights.astype(value.dtype) @ value, state

    return step


def _online_row(problem: Problem, form: Form, x: Arrays, first_key: Any, visit: Callable):
    del first_key
    output, _ = zeros(problem, x)
    state = form.start(problem.grid.size[0], problem.dtype)
    output, state = visit(_online_step(problem, form, x), (output, state), x.query)
    row, scale = form.finish(state)
    return (output if scale is None else output * scale[:, None]), row


def _whole_row(problem: Problem, form: Form, x: Arrays, first_key: Any, visit: Callable):
    grid = problem.grid
    rows, width = grid.size[0], grid.columns.shape[1] * grid.size[1]

    def compare(panel, query, keys, block, is_partial):
        scores, _ = problem.scores(x._replace(query=query, **keys), block, is_partial)
        return jax.lax.dynamic_update_slice(panel, scores, (0, block.start[1] - first_key))

    panel = visit(compare, jnp.full((rows, width), -jnp.inf, problem.dtype), x.query)
    row, weights = form.rows(panel, grid.size[1])
    row = row._replace(pivot=jnp.where(row.pivot < 0, -1, row.pivot + first_key))

    def add(output, rows, keys, block, is_partial):
        query, weights = rows
        here = x._replace(query=query, **keys)
        _, value = problem.scores(here, block, is_partial)
        part = jax.lax.dynamic_slice(weights, (0, block.start[1] - first_key), block.size)
        part = problem.dropout(here, part, block)
        return output + part.astype(value.dtype) @ value

    output, _ = zeros(problem, x)
    return visit(add, output, (x.query, weights)), row


def weighted(problem: Problem, x: Arrays, row: RowState, block: Block, is_partial: bool):
    """Σ_j dropout(w_ij) v_j [q, e] and Σ_j w_ij [q] of one block, the row state being known."""
    form = problem.form(x)
    scores, value = problem.scores(x, block, is_partial)
    masked = scores == -jnp.inf
    z = jnp.where(masked, 0.0, jnp.where(masked, 0.0, scores) - row.reference[:, None])
    if form.moves:  # the pivot's score is the reference, and moves as it does
        z = jnp.where(block.indices[1] == row.pivot[:, None], 0.0, z)
    elif row.pivot is not None:
        z = z - jax.lax.stop_gradient(_excess(z, masked, row.pivot == block.start[1]))
    weights = jnp.where(masked, 0.0, form.weight(z, row.level[:, None]))
    output = problem.dropout(x, weights, block).astype(value.dtype) @ value
    return output, jnp.sum(weights, axis=1)


def _excess(
    z: Float[Array, "q k"], masked: Bool[Array, "q k"], has_largest: Bool[Array, " q"]
) -> Float[Array, "q k"]:
    """What to subtract of z, so that none is positive, and the row's largest, in its block, is 0.

    Another program may round scores otherwise, and large ones by much more than 1.
    """
    largest = jnp.max(jnp.where(masked, -jnp.inf, z), axis=1)
    shift = jnp.where(has_largest, largest, 0.0)[:, None]
    return shift + jnp.maximum(z - shift, 0.0)


def attend(problem: Problem, x: Arrays) -> tuple[Array, RowState]:
    """`forward` with derivatives of any mode and order.

    With the row state known, tangents are sums over blocks, in any order. The level is defined by
    Σ_j w_ij + rest_i = 1, so its tangent is the one that keeps that sum.
    """
    leaves, structure = jax.tree.flatten(x)

    def call(*leaves):
        output, row = forward(problem, structure.unflatten(leaves))
        return [output, *(each for each in row if each is not None)]

    def change(leaves, outputs, tangents):
        output, *row = outputs
        x, d_x = structure.unflatten(leaves), structure.unflatten(tangents)
        d_output, d_reference, d_level = tangent(problem, x, output, RowState(*row), d_x)
        return [d_output, d_reference, d_level, None][: len(outputs)]  # the pivot is an index

    value = jax.tree.unflatten(structure, range(len(leaves))).value
    function = Differentiable(call, change, linear=frozenset({value}), name=KEPT)
    output, *row = function(*leaves)
    return output, RowState(*row)


def tangent(problem: Problem, x: Arrays, output: Array, row: RowState, d_x: Arrays):
    """The tangents of `forward`'s output, references and levels, linear in d_x."""
    form = problem.form(x)
    d_reference = jnp.zeros_like(row.reference)
    if form.moves:
        d_reference = jvp(lambda x: references(problem, x, row), x, d_x)[1]
    moved = d_reference if form.moves else None
    d_output, d_total = sums_of_tangents(problem, x, row, d_x, moved)
    d_level = jnp.zeros_like(row.level)
    if form.has_level:
        rest = jvp(lambda x: problem.form(x).rest(row), x, d_x)[1]
        d_total = d_total if form.rest(row) is None else d_total + rest
        by_output, by_total = level_slopes(problem, form, x, output, row)
        empty = by_total == 0
        d_level = jnp.where(empty, 0.0, -d_total / jnp.where(empty, 1.0, by_total))
        d_output = d_output + d_level[..., None] * by_output
    return d_output, d_reference, d_level


def jvp(function: Callable, x: Any, d_x: Any) -> tuple[Any, Any]:
    """jax.jvp in those leaves of x whose tangent is not None; None if there are none."""
    leaves, structure = jax.tree.flatten(x)
    tangents = structure.flatten_up_to(d_x)  # type: ignore[attr-defined] # a PyTreeDef has it
    moving = [n for n, each in enumerate(tangents) if each is not None]
    if not moving:
        return function(x), None

    def of_moving(*values):
        filled = list(leaves)
        for n, value in zip(moving, values, strict=True):
            filled[n] = value
        return function(structure.unflatten(filled))

    return jax.jvp(of_moving, [leaves[n] for n in moving], [tangents[n] for n in moving])


def sums_of_tangents(problem: Problem, x: Arrays, row: RowState, d_x: Arrays, d_reference: Any):
    """Σ_j ẇ_ij v_j + w_ij v̇_j and Σ_j ẇ_ij at a fixed level."""

    def one_row(inputs, first_key, visit):
        del first_key

        def step(carry, rows, keys, block, is_partial):
            query, row, d_query, d_reference = rows

            def sums(arguments):
                x, reference = arguments
                at = row._replace(reference=reference)
                return weighted(problem, x, at, block, is_partial)

            keys, d_keys = jax.tree.map(jnp.transpose, keys)
            here = x._replace(query=query, **keys), row.reference
            d_here = d_x._replace(query=d_query, **d_keys), d_reference
            return jax.tree.map(jnp.add, carry, jvp(sums, here, d_here)[1])

        return visit(step, zeros(problem, x), inputs)

    rows = x.query, row, d_x.query, d_reference
    key_sides = key_side(x), key_side(d_x)

    def summed(rows, key_sides, hops=0):
        # As [features, keys] the cotangents of keys and values are products [features, queries] x
        # [queries, keys], twice as fast on CPUs as their transposes.
        key_sides = jax.tree.map(lambda each: jnp.swapaxes(each, 1, 2), key_sides)
        return _walk(problem, x, one_row, rows, key_sides, transposes=True, hops=hops)

    placement = problem.placement
    if placement is None or not placement.ring:
        return summed(rows, key_sides)

    # The keys of each device come straight from it, and once more for the transpose: what is passed
    # on from hop to hop would be kept at each.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def one(total, hops):
        part = summed(rows, placement.hop(key_sides, hops), hops)
        return jax.tree.map(jnp.add, total, part), None

    start = jax.vmap(lambda _: zeros(problem, x))(jnp.arange(len(x.query)))
    return jax.lax.scan(one, start, jnp.arange(placement.devices))[0]


def level_slopes(problem: Problem, form: Form, x: Arrays, output: Array, row: RowState):
    """d/d level of the output and of the sum of all weights."""
    if hasattr(form, "level_slopes"):
        return form.level_slopes(row, output)

    def one_row(inputs, first_key, visit):
        del first_key

        def step(carry, rows, keys, block, is_partial):
            query, row = rows
            here = x._replace(query=query, **keys)

            def sums(level):
                return weighted(problem, here, row._replace(level=level), block, is_partial)

            change = jax.jvp(sums, (row.level,), (jnp.ones_like(row.level),))[1]
            return jax.tree.map(jnp.add, carry, change)

        return visit(step, zeros(problem, x), inputs)

    rows = x.query, row
    return _walk(problem, x, one_row, rows, key_side(x), transposes=True)


def zeros(problem: Problem, x: Arrays) -> tuple[Array, Array]:
    """Nothing added yet: the sums [q, e] and [q] of one row of blocks."""
    rows, value = problem.grid.size[0], x.value
    return jnp.zeros((rows, value.shape[-1]), value.dtype), jnp.zeros(rows, problem.dtype)


def references(problem: Problem, x: Arrays, row: RowState) -> Array:
    """The scores of the pivots [rows, size]."""
    key = x.key.reshape(-1, x.key.shape[-1])
    pivot = row.pivot.reshape(-1)
    query = x.query.reshape(-1, x.query.shape[-1])
    present = pivot >= 0
    pivot = jnp.maximum(pivot, 0)
    index = jnp.minimum(jnp.arange(len(pivot)), problem.grid.of[0] - 1)
    if problem.placement is not None:
        size = problem.grid.size[0]
        numbers = problem.placement.placed(problem.grid, x.device).rows
        index = (numbers[:, None] * size + jnp.arange(size)[None, :]).reshape(-1)
    of_pairs = jax.vmap(functools.partial(problem.pair, x))
    scores = of_pairs(query, key[pivot], index, pivot, present)
    return scores.reshape(row.pivot.shape).astype(problem.dtype)
