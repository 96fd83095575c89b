"""A Transformer as a language model, and one step of decoding with a Transformer."""

from typing import Any

from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import masks, metrics
from attn_jax.checks import require
from attn_jax.decoding import Step
from attn_jax.nn.arguments import (
    fold,
    next_tokens_of,
    sizes_of,
    tokens_of,
)
from attn_jax.nn.cache import Cache, KeyValue, require_each_layer
from attn_jax.nn.embedding import Embedding, Positions
from attn_jax.nn.transformer import Stack
from attn_jax.position_encodings import Rotary


class LanguageModel(nnx.Module):
    """A decoder-only Transformer: the next token from those before it. (Radford et al. 2018.)

    Args:
      vocabulary: number of tokens.
      features, heads, layers: of the stack; further options are `Stack`'s.
      positions: "rotary", a `Rotary`, "alibi", "sinusoidal", "learned" or "none"; see `Embedding`.
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

    def cache(self, batch: int, length: int) -> tuple[Cache, ...]:
        """An empty cache for so many positions."""
        return self.stack.cache(batch, length)

    def extend(
        self, tokens: Int[ArrayLike, "b t"], cache: tuple[Cache, ...]
    ) -> tuple[Float[Array, "b t v"], tuple[Cache, ...]]:
        """Logits after each of the next tokens, and the cache that remembers them.

        As many tokens of each text: where prompts differ in length, one call for each length.
        """
        require_each_layer("cache", cache, Cache, self.stack.count)
        embedded = self.embedding(tokens, start=cache[0].position)
        outputs, cache = self.stack.extend(embedded, cache)
        return self.embedding.logits(outputs), cache

    def begin(
        self, prompt: Int[ArrayLike, "b t"], *, longest: int
    ) -> tuple[Step, tuple[Cache, ...]]:
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
        cache = self.cache(batch, length)
        if count == 1:
            return cache
        return self.stack.extend(self.embedding(prompt[:, :-1]), cache)[1]

    def step(
        self, token: Int[Array, " n"], cache: tuple[Cache, ...]
    ) -> tuple[Float[Array, "n v"], tuple[Cache, ...], None]:
        """Logits of the next token, and the state that remembers this one."""
        return step(self.embedding, self.stack, token, cache)


def step(
    embedding: Embedding,
    stack: Stack,
    token: Int[Array, " n"],
    cache: tuple[Cache, ...],
    memory: tuple[KeyValue, ...] | None = None,
    memory_lengths: Int[Array, " m"] | None = None,
) -> tuple[Float[Array, "n v"], tuple[Cache, ...], Float[Array, "n s"] | None]:
    """One step of decoding: logits of the next token, the cache, the weights over a memory."""
    token = next_tokens_of(token, embedding.tokens.shape[0])
    require_each_layer("cache", cache, Cache, stack.count)
    embedded = embedding(token[:, None], start=cache[0].position)
    seen = {"memory": memory, "memory_lengths": memory_lengths}
    outputs, cache, weights = stack.extend_aligned(embedded, cache, **seen)
    return embedding.logits(outputs[:, 0]), cache, None if weights is None else weights[:, 0]


def in_attention(positions: Positions) -> Any:
    """The positions that a stack knows of; its embedding adds the others."""
    rotary = isinstance(positions, Rotary)
    return positions if rotary or positions in ("rotary", "alibi") else "none"


def causal(mask: masks.MaskFunction | None) -> masks.Mask:
    """The causal mask, beside another one."""
    return masks.Causal() if mask is None else masks.Causal() & mask
