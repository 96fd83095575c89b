"""Blocks of a Transformer: attention, attention to a memory, a feed-forward layer."""

from typing import Any, Literal, NamedTuple

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
from attn_jax.normalizers import Softmax
from attn_jax.position_encodings import Rotary
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score

# rows, or what `MultiHeadAttention.project_memory` made of them; and their lengths
PaddedMemory = tuple[Num[Array, "m s c"] | KeyValue, Int[ArrayLike, " m"] | None]

ACTIVATIONS = {"gelu": jax.nn.gelu, "relu": jax.nn.relu, "swiglu": jax.nn.silu}
POSITIONS = ("none", "rotary", "alibi")
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


class Queries(NamedTuple):
    """What a block's attentions project to queries: of itself, and of the memory."""

    own: Float[Array, "b t d"]
    memory: Float[Array, "b t d"] | None


class Block(nnx.Module):
    """Attention, attention to a memory if there is one, and a feed-forward layer.

    Each is added to its inputs, which it gets normalized: x + f(norm(x)). (Xiong et al. 2020.)

    Args:
      features: d of inputs and outputs.
      heads: of each attention. key_value_heads: see `MultiHeadAttention`.
      hidden: units of the feed-forward layer; None: 4 · features.
      memory_features: of a memory to attend to as well; None: there is none.
      score, normalizer, score_mod, mask: slots of the self-attention (the first two also of the
        attention to the memory). Arrays in them are parameters: see `Slots`.
      positions: "rotary", a `Rotary` or "alibi"; others are added to the inputs by an `Embedding`.
      activation: of the feed-forward layer. norm: "layer" or "rms".
      normalize_query_key, bias, implementation, dtype: as for `MultiHeadAttention`.
      sequence_axis: likewise, for the self-attention.
      dropout: rate on weights and on what each part adds.
      rngs: a seed for the parameters.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        hidden: int | None = None,
        key_value_heads: int | None = None,
        memory_features: int | None = None,
        score: Score = ScaledDot(),
        normalizer: Any = Softmax(),
        score_mod: ScoreMod | None = None,
        mask: MaskFunction | None = None,
        positions: Literal["none", "rotary", "alibi"] | Rotary = "none",
        activation: str = "gelu",
        norm: str = "layer",
        normalize_query_key: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        implementation: str = "auto",
        sequence_axis: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        rule = f"be one of {list(POSITIONS)} in a stack (an Embedding adds the others)"
        known = positions in POSITIONS or isinstance(positions, Rotary)
        require(known, "positions", rule, repr(positions))
        (hidden,) = sizes_of(hidden=hidden)
        self.dropout = dropout
        require(norm in NORMS, "norm", f"be one of {list(NORMS)}", repr(norm))
        slots = {"score": score, "normalizer": normalizer, "dropout": dropout, "bias": bias}
        slots |= {"implementation": implementation, "dtype": dtype, "rngs": rngs}
        slots |= {"key_value_heads": key_value_heads, "normalize_query_key": normalize_query_key}
        own = {"score_mod": score_mod, "mask": mask, "sequence_axis": sequence_axis}
        own |= {"positions": None if positions == "none" else positions}

        def normalization() -> nnx.Module:
            return NORMS[norm](features, param_dtype=float, dtype=dtype, rngs=rngs)

        self.attention_norm = normalization()
        self.attention = MultiHeadAttention(features, heads, **slots, **own)
        self.cross_norm = self.cross = nnx.data(None)
        if memory_features is not None:
            self.cross_norm = normalization()
            slots |= {"memory_features": memory_features}
            self.cross = MultiHeadAttention(features, heads, **slots)
        self.forward_norm = normalization()
        maps = {"activation": activation, "bias": bias, "dtype": dtype, "rngs": rngs}
        self.forward = FeedForward(features, hidden or 4 * features, **maps)

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
