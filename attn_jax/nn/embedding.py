"""Tokens as vectors that know where they stand, and vectors as logits over the same tokens."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax.checks import at_least, concrete, require
from attn_jax.dropout import drop_units
from attn_jax.matmul import affine
from attn_jax.meshes import gathered
from attn_jax.nn.arguments import (
    require_dtype,
    require_flags,
    require_rate,
    require_rngs,
    sizes_of,
    tokens_of,
)
from attn_jax.position_encodings import Rotary, sinusoids

Positions = Literal["none", "sinusoidal", "learned", "rotary", "alibi"] | Rotary
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi")


class Embedding(nnx.Module):
    """Tokens as vectors that know where they stand, and vectors as logits over the same tokens.

    Args:
      vocabulary: number of tokens. features: d.
      positions: "sinusoidal" or "learned" are added here; others leave it to attention.
      longest: how many positions there are to learn.
      tied: whether logits compare with the same vectors. (Press & Wolf 2017.)
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
        tied: bool = True,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        vocabulary, features, longest = sizes_of(
            vocabulary=vocabulary, features=features, longest=longest
        )
        require_flags(tied=tied)
        require_rngs(rngs)
        known = positions in POSITIONS or isinstance(positions, Rotary)
        require(known, "positions", f"be one of {list(POSITIONS)}", repr(positions))
        require_rate(dropout)
        require_dtype(dtype)
        self.positions, self.dropout, self.dtype = positions, dropout, dtype

        def normal(rows: int, scale: float) -> nnx.Param:
            return nnx.Param(scale * jax.random.normal(rngs.params(), (rows, features), float))

        self.tokens = normal(vocabulary, features**-0.5)
        self.learned = normal(longest, 0.02) if positions == "learned" else nnx.data(None)
        self.output = nnx.data(None)
        if not tied:
            self.output = normal(vocabulary, features**-0.5)
        self.bias = nnx.Param(jnp.zeros(vocabulary))

    def __call__(
        self,
        tokens: Int[ArrayLike, "b t"],
        *,
        start: Int[ArrayLike, ""] | int = 0,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """The tokens' vectors, of unit variance, and their positions from `start` on.

        Where `start` is traced it is not checked: at positions beyond those learned all is NaN.
        """
        vocabulary, features = self.tokens.shape
        tokens = tokens_of("tokens", tokens, vocabulary)
        known = concrete(start)
        require(known is None or known >= 0, "start", "not be negative", start)
        self.require_positions("tokens", (0 if known is None else int(known)) + tokens.shape[1])
        rows = gathered(self.tokens[...], tokens) * features**0.5
        at = start + jnp.arange(tokens.shape[1])
        if self.positions == "sinusoidal":
            rows = rows + sinusoids(at, features)[None].astype(rows.dtype)
        elif self.positions == "learned":
            rows = rows + gathered(self.learned[...], at)[None]
            rows = jnp.where((at < self.most_positions)[None, :, None], rows, jnp.nan)
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
        """The kernel and the bias that make logits of outputs of this dtype."""
        table = self.tokens if self.output is None else self.output
        summed = jnp.promote_types(dtype, jnp.float32)
        return table[...].T.astype(dtype), self.bias[...].astype(summed)

    def logits(self, outputs: Float[Array, "*n d"]) -> Float[Array, "*n v"]:
        """Scores of every token; those of half-precision outputs are summed in float32."""
        kernel, bias = self.output_layer(outputs.dtype)
        if bias.dtype == outputs.dtype:
            return affine(outputs, kernel, bias)
        rows = outputs.reshape(-1, outputs.shape[-1])
        logits = jnp.matmul(rows, kernel, preferred_element_type=bias.dtype) + bias[None]
        return logits.reshape(*outputs.shape[:-1], kernel.shape[1])
