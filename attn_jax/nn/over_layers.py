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
from attn_jax.nn.blocks import Block, PaddedMemory, Queries
from attn_jax.nn.cache import Cache, KeyValue

Blocks = Block | Sequence[Block]  # of stacked arrays, or an nnx.List
Inspect = Callable[[Block, Queries, PaddedMemory | None], Any]

BY_LAYER = {nnx.PARTITION_NAME: None}  # a stack's first axis is sharded over nothing


def layers_of(blocks: Blocks, count: int) -> list[Block]:
    """Each of the blocks by itself."""
    if isinstance(blocks, nnx.List):
        return list(blocks)
    graphdef, state = nnx.split(blocks)
    return [nnx.merge(graphdef, remove_axis(part, 0, BY_LAYER)) for part in apart(state, count)]


def forward(
    blocks: Blocks,
    function: Inspect | None,
    inputs: Float[Array, "b t d"],
    lengths: Int[Array, " b"] | None,
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
        return _forward_in_turn(blocks, function, remat, inputs, lengths, memory, rng)
    graphdef, state = nnx.split(blocks)
    run = _forward_compiled if once else _forward_scanned
    return run(graphdef, function, remat, state, inputs, lengths, memory, rng)


def extended(
    blocks: Blocks,
    inputs: Float[Array, "b t d"],
    cache: Sequence[Cache],
    memory: Sequence[KeyValue] | None,
    lengths: Int[ArrayLike, " m"] | None,
    *,
    once: bool,
) -> tuple[Float[Array, "b t d"], tuple[Cache, ...], Float[Array, "b t d"] | None]:
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
    stacked = state, together(cache), None if memory is None else together(memory)
    outputs, (after, queries) = run(graphdef, inputs, stacked, lengths)
    return outputs, apart(after, len(cache)), None if queries is None else queries[-1]


def together(layers: Sequence[Any]) -> Any:
    """What belongs to each layer, stacked: [layers, …]."""
    return jax.tree.map(lambda *each: jnp.stack(each), *layers)


def apart(stacked: Any, layers: int) -> tuple[Any, ...]:
    """What belongs to each layer, one by one."""
    return tuple(jax.tree.map(lambda each, i=i: each[i], stacked) for i in range(layers))


def _forward_scanned(graphdef, function, remat, state, inputs, lengths, memory, rng):
    def layer(outputs, state, number):
        block = nnx.merge(graphdef, state)
        outputs, queries = block(outputs, lengths, memory, fold(rng, number))
        return outputs, None if function is None else function(block, queries, memory)

    # Without remat, matrix products and attention are kept: the rest is cheaper to compute again.
    kept = jax.checkpoint_policies.save_only_these_names(matmul.KEPT, streaming.KEPT)
    layer = jax.checkpoint(layer, prevent_cse=False, policy=None if remat else kept)
    numbers = jnp.arange(jax.tree.leaves(state)[0].shape[0])
    return jax.lax.scan(lambda outputs, now: layer(outputs, *now), inputs, (state, numbers))


def _forward_in_turn(blocks, function, remat, outputs, lengths, memory, rng):
    def layer(block, number, outputs):
        outputs, queries = block(outputs, lengths, memory, fold(rng, number))
        return outputs, None if function is None else function(block, queries, memory)

    found = []
    for number, block in enumerate(blocks):
        run = partial(layer, block, number)
        outputs, of_layer = (jax.checkpoint(run) if remat else run)(outputs)
        found.append(of_layer)
    return outputs, together(found)


def _extended_scanned(graphdef, inputs, stacked, lengths):
    def layer(outputs, now):
        state, cache, memory = now
        seen = None if memory is None else (memory, lengths)
        outputs, cache, queries = nnx.merge(graphdef, state).extend(outputs, cache, seen)
        return outputs, (cache, queries.memory)

    return jax.lax.scan(layer, inputs, stacked)


_forward_compiled = partial(jax.jit, static_argnums=(0, 1, 2))(_forward_scanned)
_extended_compiled = partial(jax.jit, static_argnums=0)(_extended_scanned)
