"""Tokens as vectors that know where they stand, and vectors as logits over the same tokens."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import metrics
from attn_jax.checks import at_least, concrete, require, require_scalar
from attn_jax.dropout import drop_units
from attn_jax.matmul import affine
from attn_jax.meshes import gathered
from attn_jax.nn.arguments import (
    positions_of,
    require_dtype,
    require_flags,
    require_rate,
    require_rngs,
    sizes_of,
    tokens_of,
)
from attn_jax.nn.parts import Norm, norm_part
from attn_jax.position_encodings import Rotary, sinusoids

Positions = Literal["none", "sinusoidal", "learned", "rotary", "alibi"] | Rotary
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi")


class Embedding(nnx.Module):
    """Tokens as vectors that know where they stand, and vectors as logits over the same tokens.

    Args:
      vocabulary: number of tokens. features: d.
      positions: "sinusoidal" or "learned" are added here; others leave it to attention.
      longest: how many positions there are to learn.
      types: how many types of tokens there are, whose vectors are added; None: one, without any.
        (Devlin et al. 2019: the first text and the second.)
      scale: of the tokens' vectors; None: √features, which makes their variance 1.
      norm: of the sum: "layer", "rms" or a part, see `nn.parts`; None: there is none.
      tied: whether logits compare with the same vectors. (Press & Wolf 2017.)
      output_bias: whether logits have a bias.
      output_scale: of the outputs before they are compared.
      logit_cap: c of logits c · tanh(logits / c); None: there is none. (Gemma Team 2024.)
      dropout: rate on the sum.
      dtype: of the vectors; None: that of the parameters.
      rngs: a seed for the parameters.

    >>> embedding = Embedding(11, 8, rngs=nnx.Rngs(0))
    >>> embedding.logits(embedding(jnp.array([[3, 4]]))).shape
    (1, 2, 11)
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        positions: Positions = "none",
        longest: int = 1024,
        types: int | None = None,
        scale: float | None = None,
        norm: Norm | None = None,
        tied: bool = True,
        output_bias: bool = True,
        output_scale: float = 1.0,
        logit_cap: float | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        vocabulary, features, longest, types = sizes_of(
            vocabulary=vocabulary, features=features, longest=longest, types=types
        )
        require_flags(tied=tied, output_bias=output_bias)
        if logit_cap is not None:
            require_scalar(logit_cap, "logit_cap")
            require(logit_cap > 0, "logit_cap", "be positive or None", logit_cap)
        require_rngs(rngs)
        known = positions in POSITIONS or isinstance(positions, Rotary)
        require(known, "positions", f"be one of {list(POSITIONS)}", repr(positions))
        require_rate(dropout)
        require_dtype(dtype)
        self.positions, self.dropout, self.dtype = positions, dropout, dtype
        self.scale = features**0.5 if scale is None else scale
        self.output_scale, self.logit_cap = output_scale, logit_cap

        def normal(rows: int, scale: float) -> nnx.Param:
            return nnx.Param(scale * jax.random.normal(rngs.params(), (rows, features), float))

        self.tokens = normal(vocabulary, features**-0.5)
        self.learned = normal(longest, 0.02) if positions == "learned" else nnx.data(None)
        self.types = nnx.data(None) if types is None else normal(types, 0.02)
        self.norm = nnx.data(None)
        if norm is not None:
            self.norm = norm_part("norm", norm, features, dtype, rngs)
        self.output = nnx.data(None)
        if not tied:
            self.output = normal(vocabulary, features**-0.5)
        self.bias = nnx.Param(jnp.zeros(vocabulary)) if output_bias else nnx.data(None)

    def __call__(
        self,
        tokens: Int[ArrayLike, "b t"],
        *,
        start: Int[ArrayLike, ""] | int = 0,
        positions: Int[ArrayLike, "*#b t"] | None = None,
        types: Int[ArrayLike, "b t"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """The tokens' vectors, of unit variance, and their positions: those given, or from `start`.

        Where positions are traced they are not checked: beyond those learned all is NaN.
        """
        vocabulary, features = self.tokens.shape
        tokens = tokens_of("tokens", tokens, vocabulary)
        if positions is None:
            known = concrete(start)
            require(known is None or known >= 0, "start", "not be negative", start)
            self.require_positions("tokens", (0 if known is None else int(known)) + tokens.shape[1])
            at = start + jnp.arange(tokens.shape[1])
        else:
            at = positions_of(positions, tokens, None)
            known = concrete(at)
            if known is not None:
                self.require_positions("positions", int(known.max(initial=-1)) + 1)
        rows = gathered(self.tokens[...], tokens) * self.scale
        if self.positions == "sinusoidal":
            places = sinusoids(at.ravel(), features).reshape(*at.shape, features)
            rows = rows + (places[None] if at.ndim == 1 else places).astype(rows.dtype)
        elif self.positions == "learned":
            places = gathered(self.learned[...], at)
            places = jnp.where((at < self.most_positions)[..., None], places, jnp.nan)
            rows = rows + (places[None] if at.ndim == 1 else places)
        if self.types is not None:
            count = self.types.shape[0]
            types = jnp.zeros_like(tokens) if types is None else tokens_of("types", types, count)
            rows = rows + gathered(self.types[...], types)
        rows = rows if self.norm is None else self.norm(rows)
        rows = rows if self.dtype is None else rows.astype(self.dtype)
        return drop_units(rows, self.dropout, rng)

    @property
    def most_positions(self) -> int | float:
        """How many positions there are: as many as are learned; all others go on for ever."""
        return math.inf if self.learned is None else self.learned.shape[0]

    def require_positions(self, name: str, count: int) -> None:
        """Refuse more positions than there are."""
        rule = f"take at most {self.most_positions} positions, which are learned"
        beyond = self.learned is not None and at_least(count, self.most_positions + 1)
        require(not beyond, name, rule, count)

    def output_layer(self, dtype: Any) -> tuple[Float[Array, "d v"], Float[Array, " v"]]:
        """The kernel and the bias that make logits, uncapped, of outputs of this dtype."""
        table = (self.tokens if self.output is None else self.output)[...]
        table = table if self.output_scale == 1 else table * self.output_scale
        summed = jnp.promote_types(dtype, jnp.float32)
        bias = jnp.zeros(len(table)) if self.bias is None else self.bias[...]
        return table.T.astype(dtype), bias.astype(summed)

    def logits(self, outputs: Float[Array, "*n d"]) -> Float[Array, "*n v"]:
        """Scores of every token; those of half-precision outputs are summed in float32."""
        kernel, bias = self.output_layer(outputs.dtype)
        if bias.dtype == outputs.dtype:
            return self._capped(affine(outputs, kernel, bias))
        rows = outputs.reshape(-1, outputs.shape[-1])
        logits = jnp.matmul(rows, kernel, preferred_element_type=bias.dtype) + bias[None]
        return self._capped(logits.reshape(*outputs.shape[:-1], kernel.shape[1]))

    def cross_entropy(
        self, outputs: Float[Array, "*n d"], labels: Int[Array, "*n"], **options: Any
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """`metrics.linear_cross_entropy` of the logits; all of them are there where capped."""
        if self.logit_cap is not None:
            logits, where = self.logits(outputs), options.get("where")
            loss, counts = metrics.mean_cross_entropy(logits, labels, **options)
            accuracy = metrics.token_accuracy(logits, labels, where=where)
            return loss, {"accuracy": accuracy, **counts}
        layer = self.output_layer(outputs.dtype)
        return metrics.linear_cross_entropy(outputs, *layer, labels, **options)

    def _capped(self, logits: Float[Array, "*n v"]) -> Float[Array, "*n v"]:
        cap = self.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
