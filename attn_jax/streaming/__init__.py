"""Attention without the [q, k] array: the same meaning as dense, block by block.

Scores, weights and their derivatives exist for one block of pairs at a time. Memory grows with q
and with k, not with their product (for Entmax and Sparsemax the scores of some queries and all keys
are held). Blocks that a mask empties are not computed; in blocks that it leaves whole it is not
evaluated.

- `grid.py` cuts the pairs into blocks, `walk.py` goes through them;
- `forms.py` has the normalizers as functions of one score, with what a row has in common;
- `hoisting.py` makes arrays that slots and functions hold into arguments;
- `pairwise.py` refuses functions that compare more than a query and a key at a time;
- `rule.py` has the forward pass and the one differentiation rule, from which JAX derives reverse
  mode (by transposition) and every higher order (by applying it to itself).
"""

import contextlib
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Num

from attn_jax import masks
from attn_jax.block_scores import block_scores
from attn_jax.checks import require
from attn_jax.meshes import automatic, axes_of, spec, varying
from attn_jax.normalizers import Entmax
from attn_jax.precision import accumulate, accumulation_dtype, output_dtype
from attn_jax.scores import compared
from attn_jax.slots import apart, is_pure, together
from attn_jax.streaming import forms
from attn_jax.streaming.grid import (
    LOWER,
    PARTIAL,
    UPPER,
    default_size,
    make_grid,
    require_known,
    size_for_heads,
)
from attn_jax.streaming.hoisting import held_per_pair, hoist, widened
from attn_jax.streaming.pairwise import require_pairwise
from attn_jax.streaming.rule import KEPT, Plan, attend

as_slot, has_form, is_online = forms.as_slot, forms.has_form, forms.is_online


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
    logsumexp: bool,
) -> tuple[Float[Array, "q e"], Float[Array, " q"] | None]:
    """The output and, where asked for, a Softmax's logsumexp. There are at least one query and key.

    Compiled once for equal shapes and equal structure of the slots. What holds a plain function is
    traced, and outside `jax.jit` compiled, at each call: its surroundings may have changed.

    The values are summed before they are divided: beyond 1/k of the largest number they overflow.
    An Entmax takes about twice as long as a softmax for α = 1.5 and 2, several times as long for
    another α up to 2 or one that is traced, and tens of times beyond 2.
    """
    require_known(query.shape[0], key.shape[0])
    slots = (score, normalizer, score_mod, mask, dropout)
    leaves, structure = jax.tree.flatten(slots)
    arrays, plain = apart(leaves, known=isinstance(normalizer, Entmax))
    if not is_pure(slots):
        require_pairwise(query, key, score=score, score_mod=score_mod, mask=mask)
    run = _compiled if is_pure(slots) else _stream
    rest = plain, structure, block_size, logsumexp
    if all(spec(each) is None for each in (query, key, value)):
        return run(query, key, value, arrays, *rest)
    # on an explicit mesh a reshape into blocks has no sharding of its own
    by_row = PartitionSpec(spec(query))
    return automatic(lambda *each: run(*each, *rest), query, key, value, arrays, specs=by_row)


def _stream(query, key, value, arrays, plain, structure, block_size, with_logsumexp):
    everything = query, key, value, arrays
    axes = axes_of(everything)
    query, key, value, arrays = varying(everything, axes)
    slots = structure.unflatten(together(arrays, plain))
    score, normalizer, score_mod, mask, dropout = slots
    score = _on_a_block("score", "compare any number of queries and keys")(score)
    q, k = query.shape[0], key.shape[0]
    form = forms.form(normalizer)
    out = output_dtype(value)
    query, key = compared(slots[0], query, key)
    if block_size is None:
        held = held_per_pair(score, query, key)
        spread = jax.device_count() > 1 and not axes
        options = {"online": form.online, "held_per_pair": held, "spread": spread}
        block_size = default_size(q, k, mask, **options)
    grid, maybe = make_grid(q, k, block_size, mask)
    functions, hoisted = {}, {}

    def add(name, function, *examples):
        functions[name], hoisted[name] = hoist(function, *examples)

    def add_scores(name, is_partial, half=False):
        def of_block(query, key, *start):
            block = grid.block(start, half=half)
            allowed = block.real if is_partial else None
            if is_partial and mask is not None:
                with _on_a_block("mask", INDEXED):
                    inside = masks.in_block(mask, block)
                allowed = inside if allowed is None else inside & allowed
            slots = {"score": score, "score_mod": score_mod, "allowed": allowed}
            with _on_a_block("score_mod", INDEXED):
                return block_scores(query, key, block, **slots), allowed

        rows, columns = grid.block((0, 0), half=half).size
        add(name, of_block, query[:rows], key[:columns], 0, 0)

    def add_dropout(name, half=False):
        def of_block(weights, *start):
            return dropout(weights, *grid.block(start, half=half).indices)

        weights = jnp.zeros(grid.block((0, 0), half=half).size, dtype)
        weights = varying(weights, axes)
        add(name, of_block, weights, 0, 0)

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
    dtype = accumulation_dtype(functions["whole"].shapes[0].dtype, *form.offsets)
    (value,) = accumulate(value)
    value = value.astype(accumulation_dtype(value, dtype))
    if dropout is not None:
        add_dropout("drop")
        if has_half:
            add_dropout("drop half", half=True)
    if form.moves:
        index = varying(jnp.zeros_like(query[0, 0], int), axes)
        add("pair", of_pair, query[0], key[0], index, index, index == 0)
    parameters, parts = jax.tree.flatten(normalizer)
    learned = [  # a plain number has the scores' dtype, whatever it is traced as
        None if not isinstance(x, jax.Array) else x.astype(dtype) if x.weak_type else widened(x)
        for x in parameters
    ]
    fixed = [None if isinstance(x, jax.Array) else x for x in parameters]

    def form_of(learned):
        filled = [
            one if other is None else other for one, other in zip(learned, fixed, strict=True)
        ]
        return forms.form(parts.unflatten(filled))

    x = {
        "query": grid.cut(query, 0),
        "key": grid.cut(key, 1),
        "value": grid.cut(value, 1),
        "normalizer": learned,
        "maybe": maybe,
        "hoisted": hoisted,
    }
    output, row = attend(Plan(grid, form_of, functions, dtype), x)
    logsumexp = grid.join(form.logsumexp(row)) if with_logsumexp else None
    return grid.join(output).astype(out), logsumexp


INDEXED = "work on a block of pairs: index what it closes over with query_index and key_index"


@contextlib.contextmanager
def _on_a_block(name: str, rule: str):
    """Say what is wrong where a function wants the arrays of all pairs."""
    try:
        yield
    except (TypeError, ValueError) as error:
        of_shapes = re.search("shape|broadcast|incompatible|rank", str(error))
        if re.match(r"[\w ]+ must ", str(error)) or not of_shapes:
            raise
        require(False, name, rule, f"{type(error).__name__}: {error}".rstrip("."))


_compiled = jax.jit(_stream, static_argnums=(4, 5, 6, 7))
