"""Blocks of a Transformer: attention, attention to a memory, a feed-forward layer."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Num, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.masks import MaskFunction
from attn_jax.meshes import regrouped
from attn_jax.nn.arguments import fold, require_dtype, require_rngs, sizes_of
from attn_jax.nn.cache import AnyCache, KeyValue
from attn_jax.nn.parts import (
    Activation,
    Bias,
    Gated,
    Norm,
    activation_part,
    linear,
    norm_part,
    places_with_bias,
)
from attn_jax.nn.self_attention import MultiHeadAttention
from attn_jax.position_encodings import Rotary
from attn_jax.score_mods import ScoreMod

# rows, or what `MultiHeadAttention.project_memory` made of them; and their lengths
PaddedMemory = tuple[Num[Array, "m s c"] | KeyValue, Int[ArrayLike, " m"] | None]

POSITIONS = ("none", "rotary", "alibi")
RESIDUALS = ("pre_norm", "post_norm", "sandwich_norm", "parallel")


class Rows(NamedTuple):
    """Which rows of the inputs are there, and where they stand; None: all, from 0 on."""

    lengths: Int[Array, " b"] | None = None
    padding: Int[Array, " b"] | None = None  # rows before those of each example
    positions: Int[Array, "*#b t"] | None = None


ALL_ROWS = Rows()


class FeedForward(nnx.Module):
    """Two linear maps with a non-linearity between, or a gated one. (Shazeer 2020.)

    Args:
      features: of inputs and outputs.
      hidden: units between.
      activation: a name of `nn.parts.ACTIVATIONS` ("gelu", "relu", "swiglu" …), a function of an
        array, or `Gated(function)`, which multiplies by that of a third map.
      bias: whether the maps have one; or the names of those that do, of "up", "gate" and "down".
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
        activation: Activation,
        bias: Bias,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        activation, places = activation_part(activation), places_with_bias(bias)
        features, hidden = sizes_of(features=features, hidden=hidden)
        require_dtype(dtype)
        require_rngs(rngs)
        gated = isinstance(activation, Gated)
        self.activation = activation.function if gated else activation
        self.dtype = dtype

        def linear_map(place: str, inputs: int, outputs: int) -> nnx.Linear:
            own = place in places
            return nnx.Linear(inputs, outputs, use_bias=own, param_dtype=float, rngs=rngs)

        self.up = linear_map("up", features, hidden)
        self.gate = linear_map("gate", features, hidden) if gated else nnx.data(None)
        self.down = linear_map("down", hidden, features)

    def __call__(self, inputs: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map each position by itself."""
        units = linear(self.up, inputs, self.dtype)
        if self.gate is None:
            units = self.activation(units)
        else:
            units = units * self.activation(linear(self.gate, inputs, self.dtype))
        return linear(self.down, units, self.dtype)


class Queries(NamedTuple):
    """What a block's attentions project to queries: of itself, and of the memory."""

    own: Float[Array, "b t d"]
    memory: Float[Array, "b t d"] | None


class Block(nnx.Module):
    """Attention, attention to a memory if there is one, and a feed-forward layer.

    | residual | x becomes | |
    |---|---|---|
    | "pre_norm" | x + f(norm(x)) | Xiong et al. 2020; GPT-2, Llama |
    | "post_norm" | norm(x + f(x)) | Vaswani et al. 2017; BERT, BART |
    | "sandwich_norm" | x + norm(f(norm(x))) | Ding et al. 2021; Gemma 2 |
    | "parallel" | x + f(norm(x)) + g(norm(x)), g the feed-forward layer | GPT-J, GPT-NeoX |

    Args:
      features: d of inputs and outputs.
      heads: of each attention.
      hidden: units of the feed-forward layer; None: 4 · features.
      memory_features: of a memory to attend to as well; None: there is none.
      score_mod, mask, sequence_axis: of the self-attention; see `MultiHeadAttention`.
      positions: "rotary", a `Rotary` or "alibi"; others are added to the inputs by an `Embedding`.
      norm: "layer", "rms", or a part that makes one: see `nn.parts`.
      residual: of the table.
      activation: of the feed-forward layer; see `FeedForward`.
      feed_forward: what makes another feed-forward layer, called with (features, dtype=…, rngs=…);
        None: a `FeedForward`.
      bias: whether linear maps have one; or the names of those that do: see `nn.parts.PLACES`.
      dropout: rate on weights and on what each part adds.
      dtype: of the computation; None: what inputs and parameters promote to.
      rngs: a seed for the parameters.
      options: further ones of each `MultiHeadAttention`: score, normalizer, key_value_heads and so
        on. Arrays in slots are parameters: see `Slots`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        hidden: int | None = None,
        memory_features: int | None = None,
        score_mod: ScoreMod | None = None,
        mask: MaskFunction | None = None,
        sequence_axis: str | None = None,
        positions: Literal["none", "rotary", "alibi"] | Rotary = "none",
        norm: Norm = "layer",
        residual: str = "pre_norm",
        activation: Activation = "gelu",
        feed_forward: Callable[..., nnx.Module] | None = None,
        bias: Bias = True,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        rule = f"be one of {list(POSITIONS)} in a stack (an Embedding adds the others)"
        known = positions in POSITIONS or isinstance(positions, Rotary)
        require(known, "positions", rule, repr(positions))
        known = residual in RESIDUALS
        require(known, "residual", f"be one of {list(RESIDUALS)}", repr(residual))
        (hidden,) = sizes_of(hidden=hidden)
        self.dropout, self.residual = dropout, residual
        how = {"dtype": dtype, "rngs": rngs}
        options |= {"dropout": dropout, "bias": bias, **how}
        own = {"score_mod": score_mod, "mask": mask, "sequence_axis": sequence_axis}
        own |= {"positions": None if positions == "none" else positions}

        def normalization() -> nnx.Module:
            return norm_part("norm", norm, features, dtype, rngs)

        self.attention_norm = normalization()
        self.attention = MultiHeadAttention(features, heads, **options, **own)
        self.cross_norm = self.cross = nnx.data(None)
        if memory_features is not None:
            self.cross_norm = normalization()
            options |= {"memory_features": memory_features}
            self.cross = MultiHeadAttention(features, heads, **options)
        self.forward_norm = normalization()
        if feed_forward is None:
            maps = {"activation": activation, "bias": bias}
            self.forward = FeedForward(features, hidden or 4 * features, **maps, **how)
        else:
            self.forward = feed_forward(features, **how)
        self.after = nnx.data(None)
        if residual == "sandwich_norm":
            parts = ["attention", "forward"] + ["cross"] * (self.cross is not None)
            self.after = nnx.data({part: normalization() for part in parts})

    def __call__(
        self,
        inputs: Float[Array, "b t d"],
        rows: Rows = ALL_ROWS,
        memory: PaddedMemory | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b t d"], Queries]:
        """All positions at once, and the queries; `memory` is (rows or projected, lengths).

        The examples' memories may be fewer: several neighbours, hypotheses of one source, share it.
        """
        own = self._before("attention", inputs)
        attended = self.attention(own, **rows._asdict(), rng=fold(rng, 0))
        outputs, queries = self._rest(inputs, attended, memory, rng)
        return outputs, Queries(own, queries)

    def extend(
        self, inputs: Float[Array, "b t d"], cache: AnyCache, memory: PaddedMemory | None
    ) -> tuple[Float[Array, "b t d"], AnyCache, Queries]:
        """The next positions, the cache with them, and the queries."""
        own = self._before("attention", inputs)
        attended, cache = self.attention.extend(own, cache)
        outputs, queries = self._rest(inputs, attended, memory, None)
        return outputs, cache, Queries(own, queries)

    def alignment(
        self, queries: Float[Array, "b t d"], memory: PaddedMemory
    ) -> Float[Array, "b t s"]:
        """The weights over the memory, the mean of the heads."""
        weights = self.cross.weights(_by_memory(queries, memory[0]), memory[0], lengths=memory[1])
        weights = weights.mean(axis=1)
        return regrouped(weights, (*queries.shape[:2], weights.shape[2]))

    def _rest(
        self, inputs: Array, attended: Array, memory: PaddedMemory | None, rng: PRNGKeyArray | None
    ) -> tuple[Array, Array | None]:
        """What follows the self-attention."""
        outputs = self._added("attention", inputs, attended, fold(rng, 1))
        queries = None
        if self.cross is not None:
            memory_rows, lengths = memory
            queries = self._before("cross", outputs)
            each = _by_memory(queries, memory_rows)
            attended = self.cross(each, memory_rows, lengths=lengths, rng=fold(rng, 2))
            outputs = self._added(
                "cross", outputs, regrouped(attended, outputs.shape), fold(rng, 3)
            )
        mapped = self.forward(self._before("forward", inputs if self._parallel else outputs))
        return self._added("forward", outputs, mapped, fold(rng, 4)), queries

    @property
    def _parallel(self) -> bool:
        return self.residual == "parallel"

    def _before(self, part: str, inputs: Array) -> Array:
        """What a part gets."""
        return inputs if self.residual == "post_norm" else getattr(self, f"{part}_norm")(inputs)

    def _added(
        self, part: str, inputs: Array, outputs: Array, rng: PRNGKeyArray | None
    ) -> Float[Array, "b t d"]:
        """What a part's outputs make of its inputs."""
        if self.after is not None:
            outputs = self.after[part](outputs)
        summed = inputs + drop_units(outputs, self.dropout, rng)
        return getattr(self, f"{part}_norm")(summed) if self.residual == "post_norm" else summed


def _by_memory(
    queries: Float[Array, "n t d"], memory: Num[Array, "m s c"] | KeyValue
) -> Float[Array, "m q d"]:
    """The queries of one memory in one example: attention to it does not depend on positions."""
    memories = jax.tree.leaves(memory)[0].shape[0]
    return regrouped(queries, (memories, -1, queries.shape[-1])) if memories else queries
