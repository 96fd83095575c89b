"""A Transformer that only encodes: texts, or pictures in patches."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Num, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    positions_of,
    require_rngs,
    sizes_of,
    tokens_of,
)
from attn_jax.nn.embedding import Embedding, Positions
from attn_jax.nn.language_model import in_attention
from attn_jax.nn.parts import linear
from attn_jax.nn.transformer import Stack


class Patches(nnx.Module):
    """Square patches of a picture as vectors, after a learned one that stands for all of it.

    Each has a learned position. (Dosovitskiy et al. 2021, eq. 1.)

    Args:
      size: pixels of the picture's sides.
      patch: of a patch's sides; it divides `size`.
      features: of the vectors.
      channels: of a pixel.
      rngs: a seed for the parameters.

    >>> Patches(8, 4, 6, rngs=nnx.Rngs(0))(jnp.ones((1, 8, 8, 3))).shape
    (1, 5, 6)
    """

    def __init__(self, size: int, patch: int, features: int, *, channels: int = 3, rngs: nnx.Rngs):
        size, patch, features, channels = sizes_of(
            size=size, patch=patch, features=features, channels=channels
        )
        require(size % patch == 0, "patch", f"divide size, {size}", patch)
        require_rngs(rngs)
        self.size, self.patch, self.channels = size, patch, channels

        def normal(*shape: int) -> nnx.Param:
            return nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, float))

        self.first = normal(features)
        self.learned = normal(1 + (size // patch) ** 2, features)
        pixels = patch**2 * channels
        self.map = nnx.Linear(pixels, features, param_dtype=float, rngs=rngs)

    def __call__(self, pictures: Num[ArrayLike, "b h w c"]) -> Float[Array, "b t d"]:
        """The vectors, row by row."""
        pictures = jnp.asarray(pictures)
        shape = (self.size, self.size, self.channels)
        rule = f"have shape [batch, {', '.join(map(str, shape))}]"
        require(pictures.ndim == 4 and pictures.shape[1:] == shape, "pictures", rule, pictures)
        count, patch = self.size // self.patch, self.patch
        tiles = pictures.reshape(-1, count, patch, count, patch, self.channels)
        tiles = tiles.swapaxes(2, 3).reshape(-1, count**2, patch**2 * self.channels)
        vectors = linear(self.map, tiles)
        first = jnp.broadcast_to(self.first[...], (len(vectors), 1, vectors.shape[2]))
        return jnp.concatenate([first, vectors], axis=1) + self.learned[...][None]


class TransformerEncoder(nnx.Module):
    """An encoder-only Transformer. (Devlin et al. 2019; Dosovitskiy et al. 2021.)

    Args:
      vocabulary: number of tokens; None: what the stem takes.
      features, heads, layers: of the stack; further options are `Stack`'s.
      stem: a module that makes vectors of other inputs, `Patches` say.
      positions, longest: as for `LanguageModel`.
      embedding: further options of the `Embedding`: types, norm and so on.
      dropout: rate, in training.
      rngs: a seed for the parameters.

    >>> encoder = TransformerEncoder(11, 8, 2, 2, rngs=nnx.Rngs(0))
    >>> encoder(jnp.ones((1, 5), int)).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        vocabulary: int | None,
        features: int,
        heads: int,
        layers: int,
        *,
        stem: Any = None,
        positions: Positions = "learned",
        longest: int = 512,
        embedding: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        one = (vocabulary is None) == (stem is not None)
        require(one, "vocabulary", "be None with a stem, and a number without", vocabulary)
        how = {"dropout": dropout, "dtype": dtype, "rngs": rngs}
        self.embedding, self.stem = nnx.data(None), stem
        if stem is None:
            where = {"positions": positions, "longest": longest, "output_bias": False}
            where |= dict(embedding or {})
            self.embedding = Embedding(vocabulary, features, **where, **how)
        options |= how | {"positions": in_attention(positions)}
        self.stack = Stack(features, heads, layers, **options)

    def __call__(
        self,
        inputs: Num[ArrayLike, "b ..."],
        *,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
        types: Int[ArrayLike, "b t"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """The outputs at each position.

        Args:
          inputs: tokens [b, t], or what the stem takes.
          lengths: where each example's tokens end.
          padding: how many tokens come before those of each example.
          types: of the tokens, 0 where none are given.
          rng: for dropout, in training.
        """
        if self.stem is not None:
            return self.stack(self.stem(inputs), lengths=lengths, rng=fold(rng, 1))
        tokens = tokens_of("inputs", inputs, self.embedding.tokens.shape[0])
        if padding is not None:
            padding = lengths_of("padding", padding, *tokens.shape)
        positions = positions_of(None, tokens, padding)
        embedded = self.embedding(tokens, positions=positions, types=types, rng=fold(rng, 0))
        where = {"lengths": lengths, "padding": padding, "positions": positions}
        return self.stack(embedded, **where, rng=fold(rng, 1))
