"""What Transformers are used as: a language model, and a translator like the recurrent one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import masks, metrics
from attn_jax.dropout import drop_units
from attn_jax.nn.recurrent import Encoded, fold
from attn_jax.nn.self_attention import Cache
from attn_jax.nn.transformer import Positions, Stack
from attn_jax.position_encodings import sinusoids
from attn_jax.recurrence import affine


class Embedding(nnx.Module):
    """Tokens as vectors that know where they stand, and vectors as logits over the same tokens.

    Args:
      vocabulary: number of tokens. features: d.
      positions: "sinusoidal" or "learned" are added here; others leave it to attention.
      longest: how many positions there are to learn.
      tied: whether logits compare with the same vectors. (Press & Wolf 2017.)
      dropout: rate on the sum.
      rngs: a seed for the parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        positions: Positions,
        longest: int,
        tied: bool = True,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
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
        tokens: Int[Array, "b t"],
        *,
        start: Int[Array, ""] | int = 0,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """The tokens' vectors, of unit variance, and their positions from `start` on."""
        features = self.tokens.shape[1]
        rows = self.tokens[...][tokens] * features**0.5
        at = start + jnp.arange(tokens.shape[1])
        if self.positions == "sinusoidal":
            rows = rows + sinusoids(at, features)[None].astype(rows.dtype)
        elif self.positions == "learned":
            rows = rows + self.learned[...][at][None]
        rows = rows if self.dtype is None else rows.astype(self.dtype)
        return drop_units(rows, self.dropout, rng)

    def logits(self, outputs: Float[Array, "*n d"]) -> Float[Array, "*n v"]:
        """Scores of every token."""
        table = self.tokens if self.output is None else self.output
        kernel, bias = table[...].T, self.bias[...]
        return affine(outputs, kernel.astype(outputs.dtype), bias.astype(outputs.dtype))


