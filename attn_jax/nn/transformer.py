"""Transformers: stacks of blocks, scanned over their layers.

A stack keeps the parameters of all layers in one array each, [layers, …], and runs them in one
scan: what is compiled does not grow with the depth. Each block may be recomputed in the backward
pass (`remat`), so that the memory of a gradient is that of one block and the layers' inputs.
Decoding, which runs each layer anew for every token, is for a stack that is `unrolled`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Num, PRNGKeyArray

from attn_jax.attention_slots import SIGNATURES
from attn_jax.checks import require
from attn_jax.nn import over_layers
from attn_jax.nn.arguments import (
    lengths_of,
    positions_of,
    require_dtype,
    require_flags,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.blocks import Block, Rows
from attn_jax.nn.cache import AnyCache, KeyValue, require_each_layer
from attn_jax.nn.over_layers import Inspect
from attn_jax.nn.parts import Norm, norm_part
from attn_jax.slots import is_pure


class Stack(nnx.Module):
    """Blocks one on the other, and a norm at the end.

    Args:
      features: d of inputs and outputs.
      heads: of each attention.
      layers: how many blocks.
      memory_features: of a memory to attend to as well; None: there is none.
      norm, residual: of the blocks; the norm at the end is of the same kind, and there is none
        where the blocks' residual is "post_norm".
      pattern: options of neighbouring blocks that differ from the others, repeated up to the last
        layer: `[{"mask": Window(9, 0)}, {}]` for a window in every second one. None: all are alike.
      dtype: of the computation; None: what inputs and parameters promote to.
      remat: recompute each block in the backward pass instead of keeping what is in it.
      rngs: a seed for the parameters.
      options: further ones of each `Block`: slots, positions, dropout and so on. Arrays in slots
        are parameters, each layer's own.

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
        memory_features: int | None = None,
        norm: Norm = "layer",
        residual: str = "pre_norm",
        pattern: Sequence[Mapping[str, Any]] | None = None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        features, layers, memory_features = sizes_of(
            features=features, layers=layers, memory_features=memory_features
        )
        require_flags(remat=remat)
        require_rngs(rngs)
        require_dtype(dtype)
        options |= {"memory_features": memory_features, "norm": norm, "dtype": dtype}
        options |= {"residual": residual}
        pattern = [{}] if pattern is None else list(pattern)
        divides = len(pattern) > 0 and layers % len(pattern) == 0
        require(divides, "pattern", f"have a length that divides layers, {layers}", len(pattern))
        self.features, self.memory_features, self.dtype = features, memory_features, dtype
        self.count, self.remat = layers, remat

        @nnx.split_rngs(splits=layers // len(pattern))
        @nnx.vmap(in_axes=(0,), out_axes=0, transform_metadata=over_layers.BY_LAYER)
        def blocks(rngs: nnx.Rngs) -> Block | over_layers.Pattern:
            each = [Block(features, heads, **options | own, rngs=rngs) for own in pattern]
            return each[0] if len(each) == 1 else over_layers.Pattern(each)

        self.blocks = blocks(rngs)
        self.pure = all(
            is_pure(block.attention.slots[name])
            for block in over_layers.pattern_of(self.blocks)
            for name in SIGNATURES
        )
        self.norm = nnx.data(None)
        if residual != "post_norm":
            self.norm = norm_part("norm", norm, features, dtype, rngs)

    def __call__(
        self,
        inputs: Num[ArrayLike, "b t d"],
        *,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b t"] | None = None,
        memory: Num[ArrayLike, "b s c"] | None = None,
        memory_lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """All positions at once; with `rng`, in training, some units are dropped.

        Args:
          inputs: rows.
          lengths: where each example's rows end.
          padding: how many rows come before those of each example.
          positions: of the rows, for rotary ones; None: 0, 1, …, after the padding.
          memory: what is attended to as well.
          memory_lengths: how many rows of it each example has.
          rng: for dropout.

        Values in padding, NaN too, change no other position and no gradient.
        """
        rows = {"lengths": lengths, "padding": padding, "positions": positions}
        where = {"memory": memory, "memory_lengths": memory_lengths, "rng": rng}
        return self.inspect(None, inputs, **rows, **where)[0]

    def inspect(
        self,
        function: Inspect | None,
        inputs: Num[ArrayLike, "b t d"],
        *,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b t"] | None = None,
        memory: Num[ArrayLike, "b s c"] | None = None,
        memory_lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b t d"], Any]:
        """The outputs, and function(block, queries, memory) of each layer, [layers, …].

        Compiled once for equal shapes and slots; where a slot or the function is not one of
        the library's it is compiled at each call outside `jax.jit`: what it closes over may have
        changed.

        >>> stack, rows = Stack(8, 2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 5, 8))
        >>> weights = lambda block, queries, _: block.attention.weights(queries.own)
        >>> stack.inspect(weights, rows)[1].shape
        (3, 1, 2, 5, 5)
        """
        inputs = self._rows(inputs)
        if lengths is not None:
            lengths = lengths_of("lengths", lengths, *inputs.shape[:2])
        if padding is not None:
            padding = lengths_of("padding", padding, *inputs.shape[:2])
        inputs = without_padding(inputs, lengths, padding)
        positions = positions_of(positions, inputs, padding)
        require_memory(self.memory_features, memory)
        if memory is not None:
            memory = rows_of("memory", memory, self.memory_features)
            rule = f"be of {inputs.shape[0]} examples, as the inputs"
            require(memory.shape[0] == inputs.shape[0], "memory", rule, memory)
            if memory_lengths is not None:
                memory_lengths = lengths_of("memory_lengths", memory_lengths, *memory.shape[:2])
            memory = memory, memory_lengths
        outputs, found = over_layers.forward(
            self.blocks,
            function,
            inputs,
            Rows(lengths, padding, positions),
            memory,
            rng,
            remat=self.remat,
            once=self.pure and is_pure(function),
        )
        return self._normalized(outputs), found

    # Decoding

    def cache(
        self, batch: int, length: int, padding: Int[ArrayLike, " b"] | None = None
    ) -> tuple[AnyCache, ...]:
        """An empty cache of each layer, with room for so many positions.

        The first `padding` of each example are not there. See `MultiHeadAttention.cache`.
        """
        return tuple(block.attention.cache(batch, length, None, padding) for block in self.layers())

    def project_memory(self, memory: Num[ArrayLike, "b s c"]) -> tuple[KeyValue, ...]:
        """The memory as each layer's heads compare and sum it."""
        require_memory(self.memory_features, memory)
        return tuple(block.cross.project_memory(memory) for block in self.layers())

    def extend(
        self,
        inputs: Num[ArrayLike, "b t d"],
        cache: tuple[AnyCache, ...],
        *,
        memory: Num[ArrayLike, "m s c"] | tuple[KeyValue, ...] | None = None,
        memory_lengths: Int[ArrayLike, " m"] | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[AnyCache, ...]]:
        """The outputs at the next positions, as many of each example, and the cache with them.

        The memory may be what `project_memory` made of it, and neighbouring examples, hypotheses of
        one source, may share one. What the cache has no room for is refused, or NaN where JAX
        traces: see `Cache.require_room`.
        """
        return self.extend_aligned(inputs, cache, memory=memory, memory_lengths=memory_lengths)[:2]

    def extend_aligned(
        self,
        inputs: Num[ArrayLike, "b t d"],
        cache: tuple[AnyCache, ...],
        *,
        memory: Num[ArrayLike, "m s c"] | tuple[KeyValue, ...] | None,
        memory_lengths: Int[ArrayLike, " m"] | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[AnyCache, ...], Float[Array, "b t s"] | None]:
        """`extend`, and the last layer's weights over the memory, the mean of its heads."""
        inputs = self._rows(inputs)
        require_each_layer("cache", cache, AnyCache, self.count)
        for each in cache:
            each.require_room(inputs)
        require_memory(self.memory_features, memory)
        if memory is not None:
            if not isinstance(memory, tuple):
                memory = self.project_memory(memory)
            require_each_layer("memory", memory, KeyValue, self.count)
            sources, _, length, _ = memory[0].key.shape
            shared = inputs.shape[0] % max(sources, 1) == 0
            rule = f"be of {inputs.shape[0]} examples, as the inputs, or of a divisor of it"
            require(shared, "memory", rule, f"{sources}")
            if memory_lengths is not None:
                memory_lengths = lengths_of("memory_lengths", memory_lengths, sources, length)
        given = inputs, cache, memory, memory_lengths
        outputs, cache, queries = over_layers.extended(self.blocks, *given, once=self.pure)
        alignment = None
        if memory is not None:
            alignment = self.layers()[-1].alignment(queries, (memory[-1], memory_lengths))
        return self._normalized(outputs), cache, alignment

    def unrolled(self) -> "Stack":
        """The same stack with each layer's parameters in arrays of their own.

        In a loop over tokens the layers are then not cut out of one array for every token.
        """
        other = nnx.merge(*nnx.split(self))
        other.blocks = nnx.List(self.layers())
        return other

    def layers(self) -> list[Block]:
        """Each layer by itself."""
        return over_layers.layers_of(self.blocks, self.count)

    def _rows(self, inputs: ArrayLike) -> Array:
        inputs = rows_of("inputs", inputs, self.features)
        first = over_layers.pattern_of(self.blocks)[0]
        promoted = jnp.result_type(inputs, first.attention.query.kernel[...])
        return inputs.astype(promoted if self.dtype is None else self.dtype)

    def _normalized(self, outputs: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        return outputs if self.norm is None else self.norm(outputs)


def require_memory(features: int | None, memory: Any) -> None:
    """A memory is for stacks that were made with memory_features, and for all of these."""
    rule = "be given where the stack has memory_features, and only there"
    got = f"memory_features {features}, memory {'None' if memory is None else 'given'}"
    require((features is None) == (memory is None), "memory", rule, got)
