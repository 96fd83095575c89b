"""Blocks of a Transformer: attention, attention to a memory, a feed-forward layer."""

from typing import Any, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Num, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.masks import MaskFunction
from attn_jax.meshes import regrouped
from attn_jax.nn.arguments import fold, require_dtype, require_flags, require_rngs, sizes_of
from attn_jax.nn.cache import Cache, KeyValue
from attn_jax.nn.self_attention import MultiHeadAttention, linear
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import Score

# rows, or what `MultiHeadAttention.project_memory` made of them; and their lengths
PaddedMemory = tuple[Num[Array, "m s c"] | KeyValue, Int[ArrayLike, " m"] | None]

ACTIVATIONS = {"gelu": jax.nn.gelu, "relu": jax.nn.relu, "swiglu": jax.nn.silu}
NORMS = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}


class FeedForward(nnx.Module):
    """Two linear maps with a non-linearity between, or a gated one. (Shazeer 2020.)

    Args:
      features: of inputs and outputs.
      hidden: units between.
      activation: "gelu", "relu", or "swiglu", which multiplies by silu of a third map.
      bias: whether the maps have one.
      dtype: of the computation; None: what inputs and parameters promote to.
      rngs: a seed for the parameters.

    >>> options = {"activation": "swiglu", "bias": False, "rngs": nnx.Rngs(0)}
    >>> FeedForward(8, 32, **options)(jax.numpy.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        activation: str,
        bias: bool,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        known = f"be one of {list(ACTIVATIONS)}"
        require(activation in ACTIVATIONS, "activation", known, repr(activation))
        features, hidden = sizes_of(features=features, hidden=hidden)
        require_dtype(dtype)
        require_flags(bias=bias)
        require_rngs(rngs)
        self.activation, self.dtype = activation, dtype
        how = {"use_bias": bias, "param_dtype": float, "rngs": rngs}
        self.up = nnx.Linear(features, hidden, **how)
        self.gate = nnx.data(None)
        if activation == "swiglu":
            self.gate = nnx.Linear(features, hidden, **how)
        self.down = nnx.Linear(hidden, features, **how)

    def __call__(self, inputs: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map each position by itself."""
        units, act = linear(self.up, inputs, self.dtype), ACTIVATIONS[self.activation]
        if self.gate is None:
            units = act(units)
        else:
            units = units * act(linear(self.gate, inputs, self.dtype))
        return linear(self.down, units, self.dtype)


class BlockOptions(NamedTuple):
    """What all blocks of a stack have in common; see `Stack`."""

    features: int
    heads: int
    hidden: int
    key_value_heads: int | None
    score: Score
    normalizer: Any
    score_mod: ScoreMod | None
    mask: MaskFunction | None
    positions: str
    activation: str
    norm: str
    normalize_query_key: bool
    bias: bool
    dropout: float
    implementation: str
    dtype: Any


class Queries(NamedTuple):
    """What a block's attentions project to queries: of itself, and of the memory."""

    own: Float[Array, "b t d"]
    memory: Float[Array, "b t d"] | None


class Block(nnx.Module):
    """Attention, attention to a memory if there is one, and a feed-forward layer.

    Each is added to its inputs, which it gets normalized: x + f(norm(x)). (Xiong et al. 2020.)
    """

    def __init__(self, options: BlockOptions, *, memory_features: int | None, rngs: nnx.Rngs):
        o = options
        slots = {"score": o.score, "normalizer": o.normalizer, "dropout": o.dropout}
        slots |= {"implementation": o.implementation, "dtype": o.dtype, "bias": o.bias}
        slots |= {"key_value_heads": o.key_value_heads}
        slots |= {"normalize_query_key": o.normalize_query_key, "rngs": rngs}
        positions = None if o.positions == "none" else o.positions
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
        maps = {"activation": o.activation, "bias": o.bias, "dtype": o.dtype}
        self.forward = FeedForward(o.features, o.hidden, **maps, rngs=rngs)

    def __call__(
        self,
        inputs: Float[Array, "b t d"],
        lengths: Int[Array, " b"] | None = None,
        memory: PaddedMemory | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b t d"], Queries]:
        """All positions at once, and the queries; `memory` is (rows or projected, lengths).

        The examples' memories may be fewer: several neighbours, hypotheses of one source, share it.
        """
        own = self.attention_norm(inputs)
        attended = self.attention(own, lengths=lengths, rng=fold(rng, 0))
        outputs, queries = self._rest(inputs + self._drop(attended, rng, 1), memory, rng)
        return outputs, Queries(own, queries)

    def extend(
        self, inputs: Float[Array, "b t d"], cache: Cache, memory: PaddedMemory | None
    ) -> tuple[Float[Array, "b t d"], Cache, Queries]:
        """The next positions, the cache with them, and the queries."""
        own = self.attention_norm(inputs)
        attended, cache = self.attention.extend(own, cache)
        outputs, queries = self._rest(inputs + attended, memory, None)
        return outputs, cache, Queries(own, queries)

    def alignment(
        self, queries: Float[Array, "b t d"], memory: PaddedMemory
    ) -> Float[Array, "b t s"]:
        """The weights over the memory, the mean of the heads."""
        weights = self.cross.weights(_by_memory(queries, memory[0]), memory[0], lengths=memory[1])
        weights = weights.mean(axis=1)
        return regrouped(weights, (*queries.shape[:2], weights.shape[2]))

    def _rest(
        self, inputs: Array, memory: PaddedMemory | None, rng: PRNGKeyArray | None
    ) -> tuple[Array, Array | None]:
        queries = None
        if self.cross is not None:
            rows, lengths = memory
            queries = self.cross_norm(inputs)
            each = _by_memory(queries, rows)
            attended = self.cross(each, rows, lengths=lengths, rng=fold(rng, 2))
            inputs = inputs + self._drop(regrouped(attended, inputs.shape), rng, 3)
        return inputs + self._drop(self.forward(self.forward_norm(inputs)), rng, 4), queries

    def _drop(self, units: Array, rng: PRNGKeyArray | None, number: int) -> Array:
        return drop_units(units, self.dropout, fold(rng, number))


def _by_memory(
    queries: Float[Array, "n t d"], memory: Num[Array, "m s c"] | KeyValue
) -> Float[Array, "m q d"]:
    """The queries of one memory in one example: attention to it does not depend on positions."""
    memories = jax.tree.leaves(memory)[0].shape[0]
    return regrouped(queries, (memories, -1, queries.shape[-1])) if memories else queries
