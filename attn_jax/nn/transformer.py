"""Transformers: blocks, stacks of them scanned over their layers, language models, translators.

A stack keeps the parameters of all layers in one array each, [layers, …], and runs them in one
scan: what is compiled does not grow with the depth. Each block may be recomputed in the backward
pass (`remat`), so that the memory of a gradient is that of one block and the layers' inputs.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.nn.recurrent import fold, require_rate
from attn_jax.nn.self_attention import Cache, MultiHeadAttention, linear
from attn_jax.normalizers import Softmax
from attn_jax.scores import ScaledDot

Positions = Literal["none", "sinusoidal", "learned", "rotary", "alibi"]
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi")
ACTIVATIONS = {"gelu": jax.nn.gelu, "relu": jax.nn.relu, "swiglu": jax.nn.silu}
NORMS = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}


class FeedForward(nnx.Module):
    """Two linear maps with a non-linearity between, or a gated one. (Shazeer 2020.)

    Args:
      features: of inputs and outputs.
      hidden: units between.
      activation: "gelu", "relu", or "swiglu", which multiplies by silu of a third map.
      bias: whether the maps have one.
      rngs: a seed for the parameters.
    """

    def __init__(self, features: int, hidden: int, *, activation: str, bias: bool, rngs: nnx.Rngs):
        known = f"be one of {list(ACTIVATIONS)}"
        require(activation in ACTIVATIONS, "activation", known, repr(activation))
        self.activation = activation
        how = {"use_bias": bias, "param_dtype": float, "rngs": rngs}
        self.up = nnx.Linear(features, hidden, **how)
        self.gate = nnx.data(None)
        if activation == "swiglu":
            self.gate = nnx.Linear(features, hidden, **how)
        self.down = nnx.Linear(hidden, features, **how)

    def __call__(self, inputs: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map each position by itself."""
        units = linear(self.up, inputs)
        act = ACTIVATIONS[self.activation]
        units = act(units) if self.gate is None else units * act(linear(self.gate, inputs))
        return linear(self.down, units)


class BlockOptions(NamedTuple):
    """What all blocks of a stack have in common; see `Stack`."""

    features: int
    heads: int
    hidden: int
    key_value_heads: int | None
    score: Any
    normalizer: Any
    score_mod: Any
    mask: Any
    positions: str
    activation: str
    norm: str
    normalize_query_key: bool
    bias: bool
    dropout: float
    implementation: str
    dtype: Any


class Block(nnx.Module):
    """Attention, attention to a memory if there is one, and a feed-forward layer.

    Each is added to what it gets, which it sees normalized: x + f(norm(x)). (Xiong et al. 2020.)
    """

    def __init__(self, options: BlockOptions, *, memory_features: int | None, rngs: nnx.Rngs):
        o = options
        slots = {"score": o.score, "normalizer": o.normalizer, "dropout": o.dropout}
        slots |= {"implementation": o.implementation, "dtype": o.dtype, "bias": o.bias}
        slots |= {"key_value_heads": o.key_value_heads}
        slots |= {"normalize_query_key": o.normalize_query_key, "rngs": rngs}
        positions = o.positions if o.positions in ("rotary", "alibi") else None
        own = {"score_mod": o.score_mod, "mask": o.mask, "positions": positions}
        self.dropout = o.dropout

        def norm() -> nnx.Module:
            return NORMS[o.norm](o.features, param_dtype=float, dtype=o.dtype, rngs=rngs)

        self.attention_norm = norm()
        self.attention = MultiHeadAttention(o.features, o.heads, **slots, **own)
        self.cross_norm = self.cross = nnx.data(None)
        if memory_features is not None:
            self.cross_norm = norm()
            slots |= {"memory_features": memory_features}
            self.cross = MultiHeadAttention(o.features, o.heads, **slots)
        self.forward_norm = norm()
        self.forward = FeedForward(
            o.features, o.hidden, activation=o.activation, bias=o.bias, rngs=rngs
        )

    def __call__(
        self,
        inputs: Float[Array, "b t d"],
        lengths: Int[Array, " b"] | None,
        memory: tuple[Array, Array] | None,
        rng: PRNGKeyArray | None,
    ) -> Float[Array, "b t d"]:
        """All positions at once; `memory` is (rows, lengths)."""
        seen = self.attention(self.attention_norm(inputs), lengths=lengths, rng=fold(rng, 0))
        return self._rest(inputs + self._drop(seen, rng, 1), memory, rng)[0]

    def extend(
        self, inputs: Float[Array, "b t d"], cache: Cache, memory: tuple[Array, Array] | None
    ) -> tuple[Float[Array, "b t d"], Cache, Float[Array, "b t d"] | None]:
        """The next positions, the cache that remembers them, and what asked the memory."""
        seen, cache = self.attention.extend(self.attention_norm(inputs), cache)
        outputs, asks = self._rest(inputs + seen, memory, None)
        return outputs, cache, asks

    def _rest(
        self, inputs: Array, memory: tuple | None, rng: PRNGKeyArray | None
    ) -> tuple[Array, Array | None]:
        asks = None
        if self.cross is not None:
            rows, lengths = memory
            asks = self.cross_norm(inputs)
            seen = self.cross(asks, rows, lengths=lengths, rng=fold(rng, 2))
            inputs = inputs + self._drop(seen, rng, 3)
        return inputs + self._drop(self.forward(self.forward_norm(inputs)), rng, 4), asks

    def _drop(self, units: Array, rng: PRNGKeyArray | None, number: int) -> Array:
        return drop_units(units, self.dropout, fold(rng, number))


