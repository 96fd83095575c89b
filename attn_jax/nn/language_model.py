"""A Transformer as a language model, and one step of decoding with a Transformer."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import masks
from attn_jax.checks import all_hold, require
from attn_jax.decoding import Step
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    next_tokens_of,
    positions_of,
    sizes_of,
    tokens_of,
)
from attn_jax.nn.cache import AnyCache, KeyValue, require_each_layer
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
      embedding: further options of the `Embedding`: scale, norm, logit_cap and so on.
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
        embedding: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        how = {"dropout": dropout, "dtype": dtype, "rngs": rngs}
        of_tokens = {"positions": positions, "longest": longest, "tied": tied}
        self.embedding = Embedding(vocabulary, features, **of_tokens, **how, **(embedding or {}))
        options |= how | {"positions": in_attention(positions), "mask": causal(mask)}
        if options.get("pattern") is not None:
            options["pattern"] = [causal_part(part) for part in options["pattern"]]
        self.stack = Stack(features, heads, layers, **options)

    def __call__(
        self,
        tokens: Int[ArrayLike, "b t"],
        *,
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b t"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t v"]:
        """Logits of each next token.

        Args:
          tokens: texts, padded behind, or before: then
          padding: is how many tokens of each text's row come before it.
          positions: of the tokens; None: 0, 1, … from a text's first token on.
          rng: for dropout, in training.
        """
        outputs = self.outputs(tokens, padding=padding, positions=positions, rng=rng)
        return self.embedding.logits(outputs)

    def outputs(
        self,
        tokens: Int[ArrayLike, "b t"],
        *,
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b t"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b t d"]:
        """What logits are made of."""
        if padding is not None and positions is None:
            tokens = tokens_of("tokens", tokens, self.embedding.tokens.shape[0])
            padding = lengths_of("padding", padding, *tokens.shape)
            positions = positions_of(None, tokens, padding)
        embedded = self.embedding(tokens, positions=positions, rng=fold(rng, 0))
        where = {"padding": padding, "positions": positions}
        return self.stack(embedded, **where, rng=fold(rng, 1))

    def loss(
        self, tokens: Int[ArrayLike, "b t1"], *, rng: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Mean cross-entropy of each token but the first, in nats."""
        tokens = tokens_of("tokens", tokens, self.embedding.tokens.shape[0])
        outputs = self.outputs(tokens[:, :-1], rng=rng)
        return self.embedding.cross_entropy(outputs, tokens[:, 1:])

    def cache(
        self, batch: int, length: int, padding: Int[ArrayLike, " b"] | None = None
    ) -> tuple[AnyCache, ...]:
        """An empty cache for so many positions, the first `padding` of each text not there."""
        return self.stack.cache(batch, length, padding)

    def extend(
        self, tokens: Int[ArrayLike, "b t"], cache: tuple[AnyCache, ...]
    ) -> tuple[Float[Array, "b t v"], tuple[AnyCache, ...]]:
        """Logits after each of the next tokens, and the cache that remembers them.

        As many tokens of each text, of which the first may be padding: see `cache`.
        """
        require_each_layer("cache", cache, AnyCache, self.stack.count)
        positions = cache[0].next_positions(jnp.shape(tokens)[1])
        embedded = self.embedding(tokens, positions=positions)
        outputs, cache = self.stack.extend(embedded, cache)
        return self.embedding.logits(outputs), cache

    def begin(
        self,
        prompt: Int[ArrayLike, "b t"],
        *,
        longest: int,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
    ) -> tuple[Step, tuple[AnyCache, ...]]:
        """The step function and the state after all tokens of each prompt but the last one.

        For `attn_jax.decoding`, whose `start` is that last token; `longest` tokens are to come.
        Prompts of several lengths are padded behind, with their `lengths`, or before, with how much
        `padding` there is. (To jit a step with the parameters as arguments: `unrolled`, `prefill`
        and `step`.)
        """
        where = {"longest": longest, "lengths": lengths, "padding": padding}
        return self.unrolled().step, self.prefill(prompt, **where)

    def unrolled(self) -> "LanguageModel":
        """The same model with each layer's parameters in arrays of their own, for `step`."""
        other = nnx.merge(*nnx.split(self))
        other.stack = self.stack.unrolled()
        return other

    def prefill(
        self,
        prompt: Int[ArrayLike, "b t"],
        *,
        longest: int,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
    ) -> tuple[AnyCache, ...]:
        """The state after all tokens of each prompt but the last one, with room for `longest`."""
        prompt = tokens_of("prompt", prompt, self.embedding.tokens.shape[0])
        batch, count = prompt.shape
        require(count > 0, "prompt", "hold a token at least", prompt)
        require(lengths is None or padding is None, "padding", "be None with lengths", padding)
        if lengths is not None:  # padded behind: each is moved to the end
            lengths = lengths_of("lengths", lengths, batch, count)
            padding = count - lengths
            at = (jnp.arange(count)[None] - padding[:, None]) % count
            prompt = jnp.take_along_axis(prompt, at, axis=1)
        if padding is not None:
            padding = lengths_of("padding", padding, batch, count)
            held = all_hold(padding, lambda each: each < count)
            require(held, "prompt", "hold a token at least", "one without any")
        (longest,) = sizes_of(longest=longest)
        length = count - 1 + longest  # the last token written is not read
        self.embedding.require_positions("prompt and longest", length)
        cache = self.cache(batch, length, padding)
        return cache if count == 1 else self.extend(prompt[:, :-1], cache)[1]

    def step(
        self, token: Int[Array, " n"], cache: tuple[AnyCache, ...]
    ) -> tuple[Float[Array, "n v"], tuple[AnyCache, ...], None]:
        """Logits of the next token, and the state that remembers this one."""
        return step(self.embedding, self.stack, token, cache)


def step(
    embedding: Embedding,
    stack: Stack,
    token: Int[Array, " n"],
    cache: tuple[AnyCache, ...],
    memory: tuple[KeyValue, ...] | None = None,
    memory_lengths: Int[Array, " m"] | None = None,
) -> tuple[Float[Array, "n v"], tuple[AnyCache, ...], Float[Array, "n s"] | None]:
    """One step of decoding: logits of the next token, the cache, the weights over a memory."""
    token = next_tokens_of(token, embedding.tokens.shape[0])
    require_each_layer("cache", cache, AnyCache, stack.count)
    embedded = embedding(token[:, None], positions=cache[0].next_positions(1))
    seen = {"memory": memory, "memory_lengths": memory_lengths}
    outputs, cache, weights = stack.extend_aligned(embedded, cache, **seen)
    return embedding.logits(outputs[:, 0]), cache, None if weights is None else weights[:, 0]


def in_attention(positions: Positions) -> Any:
    """The positions that a stack knows of; its embedding adds the others."""
    rotary = isinstance(positions, Rotary)
    return positions if rotary or positions in ("rotary", "alibi") else "none"


def causal_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a block in a pattern, causal if they have a mask of their own."""
    return dict(part) | ({"mask": causal(part["mask"])} if "mask" in part else {})


def causal(mask: masks.MaskFunction | None) -> masks.Mask:
    """The causal mask, beside another one."""
    return masks.Causal() if mask is None else masks.Causal() & mask
