"""A Transformer as an encoder and a decoder, with the methods of the recurrent `Seq2Seq`."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, Shaped

from attn_jax import masks
from attn_jax.checks import require
from attn_jax.decoding import Step
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    require_flags,
    sizes_of,
    targets_of,
    tokens_of,
)
from attn_jax.nn.blocks import Block, Queries
from attn_jax.nn.cache import AnyCache
from attn_jax.nn.embedding import Embedding, Positions
from attn_jax.nn.encoders import Encoded, averaged, memory_length
from attn_jax.nn.language_model import causal, in_attention, step
from attn_jax.nn.transformer import Stack
from attn_jax.position_encodings import sinusoids


class TransformerDecoder(nnx.Module):
    """A stack that attends to its own past and to a memory; logits by its embedding.

    Args:
      vocabulary: number of target tokens.
      features, heads, layers: of the stack, and of the memory; further options are `Stack`'s.
      positions, longest: as for `LanguageModel`.
      mask: of the self-attention, beside the causal one; None: that alone.
      memory_features: of the memory; None: `features`.
      embedding: further options of the `Embedding`: tied, scale, norm and so on.
      tokens: an array of vectors that are shared with another embedding; None: its own.
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
        mask: masks.MaskFunction | None = None,
        memory_features: int | None = None,
        embedding: Mapping[str, Any] | None = None,
        tokens: nnx.Param | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        how = {"dropout": dropout, "dtype": dtype, "rngs": rngs}
        where = {"positions": positions, "longest": longest} | dict(embedding or {})
        self.embedding = Embedding(vocabulary, features, **where, **how)
        if tokens is not None:
            self.embedding.tokens = tokens
        options |= how | {"positions": in_attention(positions), "mask": causal(mask)}
        options |= {"memory_features": memory_features or features}
        self.stack = Stack(features, heads, layers, **options)

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
        return self.stack.inspect(_alignment, self.embedding(tokens), **seen)[1][-1]

    def begin(self, encoded: Encoded, *, longest: int) -> tuple[Step, tuple[AnyCache, ...]]:
        """The step function and the first state for `attn_jax.decoding`, of `longest` tokens.

        The memory is projected here, once; hypotheses of a source share it.
        """
        (longest,) = sizes_of(longest=longest)
        self.embedding.require_positions("longest", longest)
        stack = self.stack.unrolled()
        memory = stack.project_memory(encoded.memory), encoded.length
        return (
            lambda token, cache: step(self.embedding, stack, token, cache, *memory),
            stack.cache(encoded.memory.shape[0], longest),
        )


def _alignment(block: Block, queries: Queries, memory: Any) -> Float[Array, "b t s"]:
    return block.alignment(queries.memory, memory)


class TransformerSeq2Seq(nnx.Module):
    """A Transformer that translates, with the methods of `Seq2Seq`. (Vaswani et al. 2017.)

    Args:
      sources, targets: numbers of tokens; sources None: what the stem takes.
      stem: an encoder of sources that are arrays (see `Seq2Seq`), whose memory the stack reads.
      features, heads, layers: of both stacks; further options are `Stack`'s.
      positions, longest: as for `LanguageModel`.
      mask: of both self-attentions; in the decoder beside the causal one.
      embedding: further options of both `Embedding`s: tied, scale, norm and so on.
      shared: whether sources and targets have the same vectors. (Press & Wolf 2017.)
      encoder, decoder: options in which the stacks differ: layers, score_mod and so on.
      dropout: rate, in training.
      rngs: a seed for the parameters.

    >>> import jax.numpy as jnp
    >>> model = TransformerSeq2Seq(9, 11, 8, 2, 1, rngs=nnx.Rngs(0))
    >>> model(jnp.array([[5, 6, 7]]), jnp.array([3]), jnp.array([[2, 8]])).shape
    (1, 2, 11)
    """

    def __init__(
        self,
        sources: int | None,
        targets: int,
        features: int,
        heads: int,
        layers: int,
        *,
        stem: Any = None,
        positions: Positions = "sinusoidal",
        longest: int = 1024,
        mask: masks.MaskFunction | None = None,
        embedding: Mapping[str, Any] | None = None,
        shared: bool = False,
        encoder: Mapping[str, Any] | None = None,
        decoder: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        require_flags(shared=shared)
        same = not shared or sources == targets
        require(same, "shared", "be False where sources and targets differ", (sources, targets))
        options |= {"mask": mask, "dropout": dropout, "dtype": dtype, "rngs": rngs}
        how = {name: options[name] for name in ("dropout", "dtype", "rngs")}
        where = {"positions": positions, "longest": longest}
        one = (sources is None) == (stem is not None)
        require(one, "sources", "be None with a stem, and a number without", sources)
        self.embedding = self.inputs = self.stem = nnx.data(None)
        if stem is None:
            own = {"tied": True, "output_bias": False}  # it makes no logits
            own = dict(embedding or {}) | own
            self.embedding = Embedding(sources, features, **where, **how, **own)
        else:
            free = positions != "learned"
            require(free, "positions", "not be learned, where a stem makes them", repr(positions))
            self.stem, self.positions = stem, positions
            kinds = {"dtype": dtype, "param_dtype": float}
            self.inputs = nnx.Linear(stem.memory_features, features, **kinds, rngs=rngs)
        of_encoder = {"layers": layers, "positions": in_attention(positions)} | options
        self.encoder = Stack(features, heads, **of_encoder | dict(encoder or {}))
        of_decoder = {"layers": layers, "embedding": embedding} | where | options
        of_decoder |= {"tokens": self.embedding.tokens if shared else None}
        self.decoder = TransformerDecoder(
            targets, features, heads, **of_decoder | dict(decoder or {})
        )

    def encode(
        self,
        source: Shaped[ArrayLike, "b s ..."],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode padded sources."""
        if self.stem is not None:
            source = jnp.asarray(source)
            length = lengths_of("length", length, *source.shape[:2])
            encoded = self.stem(source, length, rng=fold(rng, 0))
            embedded, length = self.inputs(encoded.memory), encoded.length
            if self.positions == "sinusoidal":
                places = sinusoids(embedded.shape[1], embedded.shape[2])
                embedded = embedded + places[None].astype(embedded.dtype)
            return averaged(self.encoder(embedded, lengths=length, rng=fold(rng, 1)), length)
        source = tokens_of("source", source, self.embedding.tokens.shape[0])
        length = lengths_of("length", length, *source.shape)
        self.embedding.require_positions("source", source.shape[1])
        embedded = self.embedding(source, rng=fold(rng, 0))
        return averaged(self.encoder(embedded, lengths=length, rng=fold(rng, 1)), length)

    def __call__(
        self,
        source: Shaped[ArrayLike, "b s ..."],
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
        how = {"where": real, "label_smoothing": label_smoothing}
        return embedding.cross_entropy(outputs, target, **how)

    def begin(
        self, source: Shaped[ArrayLike, "b s ..."], length: Int[ArrayLike, " b"], *, longest: int
    ) -> tuple[Step, tuple[AnyCache, ...]]:
        """The step function and the first state for `attn_jax.decoding`, of `longest` tokens."""
        return self.decoder.begin(self.encode(source, length), longest=longest)

    @property
    def most_positions(self) -> int | float:
        """How many positions there are, on either side."""
        return self.decoder.embedding.most_positions

    def memory_length(self, length: Int[ArrayLike, "*b"]) -> Int[ArrayLike, "*b"]:
        """How many positions the memory of a source of this length has."""
        return length if self.stem is None else memory_length(self.stem, length)
