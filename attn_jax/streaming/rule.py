"""Attention over a grid of blocks, and its one differentiation rule."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.block_scores import attended
from attn_jax.primitive import Differentiable
from attn_jax.streaming.forms import RowState
from attn_jax.streaming.grid import Grid
from attn_jax.streaming.hoisting import Hoisted
from attn_jax.streaming.walk import walk

# What a policy of `jax.checkpoint` may keep, so that a backward pass does not attend once more.
KEPT = "attention"


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """All that is static about one call: the grid and pure functions of arrays.

    `functions` by name; each has its list of hoisted arrays, under the same name, in x:

    - "whole", "partial" and "half": the scores of a block, and what is allowed;
    - "drop" and "drop half": the block's weights after dropout;
    - "pair": the score of a single pair.
    """

    grid: Grid
    form: Callable[[Any], Any]
    functions: dict[str, Hoisted]
    dtype: Any

    def call(self, name: str, x: Any, *arguments: Any) -> Any:
        """The function of that name on the hoisted arrays in x."""
        return self.functions[name](x["hoisted"][name], *arguments)


def block_of_scores(plan: Plan, x: Any, block: Any, is_partial: bool) -> tuple[Array, Array]:
    """Scores of a block, -inf where deleted, and the values, 0 where nobody may attend."""
    name = "whole" if not is_partial else "partial" if block.size == plan.grid.size else "half"
    scores, allowed = plan.call(name, x, x["query"], x["key"], *block.start)
    value = x["value"]
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
        value = jnp.where(attended(allowed), value, 0.0)
    return scores.astype(plan.dtype), value


def dropped(plan: Plan, x: Any, weights: Array, block: Any) -> Array:
    """The weights after dropout."""
    name = "drop" if block.size == plan.grid.size else "drop half"
    if name not in plan.functions:
        return weights
    return plan.call(name, x, weights, *block.start)


def forward(plan: Plan, x: Any) -> tuple[Array, RowState]:
    """The output [rows, size, e] and the row state [rows, size]."""
    form = plan.form(x["normalizer"])
    one_row = _online_row if form.online else _panel_row

    def row(query, first_key, visit):
        return one_row(plan, form, x | {"query": query}, first_key, visit)

    keys = {"key": x["key"], "value": x["value"]}
    return walk(plan.grid, row, x["query"], keys, x["maybe"])


def _online_row(plan: Plan, form: Any, x: Any, first_key: Any, visit: Callable):
    del first_key
    rows = plan.grid.size[0]

    def step(carry, query, keys, block, is_partial):
        output, state = carry
        here = x | keys | {"query": query}
        scores, value = block_of_scores(plan, here, block, is_partial)
        state, weights, factor = form.step(state, scores, block.indices[1])
        weights = dropped(plan, here, weights, block)
        if factor is not None:
            output = output * factor[:, None]
        return output + weights.astype(value.dtype) @ value, state

    output = jnp.zeros((rows, x["value"].shape[-1]), x["value"].dtype)
    output, state = visit(step, (output, form.start(rows, plan.dtype)), x["query"])
    row, scale = form.finish(state)
    return (output if scale is None else output * scale[:, None]), row


def _panel_row(plan: Plan, form: Any, x: Any, first_key: Any, visit: Callable):
    grid = plan.grid
    rows, width = grid.size[0], grid.columns.shape[1] * grid.size[1]
    value_dtype = x["value"].dtype

    def compare(panel, query, keys, block, is_partial):
        scores, _ = block_of_scores(plan, x | keys | {"query": query}, block, is_partial)
        return jax.lax.dynamic_update_slice(panel, scores, (0, block.start[1] - first_key))

    panel = visit(compare, jnp.full((rows, width), -jnp.inf, plan.dtype), x["query"])
    row, weights = form.rows(panel)
    if row.pivot is not None:
        row = row._replace(pivot=jnp.where(row.pivot < 0, -1, row.pivot + first_key))

    def add(output, rows, keys, block, is_partial):
        query, weights = rows
        here = x | keys | {"query": query}
        _, value = block_of_scores(plan, here, block, is_partial)
        part = jax.lax.dynamic_slice(weights, (0, block.start[1] - first_key), block.size)
        part = dropped(plan, here, part, block)
        return output + part.astype(value_dtype) @ value

    output = jnp.zeros((rows, x["value"].shape[-1]), value_dtype)
    return visit(add, output, (x["query"], weights)), row


def weighted(plan: Plan, x: Any, row: RowState, block: Any, is_partial: bool):
    """Σ_j drop(w_ij) v_j [q, e] and Σ_j w_ij [q] of one block, the row state being known."""
    form = plan.form(x["normalizer"])
    scores, value = block_of_scores(plan, x, block, is_partial)
    dead = scores == -jnp.inf
    z = jnp.where(dead, 0.0, jnp.where(dead, 0.0, scores) - row.reference[:, None])
    if row.pivot is not None:
        at_pivot = block.indices[1] == row.pivot[:, None]
        if form.moves:  # as the pivot's score does
            z = jnp.where(at_pivot, 0.0, z)
        else:  # the largest score, which another rounding may not exceed; the derivative stays
            z = z - jax.lax.stop_gradient(jnp.where(at_pivot | (z > 0), z, 0.0))
    weights = jnp.where(dead, 0.0, form.weight(z, row.level[:, None]))
    output = dropped(plan, x, weights, block).astype(value.dtype) @ value
    return output, jnp.sum(weights, axis=1)


def attend(plan: Plan, x: Any) -> tuple[Array, RowState]:
    """`forward` with derivatives of any mode and order.

    With the row state known, tangents are sums over blocks, in any order. The level is defined by
    Σ_j w_ij + rest_i = 1, so its tangent is the one that keeps that sum.
    """
    leaves, structure = jax.tree.flatten(x)

    def call(*leaves):
        output, row = forward(plan, structure.unflatten(leaves))
        return [output, *(each for each in row if each is not None)]

    def change(leaves, outputs, tangents):
        output, *row = outputs
        x, d_x = structure.unflatten(leaves), structure.unflatten(tangents)
        d_output, d_reference, d_level = tangent(plan, x, output, RowState(*row), d_x)
        return [d_output, d_reference, d_level, None][: len(outputs)]  # the pivot is an index

    value = structure.unflatten(range(len(leaves)))["value"]
    function = Differentiable(call, change, linear=frozenset({value}), name=KEPT)
    output, *row = function(*leaves)
    return output, RowState(*row)


PER_QUERY, PER_KEY = ("query",), ("key", "value")


def tangent(plan: Plan, x: Any, output: Array, row: RowState, d_x: Any):
    """The tangents of `forward`'s output, references and levels, linear in d_x."""
    form = plan.form(x["normalizer"])
    d_reference = jnp.zeros_like(row.reference)
    if form.moves:
        d_reference = jvp(lambda x: references(plan, x, row), x, d_x)[1]
    d_output, d_total = sums_of_tangents(plan, x, row, d_x, d_reference if form.moves else None)
    d_level = jnp.zeros_like(row.level)
    if form.has_level:
        rest = jvp(lambda x: plan.form(x["normalizer"]).rest(row), x, d_x)[1]
        d_total = d_total if form.rest(row) is None else d_total + rest
        by_output, by_total = level_slopes(plan, form, x, output, row)
        empty = by_total == 0
        d_level = jnp.where(empty, 0.0, -d_total / jnp.where(empty, 1.0, by_total))
        d_output = d_output + d_level[..., None] * by_output
    return d_output, d_reference, d_level


