"""Sequence to sequence: an encoder of source tokens and a decoder of target tokens."""

import math
from functools import partial

from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import metrics
from attn_jax.decoding import Step
from attn_jax.dropout import drop_units
from attn_jax.meshes import gathered
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    require_rate,
    require_rngs,
    sizes_of,
    targets_of,
    tokens_of,
)
from attn_jax.nn.decoder import Decoder, DecoderState, normal
from attn_jax.nn.encoders import Encoded


class Seq2Seq(nnx.Module):
    """An encoder of source tokens and a decoder of target tokens.

    Args:
      vocabulary: number of source tokens.
      encoder: embedded source [b, s, d] and lengths -> `Encoded`.
      decoder: a `Decoder`.
      embedding: features of a source token.
      dropout: rate on the source's embeddings.
      rngs: a seed for the embeddings.

    >>> import jax.numpy as jnp
    >>> from attn_jax.nn import RecurrentEncoder
    >>> encoder = RecurrentEncoder(4, 3, rngs=nnx.Rngs(0))
    >>> decoder = Decoder(11, 6, 6, embedding=4, features=5, rngs=nnx.Rngs(1))
    >>> model = Seq2Seq(9, encoder, decoder, embedding=4, rngs=nnx.Rngs(2))
    >>> model(jnp.array([[5, 6, 7]]), jnp.array([3]), jnp.array([[2, 8]])).shape
    (1, 2, 11)
    """

    most_positions = math.inf  # of a source or target; a Transformer may have learned so many

    def __init__(
        self,
        vocabulary: int,
        encoder: nnx.Module,
        decoder: Decoder,
        *,
        embedding: int = 128,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        require_rate(dropout)
        vocabulary, embedding = sizes_of(vocabulary=vocabulary, embedding=embedding)
        require_rngs(rngs)
        self.dropout = dropout
        self.embedding = nnx.Param(normal(rngs, vocabulary, embedding))
        self.encoder, self.decoder = encoder, decoder

    def encode(
        self,
        source: Int[ArrayLike, "b s"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode padded sources; with `rng`, in training, some units are dropped."""
        source = tokens_of("source", source, self.embedding.shape[0])
        length = lengths_of("length", length, *source.shape)
        embedded = drop_units(gathered(self.embedding[...], source), self.dropout, fold(rng, 0))
        return self.encoder(embedded, length, rng=fold(rng, 1))

    def __call__(
        self,
        source: Int[ArrayLike, "b s"],
        source_length: Int[ArrayLike, " b"],
        tokens: Int[ArrayLike, "b t"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t v"]:
        """Logits of each next target token, given the tokens before it (teacher forcing)."""
        return self.decoder(tokens, self.encode(source, source_length, rng=rng), rng=fold(rng, 2))

    def loss(
        self,
        batch: dict[str, ArrayLike],
        *,
        start: int,
        label_smoothing: float = 0.0,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of the batch's target tokens, and their accuracy.

        Args:
          batch: source [b, s], source_length [b], target [b, t] with its end, target_length [b].
          start: the token that stands before the first one.
          label_smoothing: see `metrics.cross_entropy`.
          rng: for dropout; None: none is.
        """
        before, target, real = targets_of(batch, start, self.decoder.embedding.shape[0])
        encoded = self.encode(batch["source"], batch["source_length"], rng=rng)
        readout, _ = self.decoder.over_times(before, encoded, rng=fold(rng, 2))
        how = {"where": real.T, "label_smoothing": label_smoothing}
        return metrics.linear_cross_entropy(readout, *self.decoder.output_layer(), target.T, **how)

    def begin(
        self,
        source: Int[ArrayLike, "b s"],
        length: Int[ArrayLike, " b"],
        *,
        longest: int | None = None,
    ) -> tuple[Step, DecoderState]:
        """The step function and the first state for `attn_jax.decoding`; any length has room."""
        del longest  # for a Transformer's cache
        encoded = self.encode(source, length)
        step = partial(self.decoder.step, memory=self.decoder.project_memory(encoded))
        return step, self.decoder.start(encoded.summary)