class LanguageModel(nnx.Module):
    """A decoder-only Transformer: the next token from those before it. (Radford et al. 2018.)

    Args:
      vocabulary: number of tokens.
      features, heads, layers: of the stack; further options are `Stack`'s.
      positions: "rotary", "alibi", "sinusoidal", "learned" or "none".
      longest: how many positions can be learned; others have no limit.
      mask: beside the causal one, a `masks.Window` say.
      tied: whether the output layer is the embedding.
      dropout: rate, in training.
      rngs: a seed for the parameters.

    >>> model = LanguageModel(11, 8, 2, 2, rngs=nnx.Rngs(0))
    >>> model(jnp.ones((1, 5), int)).shape
    (1, 5, 11)
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        heads: int,
        layers: int,
        *,
        positions: Positions = "rotary",
        longest: int = 1024,
        mask: masks.MaskFunction | None = None,
        tied: bool = True,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        causal = masks.Causal() if mask is None else masks.Causal() & mask
        where = {"positions": positions, "dropout": dropout, "dtype": dtype, "rngs": rngs}
        self.embedding = Embedding(vocabulary, features, longest=longest, tied=tied, **where)
        self.stack = Stack(features, heads, layers, mask=causal, **where, **options)

    def __call__(
        self, tokens: Int[ArrayLike, "b t"], *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token."""
        embedded = self.embedding(jnp.asarray(tokens), rng=fold(rng, 0))
        return self.embedding.logits(self.stack(embedded, rng=fold(rng, 1)))

    def loss(
        self, tokens: Int[ArrayLike, "b t1"], *, rng: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of each token but the first, in nats."""
        tokens = jnp.asarray(tokens)
        logits = self(tokens[:, :-1], rng=rng)
        loss, _ = metrics.mean_cross_entropy(logits, tokens[:, 1:])
        return loss, {"accuracy": metrics.token_accuracy(logits, tokens[:, 1:])}

    def cache(self, batch: int, length: int) -> Cache:
        """An empty cache for so many positions."""
        return self.stack.cache(batch, length)

    def extend(
        self, tokens: Int[ArrayLike, "b t"], cache: Cache
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next tokens, and the cache that remembers them."""
        embedded = self.embedding(jnp.asarray(tokens), start=cache.used[0])
        outputs, cache = self.stack.extend(embedded, cache)
        return self.embedding.logits(outputs), cache

    def begin(
        self, prompt: Int[ArrayLike, "b t"], *, longest: int
    ) -> tuple[Callable, tuple[Cache, ...]]:
        """The step function and the state after all tokens of the prompt but the last one.

        For `attn_jax.decoding`, whose `start` is that last token; `longest` tokens are to come.
        """
        prompt = jnp.asarray(prompt)
        caches = self.stack.caches(prompt.shape[0], prompt.shape[1] + longest)
        if prompt.shape[1] > 1:
            _, caches, _ = self.stack.extend_each(self.embedding(prompt[:, :-1]), caches)

        def step(token, caches):
            embedded = self.embedding(token[:, None], start=caches[0].used[0])
            outputs, caches, _ = self.stack.extend_each(embedded, caches)
            return self.embedding.logits(outputs[:, 0]), caches, None

        return step, caches


class TransformerDecoder(nnx.Module):
    """A stack that attends to its own past and to a memory; logits by its embedding."""

    def __init__(
        self, vocabulary: int, features: int, heads: int, layers: int, *, longest: int, **options
    ):
        shared = {name: options[name] for name in ("positions", "dropout", "dtype", "rngs")}
        self.embedding = Embedding(vocabulary, features, longest=longest, **shared)
        causal = {"mask": masks.Causal(), "memory_features": features}
        self.stack = Stack(features, heads, layers, **causal, **options)

    def __call__(
        self, tokens: Int[Array, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token, given the tokens before it (teacher forcing)."""
        outputs = self.stack(
            self.embedding(tokens, rng=fold(rng, 0)),
            memory=encoded.memory,
            memory_lengths=encoded.length,
            rng=fold(rng, 1),
        )
        return self.embedding.logits(outputs)

    def weights(self, tokens: Int[Array, "b t"], encoded: Encoded) -> Float[Array, "b t s"]:
        """The soft alignment of given tokens: the last layer's attention, the mean of its heads."""
        outputs = self.embedding(tokens)
        graphdef, state = nnx.split(self.stack.blocks)
        seen = (encoded.memory, encoded.length)
        for number in range(self.stack.count):
            block = nnx.merge(graphdef, jax.tree.map(lambda each, i=number: each[i], state))
            before = outputs
            outputs = block(outputs, None, seen, None)
        own = before + block.attention(block.attention_norm(before))
        weights = block.cross.weights(block.cross_norm(own), encoded.memory, lengths=encoded.length)
        return weights.mean(axis=1)

    def step(
        self, token: Int[Array, " n"], caches: tuple[Cache, ...], encoded: Encoded
    ) -> tuple[Float[Array, "n v"], tuple[Cache, ...], Float[Array, "n s"]]:
        """Logits of the next token, and the soft alignment; hypotheses of a source share it."""
        hypotheses = token.shape[0] // encoded.memory.shape[0]
        memory, lengths = (
            each if hypotheses == 1 else jnp.repeat(each, hypotheses, axis=0)
            for each in (encoded.memory, encoded.length)
        )
        embedded = self.embedding(token[:, None], start=caches[0].used[0])
        outputs, caches, weights = self.stack.extend_each(
            embedded, caches, memory=memory, memory_lengths=lengths
        )
        return self.embedding.logits(outputs[:, 0]), caches, weights[:, 0]


class TransformerSeq2Seq(nnx.Module):
    """A Transformer that translates, with the methods of `Seq2Seq`. (Vaswani et al. 2017.)

    Args:
      sources, targets: numbers of tokens.
      features, heads, layers: of both stacks; further options are `Stack`'s.
      positions, longest: as for `LanguageModel`.
      dropout: rate, in training.
      rngs: a seed for the parameters.
    """

    def __init__(
        self,
        sources: int,
        targets: int,
        features: int,
        heads: int,
        layers: int,
        *,
        positions: Positions = "sinusoidal",
        longest: int = 1024,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        where = {"positions": positions, "dropout": dropout, "dtype": dtype, "rngs": rngs}
        self.embedding = Embedding(sources, features, longest=longest, **where)
        self.encoder = Stack(features, heads, layers, **where, **options)
        self.decoder = TransformerDecoder(
            targets, features, heads, layers, longest=longest, **where, **options
        )

    def encode(
        self,
        source: Int[ArrayLike, "b s"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode padded sources."""
        source, length = jnp.asarray(source), jnp.asarray(length)
        embedded = self.embedding(source, rng=fold(rng, 0))
        memory = self.encoder(embedded, lengths=length, rng=fold(rng, 1))
        real = jnp.arange(source.shape[1])[None, :] < length[:, None]
        memory = jnp.where(real[:, :, None], memory, 0)
        mean = memory.sum(axis=1) / jnp.maximum(length, 1)[:, None].astype(memory.dtype)
        return Encoded(memory, length, mean)

    def __call__(
        self,
        source: Int[ArrayLike, "b s"],
        source_length: Int[ArrayLike, " b"],
        tokens: Int[ArrayLike, "b t"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t v"]:
        """Logits of each next target token, given the tokens before it (teacher forcing)."""
        encoded = self.encode(source, source_length, rng=rng)
        return self.decoder(jnp.asarray(tokens), encoded, rng=fold(rng, 2))

    def loss(
        self,
        batch: dict[str, ArrayLike],
        *,
        start: int,
        label_smoothing: float = 0.0,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of the batch's target tokens, as `Seq2Seq.loss`."""
        target = jnp.asarray(batch["target"])
        before = jnp.pad(target, [(0, 0), (1, 0)], constant_values=start)[:, :-1]
        logits = self(batch["source"], batch["source_length"], before, rng=rng)
        real = jnp.arange(target.shape[1])[None, :] < jnp.asarray(batch["target_length"])[:, None]
        loss, counts = metrics.mean_cross_entropy(
            logits, target, where=real, label_smoothing=label_smoothing
        )
        return loss, {"accuracy": metrics.token_accuracy(logits, target, where=real)} | counts

    def begin(
        self, source: Int[ArrayLike, "b s"], length: Int[ArrayLike, " b"], *, longest: int
    ) -> tuple[Callable, tuple[Cache, ...]]:
        """The step function and the first state for `attn_jax.decoding`, of `longest` tokens."""
        encoded = self.encode(source, length)
        caches = self.decoder.stack.caches(encoded.memory.shape[0], longest)

        def step(token, caches):
            return self.decoder.step(token, caches, encoded)

        return step, caches