def jvp(function: Callable, x: Any, d_x: Any) -> tuple[Any, Any]:
    """jax.jvp in those leaves of x whose tangent is not None; None if there are none."""
    leaves, structure = jax.tree.flatten(x)
    tangents = structure.flatten_up_to(d_x)
    moving = [n for n, each in enumerate(tangents) if each is not None]
    if not moving:
        return function(x), None

    def of_moving(*values):
        filled = list(leaves)
        for n, value in zip(moving, values, strict=True):
            filled[n] = value
        return function(structure.unflatten(filled))

    return jax.jvp(of_moving, [leaves[n] for n in moving], [tangents[n] for n in moving])


def sums_of_tangents(plan, x, row, d_x, d_reference):
    """Σ_j ẇ_ij v_j + w_ij v̇_j and Σ_j ẇ_ij at a fixed level."""
    shared = {n: each for n, each in x.items() if n not in PER_QUERY + PER_KEY}
    d_shared = {n: d_x[n] for n in shared}

    def one_row(inputs, first_key, visit):
        del first_key

        def step(carry, rows, keys, block, is_partial):
            query, row, d_query, d_reference = rows

            def sums(x):
                at = row._replace(reference=x["reference"])
                return weighted(plan, x, at, block, is_partial)

            key_side, d_key_side = jax.tree.map(jnp.transpose, keys)
            here = shared | key_side | {"query": query, "reference": row.reference}
            d_here = d_shared | d_key_side | {"query": d_query, "reference": d_reference}
            return jax.tree.map(jnp.add, carry, jvp(sums, here, d_here)[1])

        return visit(step, zeros(plan, x), inputs)

    # As [features, keys] the cotangents of keys and values are products [features, queries] x
    # [queries, keys], twice as fast on CPUs as their transposes.
    key_sides = {n: x[n] for n in PER_KEY}, {n: d_x[n] for n in PER_KEY}
    return walk(
        plan.grid,
        one_row,
        (x["query"], row, d_x["query"], d_reference),
        jax.tree.map(lambda each: jnp.swapaxes(each, 1, 2), key_sides),
        x["maybe"],
        transposes=True,
    )


