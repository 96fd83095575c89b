"""Transformers: stacks of blocks, scanned over their layers.

A stack keeps the parameters of all layers in one array each, [layers, …], and runs them in one
scan: what is compiled does not grow with the depth. Each block may be recomputed in the backward
pass (`remat`), so that the memory of a gradient is that of one block and the layers' inputs.
Decoding, which asks each layer anew for every token, is for a stack that is `unrolled`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.spmd import remove_axis
from jaxtyping import Array, ArrayLike, Float, Int, Num, PRNGKeyArray

from attn_jax import matmul, streaming
from attn_jax.checks import require
from attn_jax.nn.arguments import (
    SLOTS,
    lengths_of,
    require_dtype,
    require_flags,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.blocks import NORMS, Asked, Block, BlockOptions
from attn_jax.nn.cache import Cache, KeyValue
from attn_jax.nn.recurrent import fold, require_rate
from attn_jax.normalizers import Softmax
from attn_jax.scores import ScaledDot
from attn_jax.slots import is_pure

Positions = Literal["none", "rotary", "alibi"]
POSITIONS = ("none", "rotary", "alibi")
BY_LAYER = {nnx.PARTITION_NAME: None}  # a stack's first axis is sharded over nothing
Look = Callable[[Block, Asked, Any], Any]


class Stack(nnx.Module):
    """Blocks one on the other, and a norm at the end.

    Args:
      features: d of inputs and outputs.
      heads: of each attention. key_value_heads: see `MultiHeadAttention`.
      layers: how many blocks.
      hidden: units of the feed-forward layers; None: 4 · features.
      memory_features: of a memory to attend to as well; None: there is none.
      score, normalizer, score_mod, mask: slots of the self-attention (the first two also of the
        attention to the memory). Arrays in them are parameters, each layer's own: see `Slots`.
      positions: "rotary" or "alibi"; others are added to the inputs by an `Embedding`.
      activation: of the feed-forward layers. norm: "layer" or "rms".
      normalize_query_key, bias, implementation, dtype: as for `MultiHeadAttention`.
      dropout: rate on weights and on what each part adds.
      remat: recompute each block in the backward pass instead of keeping what is in it.
      rngs: a seed for the parameters.

    >>> from attn_jax import Causal
    >>> stack = Stack(8, 2, 3, mask=Causal(), rngs=nnx.Rngs(0))
    >>> stack(jnp.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        heads: int,
        layers: int,
        *,
        hidden: int | None = None,
        key_value_heads: int | None = None,
        memory_features: int | None = None,
        score: Any = ScaledDot(),
        normalizer: Any = Softmax(),
        score_mod: Any = None,
        mask: Any = None,
        positions: Positions = "none",
        activation: str = "gelu",
        norm: str = "layer",
        normalize_query_key: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        implementation: str = "auto",
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        known = positions in POSITIONS
        rule = f"be one of {list(POSITIONS)} in a stack (an Embedding adds the others)"
        require(known, "positions", rule, repr(positions))
        require(norm in NORMS, "norm", f"be one of {list(NORMS)}", repr(norm))
        features, layers, hidden, memory_features = sizes_of(
            features=features, layers=layers, hidden=hidden, memory_features=memory_features
        )
        require_flags(remat=remat)
        require_rngs(rngs)
        require_dtype(dtype)
        require_rate(dropout)
        options = BlockOptions(
            features=features,
            heads=heads,
            hidden=hidden or 4 * features,
            key_value_heads=key_value_heads,
            score=score,
            normalizer=normalizer,
            score_mod=score_mod,
            mask=mask,
            positions=positions,
            activation=activation,
            norm=norm,
            normalize_query_key=normalize_query_key,
            bias=bias,
            dropout=dropout,
            implementation=implementation,
            dtype=dtype,
        )
        self.features, self.memory_features, self.dtype = features, memory_features, dtype
        self.count, self.remat = layers, remat

        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=(0,), out_axes=0, transform_metadata=BY_LAYER)
        def blocks(rngs: nnx.Rngs) -> Block:
            return Block(options, memory_features=memory_features, rngs=rngs)

        self.blocks = blocks(rngs)
        self.pure = all(is_pure(self.blocks.attention.slots[name]) for name in SLOTS)
        self.norm = NORMS[norm](features, param_dtype=float, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        inputs: Num[ArrayLike, "b t d"],
        *,
        lengths: Int[ArrayLike, " b"] | None = None,
        memory: Num[ArrayLike, "b s c"] | None = None,
        memory_lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """All positions at once; with `rng`, in training, some units are dropped.

        What stands beyond an example's length, NaN too, changes no other position and no gradient.
        """
        where = {"lengths": lengths, "memory": memory, "memory_lengths": memory_lengths}
        return self.look(None, inputs, **where, rng=rng)[0]

    def look(
        self,
        function: Look | None,
        inputs: Num[ArrayLike, "b t d"],
        *,
        lengths: Int[ArrayLike, " b"] | None = None,
        memory: Num[ArrayLike, "b s c"] | None = None,
        memory_lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """The outputs, and function(block, asked, memory) of each layer, [layers, …].

        Compiled once for equal shapes and slots; where a slot or the function is somebody else's
        function it is compiled at each call outside `jax.jit`: its surroundings may have changed.

        >>> stack, rows = Stack(8, 2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 5, 8))
        >>> stack.look(lambda block, asked, _: block.attention.weights(asked.own), rows)[1].shape
        (3, 1, 2, 5, 5)
        """
        inputs = self._rows(inputs)
        if lengths is not None:
            lengths = lengths_of("lengths", lengths, *inputs.shape[:2])
            inputs = without_padding(inputs, lengths)
        seen = self._seen(memory, memory_lengths, inputs.shape[0])
        if self.is_unrolled:
            how = function, self.remat
            outputs, looks = _in_turn(*how, self.blocks, inputs, lengths, seen, rng)
        else:
            run = _compiled if self.pure and is_pure(function) else _scanned
            graphdef, state = nnx.split(self.blocks)
            outputs, looks = run(graphdef, function, self.remat, state, inputs, lengths, seen, rng)
        return self.norm(outputs), looks

    # Decoding

    def cache(self, batch: int, length: int) -> Cache:
        """An empty cache [layers, …] for so many positions: for `extend`."""
        empty = self.layers()[0].attention.cache(batch, length)
        return jax.tree.map(lambda each: jnp.stack([each] * self.count), empty)

    def extend(
        self,
        inputs: Num[ArrayLike, "b t d"],
        cache: Cache,
        *,
        memory: Num[ArrayLike, "b s c"] | None = None,
        memory_lengths: Int[ArrayLike, " b"] | None = None,
    ) -> tuple[Float[Array, "b t d"], Cache]:
        """The next positions, as many of each example, and the cache that remembers them.

        What the cache has no room for is refused, or NaN where JAX traces: see
        `Cache.require_room`.
        """
        inputs = self._rows(inputs)
        cache.require_room(inputs)
        rule = "be extended by extend_each, cache by cache, where it is unrolled"
        require(not self.is_unrolled, "stack", rule, "extend")
        seen = self._seen(memory, memory_lengths, inputs.shape[0])
        graphdef, state = nnx.split(self.blocks)
        run = _compiled_extension if self.pure else _extended
        outputs, cache = run(graphdef, state, inputs, cache, seen)
        return self.norm(outputs), cache

    def unrolled(self) -> "Stack":
        """The same stack with each layer's parameters in arrays of their own.

        In a loop over tokens the layers are then not cut out of one array for every token.
        """
        other = nnx.merge(*nnx.split(self))
        other.blocks = nnx.List(self.layers())
        return other

    @property
    def is_unrolled(self) -> bool:
        """Whether each layer's parameters are in arrays of their own."""
        return isinstance(self.blocks, nnx.List)

    def layers(self) -> list[Block]:
        """Each layer by itself."""
        if self.is_unrolled:
            return list(self.blocks)
        graphdef, state = nnx.split(self.blocks)
        parts = [jax.tree.map(lambda each, i=i: each[i], state) for i in range(self.count)]
        return [nnx.merge(graphdef, remove_axis(part, 0, BY_LAYER)) for part in parts]

    def caches(self, batch: int, length: int) -> tuple[Cache, ...]:
        """An empty cache of each layer, as decoding carries them: the batch comes first."""
        return apart(self.cache(batch, length))

    def remember(self, memory: Num[ArrayLike, "b s c"]) -> tuple[KeyValue, ...]:
        """The memory as each layer's heads compare and sum it."""
        require_memory(self.memory_features, memory)
        return tuple(block.cross.remember(memory) for block in self.layers())

    def extend_each(
        self,
        inputs: Num[ArrayLike, "b t d"],
        caches: tuple[Cache, ...],
        *,
        memory: tuple[KeyValue, ...] | None = None,
        memory_lengths: Int[ArrayLike, " m"] | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[Cache, ...], Float[Array, "b t s"] | None]:
        """`extend` by the caches of `caches` and what `remember` gave: no copy of all layers.

        And the last layer's weights over the memory, the mean of its heads. Neighbours, hypotheses
        of one source, may share a memory.
        """
        outputs, moved, alignment = self._rows(inputs), [], None
        rule = f"be one of each of the {self.count} layers, as `caches` gives them"
        fits = not isinstance(caches, Cache) and len(caches) == self.count
        require(fits, "caches", rule, f"{type(caches).__name__} of {len(caches)}")
        caches[0].require_room(outputs)
        require_memory(self.memory_features, memory)
        for number, (block, cache) in enumerate(zip(self.layers(), caches, strict=True)):
            seen = None if memory is None else (memory[number], memory_lengths)
            own = cache._replace(used=cache.reached)
            outputs, new, asked = block.extend(outputs, own, seen)
            moved.append(new._replace(used=jnp.full_like(cache.used, new.used)))
        if memory is not None:
            alignment = block.alignment(asked, seen)
        return self.norm(outputs), tuple(moved), alignment

    def _rows(self, inputs: ArrayLike) -> Array:
        inputs = rows_of("inputs", inputs, self.features)
        promoted = jnp.result_type(inputs, self.norm.scale[...])
        return inputs.astype(promoted if self.dtype is None else self.dtype)

    def _seen(self, memory: Any, lengths: Any, examples: int) -> tuple[Array, Array | None] | None:
        require_memory(self.memory_features, memory)
        if memory is None:
            return None
        memory = rows_of("memory", memory, self.memory_features)
        fits = memory.shape[0] == examples
        require(fits, "memory", f"be of {examples} examples, as the inputs", memory)
        if lengths is not None:
            lengths = lengths_of("memory_lengths", lengths, *memory.shape[:2])
        return memory, lengths


def require_memory(features: int | None, memory: Any) -> None:
    """A memory is for stacks that were made with memory_features, and for all of these."""
    rule = "be given where the stack has memory_features, and only there"
    got = f"memory_features {features}, memory {'None' if memory is None else 'given'}"
    require((features is None) == (memory is None), "memory", rule, got)


def apart(cache: Cache) -> tuple[Cache, ...]:
    """A stack's cache as one of each layer."""
    layers, batch = cache.key.shape[:2]
    used = (jnp.broadcast_to(cache.used[i], batch) for i in range(layers))
    return tuple(Cache(cache.key[i], cache.value[i], each) for i, each in enumerate(used))


def _scanned(graphdef, function, remat, state, inputs, lengths, memory, rng):
    def layer(outputs, state, number):
        block = nnx.merge(graphdef, state)
        outputs, asked = block(outputs, lengths, memory, fold(rng, number))
        return outputs, None if function is None else function(block, asked, memory)

    # Without remat, matrix products and attention are kept: the rest is cheaper to compute again.
    kept = jax.checkpoint_policies.save_only_these_names(matmul.KEPT, streaming.KEPT)
    layer = jax.checkpoint(layer, prevent_cse=False, policy=None if remat else kept)
    numbers = jnp.arange(jax.tree.leaves(state)[0].shape[0])
    return jax.lax.scan(lambda outputs, now: layer(outputs, *now), inputs, (state, numbers))


def _in_turn(function, remat, blocks, outputs, lengths, memory, rng):
    def layer(block, number, outputs):
        outputs, asked = block(outputs, lengths, memory, fold(rng, number))
        return outputs, None if function is None else function(block, asked, memory)

    looks = []
    for number, block in enumerate(blocks):
        run = partial(layer, block, number)
        outputs, look = (jax.checkpoint(run) if remat else run)(outputs)
        looks.append(look)
    return outputs, jax.tree.map(lambda *each: jnp.stack(each), *looks)


def _extended(graphdef, state, inputs, cache, memory):
    def layer(outputs, now):
        return nnx.merge(graphdef, now[0]).extend(outputs, now[1], memory)[:2]

    return jax.lax.scan(layer, inputs, (state, cache))


_compiled = partial(jax.jit, static_argnums=(0, 1, 2))(_scanned)
_compiled_extension = partial(jax.jit, static_argnums=0)(_extended)
