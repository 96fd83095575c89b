"""What Transformers are used as: a language model, and a translator like the recurrent one."""

from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import masks, metrics
from attn_jax.checks import require
from attn_jax.nn.arguments import (
    lengths_of,
    next_tokens_of,
    sizes_of,
    targets_of,
    tokens_of,
)
from attn_jax.nn.blocks import Block
from attn_jax.nn.cache import Cache
from attn_jax.nn.embedding import Embedding, Positions
from attn_jax.nn.recurrent import Encoded, averaged, fold
from attn_jax.nn.transformer import Stack, apart


class LanguageModel(nnx.Module):
    """A decoder-only Transformer: the next token from those before it. (Radford et al. 2018.)

    Args:
      vocabulary: number of tokens.
      features, heads, layers: of the stack; further options are `Stack`'s.
      positions: "rotary", "alibi", "sinusoidal", "learned" or "none"; see `Embedding`.
      longest: how many positions can be learned; others have no limit.
      mask: beside the causal one, a `masks.Window` say.
      tied: whether the output layer is the embedding.
      dropout: rate, in training.
      rngs: a seed for the parameters.

    >>> import jax.numpy as jnp
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
        how = {"dropout": dropout, "dtype": dtype, "rngs": rngs}
        of_tokens = {"positions": positions, "longest": longest, "tied": tied}
        self.embedding = Embedding(vocabulary, features, **of_tokens, **how)
        options |= how | {"positions": in_attention(positions), "mask": causal(mask)}
        self.stack = Stack(features, heads, layers, **options)

    def __call__(
        self, tokens: Int[ArrayLike, "b t"], *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token."""
        return self.embedding.logits(self.outputs(tokens, rng=rng))

    def outputs(
        self, tokens: Int[ArrayLike, "b t"], *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t d"]:
        """What logits are made of."""
        return self.stack(self.embedding(tokens, rng=fold(rng, 0)), rng=fold(rng, 1))

    def loss(
        self, tokens: Int[ArrayLike, "b t1"], *, rng: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of each token but the first, in nats."""
        tokens = tokens_of("tokens", tokens, self.embedding.tokens.shape[0])
        outputs = self.outputs(tokens[:, :-1], rng=rng)
        layer = self.embedding.output_layer(outputs.dtype)
        return metrics.linear_cross_entropy(outputs, *layer, tokens[:, 1:])

    def cache(self, batch: int, length: int) -> Cache:
        """An empty cache for so many positions."""
        return self.stack.cache(batch, length)

    def extend(
        self, tokens: Int[ArrayLike, "b t"], cache: Cache
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next tokens, and the cache that remembers them.

        As many tokens of each text: where prompts differ in length, one call for each length.
        """
        embedded = self.embedding(tokens, start=cache.used[0])
        outputs, cache = self.stack.extend(embedded, cache)
        return self.embedding.logits(outputs), cache

    def begin(
        self, prompt: Int[ArrayLike, "b t"], *, longest: int
    ) -> tuple[Callable, tuple[Cache, ...]]:
        """The step function and the state after all tokens of the prompt but the last one.

        For `attn_jax.decoding`, whose `start` is that last token; `longest` tokens are to come.
        All prompts of a batch have one length. (To jit a step with the parameters as arguments:
        `unrolled`, `prefill` and `step`.)
        """
        return self.unrolled().step, self.prefill(prompt, longest=longest)

    def unrolled(self) -> "LanguageModel":
        """The same model with each layer's parameters in arrays of their own, for `step`."""
        other = nnx.merge(*nnx.split(self))
        other.stack = self.stack.unrolled()
        return other

    def prefill(self, prompt: Int[ArrayLike, "b t"], *, longest: int) -> tuple[Cache, ...]:
        """The state after all tokens of the prompt but the last one, with room for `longest`."""
        prompt = tokens_of("prompt", prompt, self.embedding.tokens.shape[0])
        batch, count = prompt.shape
        require(count > 0, "prompt", "hold a token at least", prompt)
        (longest,) = sizes_of(longest=longest)
        length = count - 1 + longest  # the last token written is not read
        self.embedding.require_positions("prompt and longest", length)
        if self.stack.is_unrolled or count == 1:
            caches = self.stack.caches(batch, length)
            return self._advanced(prompt[:, :-1], caches)[1] if count > 1 else caches
        embedded = self.embedding(prompt[:, :-1])
        return apart(self.stack.extend(embedded, self.stack.cache(batch, length))[1])

    def step(
        self, token: Int[Array, " n"], caches: tuple[Cache, ...]
    ) -> tuple[Float[Array, "n v"], tuple[Cache, ...], None]:
        """Logits of the next token, and the state that remembers this one."""
        token = next_tokens_of(token, self.embedding.tokens.shape[0])
        outputs, caches = self._advanced(token[:, None], caches)
        return self.embedding.logits(outputs[:, 0]), caches, None

    def _advanced(self, tokens: Array, caches: tuple[Cache, ...]) -> tuple[Array, tuple]:
        embedded = self.embedding(tokens, start=caches[0].reached)
        return self.stack.extend_each(embedded, caches)[:2]


def in_attention(positions: Positions) -> str:
    """The positions that a stack knows of; its embedding adds the others."""
    return positions if positions in ("rotary", "alibi") else "none"


def causal(mask: masks.MaskFunction | None) -> masks.Mask:
    """The causal mask, beside another one."""
    return masks.Causal() if mask is None else masks.Causal() & mask


class TransformerDecoder(nnx.Module):
    """A stack that attends to its own past and to a memory; logits by its embedding.

    Args:
      vocabulary: number of target tokens.
      features, heads, layers: of the stack, and of the memory; further options are `Stack`'s.
      positions, longest: as for `LanguageModel`.
      mask: of the self-attention, beside the causal one; None: that alone.
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        heads: int,
        layers: int,
        *,
        positions: Positions,
        longest: int,
        mask: masks.MaskFunction | None,
        **options: Any,
    ):
        how = {name: options[name] for name in ("dropout", "dtype", "rngs")}
        where = {"positions": positions, "longest": longest}
        self.embedding = Embedding(vocabulary, features, **where, **how)
        options |= {"positions": in_attention(positions), "mask": causal(mask)}
        self.stack = Stack(features, heads, layers, memory_features=features, **options)

    def __call__(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token, given the tokens before it (teacher forcing)."""
        return self.embedding.logits(self.outputs(tokens, encoded, rng=rng))

    def outputs(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t d"]:
        """What logits are made of."""
        embedded = self.embedding(tokens, rng=fold(rng, 0))
        seen = {"memory": encoded.memory, "memory_lengths": encoded.length}
        return self.stack(embedded, **seen, rng=fold(rng, 1))

    def weights(self, tokens: Int[ArrayLike, "b t"], encoded: Encoded) -> Float[Array, "b t s"]:
        """The soft alignment of given tokens: the last layer's attention, the mean of its heads."""
        seen = {"memory": encoded.memory, "memory_lengths": encoded.length}
        return self.stack.look(Block.alignment, self.embedding(tokens), **seen)[1][-1]

    def begin(self, encoded: Encoded, *, longest: int) -> tuple[Callable, tuple[Cache, ...]]:
        """The step function and the first state for `attn_jax.decoding`, of `longest` tokens.

        The memory is projected here, once; hypotheses of a source share it.
        """
        (longest,) = sizes_of(longest=longest)
        self.embedding.require_positions("longest", longest)
        stack = self.stack.unrolled()
        memory = stack.remember(encoded.memory)

        def step(token, caches):
            token = next_tokens_of(token, self.embedding.tokens.shape[0])
            embedded = self.embedding(token[:, None], start=caches[0].reached)
            seen = {"memory": memory, "memory_lengths": encoded.length}
            outputs, caches, weights = stack.extend_each(embedded, caches, **seen)
            return self.embedding.logits(outputs[:, 0]), caches, weights[:, 0]

        return step, stack.caches(encoded.memory.shape[0], longest)


class TransformerSeq2Seq(nnx.Module):
    """A Transformer that translates, with the methods of `Seq2Seq`. (Vaswani et al. 2017.)

    Args:
      sources, targets: numbers of tokens.
      features, heads, layers: of both stacks; further options are `Stack`'s.
      positions, longest: as for `LanguageModel`.
      mask: of both self-attentions; in the decoder beside the causal one.
      dropout: rate, in training.
      rngs: a seed for the parameters.

    >>> import jax.numpy as jnp
    >>> model = TransformerSeq2Seq(9, 11, 8, 2, 1, rngs=nnx.Rngs(0))
    >>> model(jnp.array([[5, 6, 7]]), jnp.array([3]), jnp.array([[2, 8]])).shape
    (1, 2, 11)
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
        mask: masks.MaskFunction | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        options |= {"mask": mask, "dropout": dropout, "dtype": dtype, "rngs": rngs}
        how = {name: options[name] for name in ("dropout", "dtype", "rngs")}
        where = {"positions": positions, "longest": longest}
        self.embedding = Embedding(sources, features, **where, **how)
        own = {"positions": in_attention(positions)}
        self.encoder = Stack(features, heads, layers, **own, **options)
        self.decoder = TransformerDecoder(targets, features, heads, layers, **where, **options)

    def encode(
        self,
        source: Int[ArrayLike, "b s"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode padded sources."""
        source = tokens_of("source", source, self.embedding.tokens.shape[0])
        length = lengths_of("length", length, *source.shape)
        self.embedding.require_positions("source", source.shape[1])
        embedded = self.embedding(source, rng=fold(rng, 0))
        return averaged(self.encoder(embedded, lengths=length, rng=fold(rng, 1)), length)

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
        return self.decoder(tokens, encoded, rng=fold(rng, 2))

    def loss(
        self,
        batch: dict[str, ArrayLike],
        *,
        start: int,
        label_smoothing: float = 0.0,
        rng: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of the batch's target tokens, as `Seq2Seq.loss`."""
        embedding = self.decoder.embedding
        before, target, real = targets_of(batch, start, embedding.tokens.shape[0])
        embedding.require_positions("target", target.shape[1])
        encoded = self.encode(batch["source"], batch["source_length"], rng=rng)
        outputs = self.decoder.outputs(before, encoded, rng=fold(rng, 2))
        layer = embedding.output_layer(outputs.dtype)
        how = {"where": real, "label_smoothing": label_smoothing}
        return metrics.linear_cross_entropy(outputs, *layer, target, **how)

    def begin(
        self, source: Int[ArrayLike, "b s"], length: Int[ArrayLike, " b"], *, longest: int
    ) -> tuple[Callable, tuple[Cache, ...]]:
        """The step function and the first state for `attn_jax.decoding`, of `longest` tokens."""
        return self.decoder.begin(self.encode(source, length), longest=longest)

    @property
    def most_positions(self) -> int | float:
        """How many positions there are, on either side."""
        return self.embedding.most_positions
