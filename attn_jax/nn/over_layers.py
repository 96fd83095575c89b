"""The blocks of a stack, one after the other: scanned where they are stacked, else in turn."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.spmd import remove_axis
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import matmul, streaming
from attn_jax.nn.arguments import fold
from attn_jax.nn.blocks import Block, PaddedMemory, Queries, Rows
from attn_jax.nn.cache import AnyCache, KeyValue

BY_LAYER = {nnx.PARTITION_NAME: None}  # a stack's first axis is sharded over nothing


class Pattern(nnx.Module):
    """Neighbouring layers whose slots differ: the layers of a stack repeat it."""

    def __init__(self, blocks: Sequence[Block]):
        self.blocks = nnx.List(blocks)


Blocks = Block | Pattern | Sequence[Block]  # the first two of stacked arrays, or an nnx.List
Inspect = Callable[[Block, Queries, PaddedMemory | None], Any]


def layers_of(blocks: Blocks, count: int) -> list[Block]:
    """Each of the blocks by itself."""
    if isinstance(blocks, nnx.List):
        return list(blocks)
    graphdef, state = nnx.split(blocks)
    repeats = count // len(pattern_of(blocks))
    merged = (nnx.merge(graphdef, remove_axis(part, 0, BY_LAYER)) for part in apart(state, repeats))
    return [block for each in merged for block in pattern_of(each)]


def pattern_of(blocks: Blocks) -> Sequence[Block]:
    """The blocks that are repeated."""
    return [blocks] if isinstance(blocks, Block) else list(getattr(blocks, "blocks", blocks))


def forward(
    blocks: Blocks,
    function: Inspect | None,
    inputs: Float[Array, "b t d"],
    rows: Rows,
    memory: PaddedMemory | None,
    rng: PRNGKeyArray | None,
    *,
    remat: bool,
    once: bool,
) -> tuple[Float[Array, "b t d"], Any]:
    """The last block's outputs, and function(block, queries, memory) of each, [layers, …].

    `once`: compiled once for equal shapes; for slots whose arrays decide all that they do.
    """
    if isinstance(blocks, nnx.List):
        return _forward_in_turn(blocks, function, remat, inputs, rows, memory, rng)
    graphdef, state = nnx.split(blocks)
    run = _forward_compiled if once else _forward_scanned
    return run(graphdef, function, remat, state, inputs, rows, memory, rng)


def extended(
    blocks: Blocks,
    inputs: Float[Array, "b t d"],
    cache: Sequence[AnyCache],
    memory: Sequence[KeyValue] | None,
    lengths: Int[ArrayLike, " m"] | None,
    *,
    once: bool,
) -> tuple[Float[Array, "b t d"], tuple[AnyCache, ...], Float[Array, "b t d"] | None]:
    """The last block's outputs at the next positions, the caches, its queries of the memory."""
    if isinstance(blocks, nnx.List):
        outputs, after, queries = inputs, [], None
        for number, (block, own) in enumerate(zip(blocks, cache, strict=True)):
            seen = None if memory is None else (memory[number], lengths)
            outputs, own, queries = block.extend(outputs, own, seen)
            after.append(own)
        return outputs, tuple(after), queries.memory
    graphdef, state = nnx.split(blocks)
    run = _extended_compiled if once else _extended_scanned
    size = len(pattern_of(blocks))

    def by_pattern(layers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(together(layers[place::size]) for place in range(size))

    stacked = state, by_pattern(cache), None if memory is None else by_pattern(memory)
    outputs, (after, queries) = run(graphdef, inputs, stacked, lengths)
    repeats = [apart(each, len(cache) // size) for each in after]
    caches = tuple(cache for group in zip(*repeats, strict=True) for cache in group)
    return outputs, caches, None if queries is None else queries[-1]


def together(layers: Sequence[Any]) -> Any:
    """What belongs to each layer, stacked: [layers, …]."""
    return jax.tree.map(lambda *each: jnp.stack(each), *layers)


def apart(stacked: Any, layers: int) -> tuple[Any, ...]:
    """What belongs to each layer, one by one."""
    return tuple(jax.tree.map(lambda each, i=i: each[i], stacked) for i in range(layers))


def _forward_scanned(graphdef, function, remat, state, inputs, rows, memory, rng):
    def layer(block, number, outputs):
        outputs, queries = block(outputs, rows, memory, fold(rng, number))
        return outputs, None if function is None else function(block, queries, memory)

    def pattern(outputs, state, number):
        blocks, found = pattern_of(nnx.merge(graphdef, state)), []
        for place, block in enumerate(blocks):
            # without remat, matrix products and attention are kept: the rest is computed again
            run = partial(layer, block, number * len(blocks) + place)
            run = jax.checkpoint(run, prevent_cse=False, policy=None if remat else KEPT)
            outputs, of_layer = run(outputs)
            found.append(of_layer)
        return outputs, together(found)

    numbers = jnp.arange(jax.tree.leaves(state)[0].shape[0])
    outputs, found = jax.lax.scan(
        lambda outputs, now: pattern(outputs, *now), inputs, (state, numbers)
    )
    return outputs, jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), found)


KEPT = jax.checkpoint_policies.save_only_these_names(matmul.KEPT, streaming.KEPT)


def _forward_in_turn(blocks, function, remat, outputs, rows, memory, rng):
    def layer(block, number, outputs):
        outputs, queries = block(outputs, rows, memory, fold(rng, number))
        return outputs, None if function is None else function(block, queries, memory)

    found = []
    for number, block in enumerate(blocks):
        run = partial(layer, block, number)
        outputs, of_layer = (jax.checkpoint(run) if remat else run)(outputs)
        found.append(of_layer)
    return outputs, together(found)


def _extended_scanned(graphdef, inputs, stacked, lengths):
    def pattern(outputs, now):
        state, caches, memories = now
        blocks, after, queries = pattern_of(nnx.merge(graphdef, state)), [], None
        for place, block in enumerate(blocks):
            seen = None if memories is None else (memories[place], lengths)
            outputs, cache, queries = block.extend(outputs, caches[place], seen)
            after.append(cache)
        return outputs, (tuple(after), queries.memory)

    return jax.lax.scan(pattern, inputs, stacked)


_forward_compiled = partial(jax.jit, static_argnums=(0, 1, 2))(_forward_scanned)
_extended_compiled = partial(jax.jit, static_argnums=0)(_extended_scanned)