def level_slopes(plan, form, x, output, row):
    """d/d level of the output and of the sum of all weights."""
    if hasattr(form, "level_slopes"):
        return form.level_slopes(row, output)

    def one_row(inputs, first_key, visit):
        del first_key

        def step(carry, rows, keys, block, is_partial):
            query, row = rows
            here = x | keys | {"query": query}

            def sums(level):
                return weighted(plan, here, row._replace(level=level), block, is_partial)

            change = jax.jvp(sums, (row.level,), (jnp.ones_like(row.level),))[1]
            return jax.tree.map(jnp.add, carry, change)

        return visit(step, zeros(plan, x), inputs)

    return walk(
        plan.grid,
        one_row,
        (x["query"], row),
        {n: x[n] for n in PER_KEY},
        x["maybe"],
        transposes=True,
    )


def zeros(plan: Plan, x: Any) -> tuple[Array, Array]:
    """Nothing added yet: the sums [q, e] and [q] of one row of blocks."""
    rows, value = plan.grid.size[0], x["value"]
    return jnp.zeros((rows, value.shape[-1]), value.dtype), jnp.zeros(rows, plan.dtype)


def references(plan: Plan, x: Any, row: RowState) -> Array:
    """The scores of the pivots [rows, size]."""
    key = x["key"].reshape(-1, x["key"].shape[-1])
    pivot = row.pivot.reshape(-1)
    query = x["query"].reshape(-1, x["query"].shape[-1])
    present = pivot >= 0
    pivot = jnp.maximum(pivot, 0)
    index = jnp.minimum(jnp.arange(len(pivot)), plan.grid.of[0] - 1)
    of_pairs = jax.vmap(functools.partial(plan.call, "pair", x))
    scores = of_pairs(query, key[pivot], index, pivot, present)
    return scores.reshape(row.pivot.shape).astype(plan.dtype)