class Stack(nnx.Module):
    """Blocks one on the other, and a norm at the end.

    Args:
      features: d of inputs and outputs.
      heads: of each attention. key_value_heads: see `MultiHeadAttention`.
      layers: how many blocks.
      hidden: units of the feed-forward layers; None: 4 · features.
      memory_features: of a memory to attend to as well; None: there is none.
      score, normalizer, score_mod, mask: slots of the self-attention (the first two also of the
        attention to the memory).
      positions: "rotary" or "alibi" act here; others are added to the inputs by who embeds them.
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
        require(
            positions in POSITIONS, "positions", f"be one of {list(POSITIONS)}", repr(positions)
        )
        require(norm in NORMS, "norm", f"be one of {list(NORMS)}", repr(norm))
        require(layers >= 1, "layers", "be at least 1", layers)
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
        self.count, self.remat = layers, remat

        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def blocks(rngs: nnx.Rngs) -> Block:
            return Block(options, memory_features=memory_features, rngs=rngs)

        self.blocks = blocks(rngs)
        self.norm = NORMS[norm](features, param_dtype=float, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        inputs: Float[Array, "b t d"],
        *,
        lengths: Int[Array, " b"] | None = None,
        memory: Float[Array, "b s c"] | None = None,
        memory_lengths: Int[Array, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """All positions at once; with `rng`, in training, some units are dropped."""
        seen = None if memory is None else (memory, memory_lengths)

        def layer(outputs, state, number):
            block = nnx.merge(graphdef, state)
            return block(outputs, lengths, seen, fold(rng, number))

        graphdef, state = nnx.split(self.blocks)
        layer = jax.checkpoint(layer) if self.remat else layer
        outputs, _ = jax.lax.scan(
            lambda outputs, now: (layer(outputs, *now), None),
            inputs,
            (state, jnp.arange(self.count)),
        )
        return self.norm(outputs)

    def cache(self, batch: int, length: int) -> Cache:
        """An empty cache [layers, …] for so many positions."""
        graphdef, state = nnx.split(self.blocks)
        first = nnx.merge(graphdef, jax.tree.map(lambda each: each[0], state))
        empty = first.attention.cache(batch, length)
        return jax.tree.map(lambda each: jnp.stack([each] * self.count), empty)

    def caches(self, batch: int, length: int) -> tuple[Cache, ...]:
        """An empty cache of each layer, as decoding carries them: the batch comes first."""
        empty = self.cache(batch, length)
        used = jnp.zeros(batch, jnp.int32)
        return tuple(Cache(empty.key[i], empty.value[i], used) for i in range(self.count))

    def extend_each(
        self,
        inputs: Float[Array, "b t d"],
        caches: tuple[Cache, ...],
        *,
        memory: Float[Array, "b s c"] | None = None,
        memory_lengths: Int[Array, " b"] | None = None,
    ) -> tuple[Float[Array, "b t d"], tuple[Cache, ...], Float[Array, "b t s"] | None]:
        """`extend` by the caches of `caches`: no copy of all layers at every step.

        And the last layer's weights over the memory, the mean of its heads.
        """
        seen = None if memory is None else (memory, memory_lengths)
        graphdef, state = nnx.split(self.blocks)
        outputs, moved = inputs, []
        for number, cache in enumerate(caches):
            block = nnx.merge(graphdef, jax.tree.map(lambda each, i=number: each[i], state))
            outputs, new, asks = block.extend(outputs, cache._replace(used=cache.used[0]), seen)
            moved.append(new._replace(used=jnp.full_like(cache.used, new.used)))
        weights = None
        if memory is not None:
            weights = block.cross.weights(asks, memory, lengths=memory_lengths).mean(axis=1)
        return self.norm(outputs), tuple(moved), weights

    def extend(
        self,
        inputs: Float[Array, "b t d"],
        cache: Cache,
        *,
        memory: Float[Array, "b s c"] | None = None,
        memory_lengths: Int[Array, " b"] | None = None,
    ) -> tuple[Float[Array, "b t d"], Cache]:
        """The next positions, and the cache that remembers them."""
        seen = None if memory is None else (memory, memory_lengths)
        graphdef, state = nnx.split(self.blocks)

        def layer(outputs, now):
            return nnx.merge(graphdef, now[0]).extend(outputs, now[1], seen)[:2]

        outputs, cache = jax.lax.scan(layer, inputs, (state, cache))
        return self.norm(outputs), cache
