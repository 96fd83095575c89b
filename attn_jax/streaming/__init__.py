"""Attention without the [q, k] array: the same meaning as dense, block by block.

Scores, weights and their derivatives exist for one block of pairs at a time. Memory grows with q
and with k, not with their product (for Entmax and Sparsemax the scores of some queries and all keys
are in memory). Blocks that a mask empties are not computed; in blocks that it leaves whole it is
not evaluated.

- `grid.py` divides the pairs into blocks, `walk.py` visits them, `placement.py` says which of them
  a device has;
- `problem.py` has what is static about one call, as pure functions of its arrays;
- `forms.py` has the normalizers as functions of one score, with what a row has in common;
- `hoisting.py` makes arrays that slots and functions close over into arguments;
- `pairwise.py` refuses functions that compare more than a query and a key at a time;
- `rule.py` has the forward pass and the one differentiation rule, from which JAX derives reverse
  mode (by transposition) and every higher order (by applying it to itself).
"""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Num

from attn_jax.attention_slots import AttentionSlots
from attn_jax.meshes import automatic, axes_of, spec, varying
from attn_jax.normalizers import Entmax
from attn_jax.precision import output_dtype
from attn_jax.scores import compared
from attn_jax.slots import apart, is_pure, together
from attn_jax.streaming import forms
from attn_jax.streaming.grid import default_size, make_grid, require_known, size_for_heads
from attn_jax.streaming.hoisting import numbers_per_pair
from attn_jax.streaming.pairwise import require_pairwise
from attn_jax.streaming.placement import Placement
from attn_jax.streaming.problem import any_size, make_problem
from attn_jax.streaming.rule import KEPT, attend

as_slot, has_form, is_online = forms.as_slot, forms.has_form, forms.is_online


def stream(
    query: Num[Array, "q d"],
    key: Num[Array, "k c"],
    value: Num[Array, "k e"],
    slots: AttentionSlots,
    *,
    block_size: tuple[int, int] | None,
    logsumexp: bool,
    placement: Placement | None = None,
) -> tuple[Float[Array, "q e"], Float[Array, " q"] | None]:
    """The output and, where wanted, a Softmax's logsumexp. There are at least one query and key.

    Compiled once for equal shapes and equal structure of the slots. What holds a plain function is
    traced, and outside `jax.jit` compiled, at each call: its surroundings may have changed.

    The values are summed before they are divided: beyond 1/k of the largest number they overflow.
    An Entmax takes about twice as long as a softmax for α = 1.5 and 2, several times as long for
    another α up to 2 or one that is traced, and tens of times beyond 2.
    """
    require_known(query.shape[0], key.shape[0])
    leaves, structure = jax.tree.flatten(slots)
    arrays, plain = apart(leaves, known=isinstance(slots.normalizer, Entmax))
    if not is_pure(slots):
        require_pairwise(query, key, slots)
    run: Callable = _compiled if is_pure(slots) else _stream
    rest = plain, structure, block_size, logsumexp, placement
    if all(spec(each) is None for each in (query, key, value)):
        return run(query, key, value, arrays, *rest)
    # on an explicit mesh a reshape into blocks has no sharding of its own
    by_row = PartitionSpec(spec(query))
    return automatic(lambda *each: run(*each, *rest), query, key, value, arrays, specs=by_row)


def _stream(query, key, value, arrays, plain, structure, block_size, logsumexp, placement):
    everything = query, key, value, arrays
    axes = axes_of(everything)
    query, key, value, arrays = varying(everything, axes)
    slots = structure.unflatten(together(arrays, plain))
    query, key = compared(slots.score, query, key)
    form = forms.form(slots.normalizer)
    if block_size is None:
        block_size = default_size(
            query.shape[0],
            key.shape[0],
            slots.mask,
            online=form.online,
            numbers_per_pair=numbers_per_pair(any_size(slots.score), query, key),
            spread=jax.device_count() > 1 and not axes,
        )
    whole = query.shape[0], key.shape[0]
    if placement is not None:
        block_size = placement.fitting(whole, block_size)
        whole = placement.whole(*whole)
    grid, runtime_any = make_grid(*whole, block_size, slots.mask)
    problem, x = make_problem(query, key, value, slots, grid, runtime_any, axes, placement)
    output, row = attend(problem, x)
    output = grid.join(output).astype(output_dtype(value))
    return output, grid.join(form.logsumexp(row)) if logsumexp else None


_compiled = jax.jit(_stream, static_argnums=(4, 5, 6, 7, 8))
