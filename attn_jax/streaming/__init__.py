"""Attention without the [q, k] array: the same meaning as dense, block by block.

Scores, weights and their derivatives exist for one block of pairs at a time. Memory grows with q
and with k, not with their product (for Entmax and Sparsemax a row of blocks is held, [block, k]).
Blocks that a mask empties are not computed; in blocks that it leaves whole it is not evaluated.

- `grid.py` cuts the pairs into blocks and walks over them;
- `forms.py` has the normalizers as functions of one score, with what a row has in common;
- `hoisting.py` makes arrays that slots and functions hold into arguments;
- `rule.py` has the forward pass and the one differentiation rule, from which JAX derives reverse
  mode (by transposition) and every higher order (by applying it to itself).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from attn_jax import masks
from attn_jax.pairs import block_scores
from attn_jax.precision import accumulate, output_dtype
from attn_jax.streaming import forms
from attn_jax.streaming.grid import LOWER, PARTIAL, UPPER, default_size, make_grid, size_for_heads
from attn_jax.streaming.hoisting import held_per_pair, hoist
from attn_jax.streaming.rule import Plan, attend

as_slot, has_form = forms.as_slot, forms.has_form


def stream(
    query: Num[Array, "q d"],
    key: Num[Array, "k c"],
    value: Num[Array, "k e"],
    *,
    score: Any,
    normalizer: Any,
    score_mod: Any,
    mask: Any,
    dropout: Any,
    block_size: tuple[int, int] | None,
) -> tuple[Float[Array, "q e"], Float[Array, " q"] | None]:
    """The output, and the logsumexp for a Softmax. There is at least one query and one key.

    Compiled once for equal shapes and equal structure of the slots; what holds a plain function is
    traced at each call, as its surroundings may have changed.
    """
    slots = (score, normalizer, score_mod, mask, dropout)
    leaves, structure = jax.tree.flatten(slots)
    arrays = [each if isinstance(each, jax.Array) else None for each in leaves]
    plain = tuple(None if isinstance(each, jax.Array) else each for each in leaves)
    compiled = all(each is None or isinstance(each, (int, float)) for each in plain)
    run = _compiled if compiled else _stream
    return run(query, key, value, arrays, plain, structure, block_size)


def _stream(query, key, value, arrays, plain, structure, block_size):
    filled = [one if other is None else other for one, other in zip(arrays, plain, strict=True)]
    score, normalizer, score_mod, mask, dropout = structure.unflatten(filled)
    q, k = query.shape[0], key.shape[0]
    form = forms.form(normalizer)
    out = output_dtype(value)
    query, key = accumulate(query, key)
    if block_size is None:
        held = held_per_pair(score, query, key)
        block_size = default_size(q, k, mask, online=form.online, held_per_pair=held)
    grid, maybe = make_grid(q, k, block_size, mask)
    functions = {}

    def add_scores(name, is_partial, half=False):
        def of_block(query, key, *start):
            block = grid.block(start, half=half)
            allowed = block.real if is_partial else None
            if is_partial and mask is not None:
                inside = masks.in_block(mask, block)
                allowed = inside if allowed is None else inside & allowed
            slots = {"score": score, "score_mod": score_mod, "allowed": allowed}
            return block_scores(query, key, block, **slots), allowed

        rows, columns = grid.block((0, 0), half=half).size
        functions[name] = hoist(of_block, query[:rows], key[:columns], 0, 0)

    def add_dropout(name, half=False):
        def of_block(weights, *start):
            return dropout(weights, *grid.block(start, half=half).indices)

        weights = jnp.zeros(grid.block((0, 0), half=half).size, dtype)
        functions[name] = hoist(of_block, weights, 0, 0)

    def of_pair(query, key, query_index, key_index, exists):
        block = dataclasses.replace(grid.block((query_index, key_index)), size=(1, 1))
        slots = {"score": score, "score_mod": score_mod, "allowed": exists[None, None]}
        found = block_scores(query[None], key[None], block, **slots)[0, 0]
        return jnp.where(exists, found, 0.0)

    kinds = set(grid.kinds.ravel().tolist())
    has_half = bool(kinds & {UPPER, LOWER})
    add_scores("whole", False)
    if PARTIAL in kinds:
        add_scores("partial", True)
    if has_half:
        add_scores("half", True, half=True)
    dtype = functions["whole"].shapes[0].dtype
    (value,) = accumulate(value)
    value = value.astype(jnp.promote_types(value.dtype, dtype))
    if dropout is not None:
        add_dropout("drop")
        if has_half:
            add_dropout("drop half", half=True)
    if form.has_pivot:
        functions["pair"] = hoist(of_pair, query[0], key[0], 0, 0, True)
    parameters, parts = jax.tree.flatten(normalizer)
    learned = [each if isinstance(each, jax.Array) else None for each in parameters]

    def rebuilt(learned):
        pairs = zip(parameters, learned, strict=True)
        return forms.form(parts.unflatten([p if new is None else new for p, new in pairs]))

    x = {
        "query": grid.cut(query, 0),
        "key": grid.cut(key, 1),
        "value": grid.cut(value, 1),
        "normalizer": learned,
        "maybe": maybe,
        "hoisted": {name: each.arrays for name, each in functions.items()},
    }
    output, row = attend(Plan(grid, rebuilt, functions, dtype), x)
    logsumexp = grid.join(form.logsumexp(row)) if hasattr(form, "logsumexp") else None
    return grid.join(output).astype(out), logsumexp


_compiled = jax.jit(_stream, static_argnums=(4, 5, 6))
