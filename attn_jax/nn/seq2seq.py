"""Sequence to sequence: an encoder of sources, tokens or arrays, and a decoder of target tokens."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, Shaped

from attn_jax import metrics
from attn_jax.checks import require
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
from attn_jax.nn.copying import known
from attn_jax.nn.decoder import Decoder, DecoderState, Times, normal
from attn_jax.nn.encoders import Encoded, memory_length
from attn_jax.recurrence import real_times


class Seq2Seq(nnx.Module):
    """An encoder of sources and a decoder of target tokens.

    Args:
      vocabulary: number of source tokens. None: a source is an array [b, s, ...], which the encoder
        takes as it is: frames of sound, lines of a picture.
      encoder: embedded source [b, s, d] and lengths -> `Encoded`.
      decoder: a `Decoder`.
      embedding: features of a source token, where sources are tokens.
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
        vocabulary: int | None,
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
        self.embedding = nnx.data(None)
        if vocabulary is not None:
            self.embedding = nnx.Param(normal(rngs, vocabulary, embedding))
        if decoder.copying is not None:
            same = vocabulary == decoder.embedding.shape[0]
            rule = f"be the decoder's, {decoder.embedding.shape[0]}, where it copies"
            require(same, "vocabulary", rule, vocabulary)
            even = memory_length(encoder, 2) == 2
            require(
                even, "encoder", "have a position for each token, where these are copied", encoder
            )
        self.encoder, self.decoder = encoder, decoder

    def encode(
        self,
        source: Shaped[ArrayLike, "b s ..."],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode padded sources; with `rng`, in training, some units are dropped."""
        if self.embedding is None:
            source = jnp.asarray(source)
            length = lengths_of("length", length, *source.shape[:2])
            return self.encoder(source, length, rng=fold(rng, 1))
        vocabulary, copies = self.embedding.shape[0], self.decoder.copying is not None
        most = vocabulary + copies * np.shape(source)[-1]
        tokens = source = tokens_of("source", source, most)
        length = lengths_of("length", length, *source.shape)
        if copies:
            source = known(source, vocabulary)
        embedded = drop_units(gathered(self.embedding[...], source), self.dropout, fold(rng, 0))
        encoded = self.encoder(embedded, length, rng=fold(rng, 1))
        return encoded._replace(tokens=tokens) if copies else encoded

    def __call__(
        self,
        source: Shaped[ArrayLike, "b s ..."],
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
        doubly_stochastic: float = 0.0,
        coverage: float = 0.0,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of the batch's target tokens, and their accuracy.

        Args:
          batch: source [b, s], source_length [b], target [b, t] with its end, target_length [b].
          start: the token that stands before the first one.
          label_smoothing: see `metrics.cross_entropy`.
          doubly_stochastic: factor of `metrics.doubly_stochastic` for each target token.
          coverage: factor of `metrics.coverage` for each target token.
          rng: for dropout; None: none is.
        """
        most = self.decoder.tokens(np.shape(batch["source"])[1])
        before, target, real = targets_of(batch, start, most)
        encoded = self.encode(batch["source"], batch["source_length"], rng=rng)
        times = self.decoder.over_times(before, encoded, rng=fold(rng, 2))
        how = {"where": real.T, "label_smoothing": label_smoothing}
        if self.decoder.copying is None:
            layer = self.decoder.output_layer()
            loss, numbers = metrics.linear_cross_entropy(times.readout, *layer, target.T, **how)
        else:
            require(not label_smoothing, "label_smoothing", "be 0 with copying", label_smoothing)
            log_p = self.decoder.mixture(times, encoded)
            loss, numbers = metrics.mean_cross_entropy(log_p, target, where=real)
            numbers |= {"accuracy": metrics.token_accuracy(log_p, target, where=real)}
        factors = {"doubly_stochastic": doubly_stochastic, "coverage": coverage}
        if any(factors.values()):
            loss = loss + self._penalty(times, encoded, real, factors) / jnp.maximum(
                numbers["tokens"], 1
            )
        return loss, numbers

    def _penalty(
        self, times: Times, encoded: Encoded, real: Bool[Array, "b t"], factors: dict[str, float]
    ) -> Float[Array, ""]:
        attends = self.decoder.attention is not None
        require(attends, "/".join(factors), "be 0 without attention", factors)
        weights = self.decoder.weights_of(times, encoded)
        positions = real_times(encoded.length, encoded.memory.shape[1]).T
        once = metrics.doubly_stochastic(weights, real, positions)
        again = metrics.coverage(weights, real)
        return factors["doubly_stochastic"] * once + factors["coverage"] * again

    def begin(
        self,
        source: Shaped[ArrayLike, "b s ..."],
        length: Int[ArrayLike, " b"],
        *,
        longest: int | None = None,
    ) -> tuple[Step, DecoderState]:
        """The step function and the first state for `attn_jax.decoding`; any length has room."""
        del longest  # for a Transformer's cache
        encoded = self.encode(source, length)
        step = partial(self.decoder.step, memory=self.decoder.project_memory(encoded))
        return step, self.decoder.start(encoded)

    def memory_length(self, length: Int[ArrayLike, "*b"]) -> Int[ArrayLike, "*b"]:
        """How many positions the memory of a source of this length has."""
        return memory_length(self.encoder, length)
