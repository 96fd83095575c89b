"""Sequence to sequence: an encoder, and a decoder that attends to what it encoded.

Bahdanau's and Luong's models, and the model without attention that they improve on, are one module
with different slots. Teacher forcing runs all target times in one scan; `step` is one time of the
same, for `attn_jax.decoding`.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import metrics
from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.matmul import affine
from attn_jax.meshes import gathered
from attn_jax.nn.arguments import (
    lengths_of,
    next_tokens_of,
    require_flags,
    require_rngs,
    sizes_of,
    targets_of,
    tokens_of,
)
from attn_jax.nn.attention import Attention
from attn_jax.nn.recurrent import CELLS, CellName, Encoded, fold, require_rate
from attn_jax.normalizers import Softmax
from attn_jax.recurrence import over_time

Order = Literal["attend_then_step", "step_then_attend"]
ORDERS = ("attend_then_step", "step_then_attend")


class Memory(NamedTuple):
    """What every step of a decoder sees of the source."""

    keys: Float[Array, "b s a"] | None  # as the score compares it; None without attention
    values: Float[Array, "b s e"]
    length: Int[Array, " b"]
    summary: Float[Array, "b c"]


class DecoderState(NamedTuple):
    """What a decoder carries from step to step."""

    cells: tuple[Any, ...]  # of each layer
    feed: Float[Array, "n r"] | None  # the last readout, under input feeding


class Decoder(nnx.Module):
    """Recurrent layers with attention over a memory, or with a fixed context.

    In the order "attend_then_step" (Bahdanau et al. 2014, appendix A.2) the last state asks, and
    the cell steps with the context; in "step_then_attend" (Luong et al. 2015, §3) the new state
    asks, and under input feeding the readout goes into the next step. Logits are a linear map of
    the readout, tanh(W [state; context; embedding of the last token]) (Luong: without the last).

    Args:
      vocabulary: number of target tokens.
      memory_features: e of the memory. summary_features: c of the summary.
      embedding: features of a token. features: units of a layer. layers: how many.
      readout: features of the readout; None: `features`, or `embedding` where that is tied.
      cell: "gru" or "lstm".
      attention: a score or its name (see `Attention`); None: at every step the context is the
        encoder's summary (Cho et al. 2014).
      normalizer, learn_alpha, attention_features: as for `Attention`, where there is one.
      order: who comes first, attention or the step.
      input_feeding: whether the last readout is an input; in Luong's order only.
      tied: whether logits compare the readout with the tokens' embeddings (Press & Wolf 2017).
      dropout: rate on embeddings, between layers (one mask for all times) and on the readout.
      rngs: a seed for the parameters.

    >>> decoder = Decoder(11, 6, 4, embedding=4, features=5, rngs=nnx.Rngs(0))
    >>> encoded = Encoded(jnp.ones((1, 3, 6)), jnp.array([3]), jnp.ones((1, 4)))
    >>> decoder(jnp.array([[7, 8]]), encoded).shape
    (1, 2, 11)
    """

    def __init__(
        self,
        vocabulary: int,
        memory_features: int,
        summary_features: int,
        *,
        embedding: int = 128,
        features: int = 256,
        layers: int = 1,
        readout: int | None = None,
        cell: CellName = "gru",
        attention: Any = "additive",
        normalizer: Any = Softmax(),
        learn_alpha: bool = False,
        attention_features: int | None = None,
        order: Order = "attend_then_step",
        input_feeding: bool = True,
        tied: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        require(cell in CELLS, "cell", f"be one of {sorted(CELLS)}", repr(cell))
        require(order in ORDERS, "order", f"be one of {list(ORDERS)}", repr(order))
        require_rate(dropout)
        if readout is None:
            readout = embedding if tied else features
        vocabulary, memory_features, summary_features = sizes_of(
            vocabulary=vocabulary,
            memory_features=memory_features,
            summary_features=summary_features,
        )
        embedding, features, layers, readout, attention_features = sizes_of(
            embedding=embedding,
            features=features,
            layers=layers,
            readout=readout,
            attention_features=attention_features,
        )
        require_flags(learn_alpha=learn_alpha, input_feeding=input_feeding, tied=tied)
        require_rngs(rngs)
        require(not tied or readout == embedding, "readout", "be the embedding where tied", readout)
        asks = attention is not None
        rule = "be left out without attention"
        require(asks or not learn_alpha, "learn_alpha", rule, learn_alpha)
        require(asks or attention_features is None, "attention_features", rule, attention_features)
        self.order, self.dropout, self.tied = order, dropout, tied
        self.feeds = input_feeding and order == "step_then_attend"
        self.attention = nnx.data(None)
        if attention is not None:
            self.attention = Attention(
                features,
                memory_features,
                features=attention_features,
                score=attention,
                normalizer=normalizer,
                learn_alpha=learn_alpha,
                rngs=rngs,
            )
        context = summary_features if attention is None else memory_features
        self.embedding = nnx.Param(_normal(rngs, vocabulary, embedding, embedding**-0.5))
        self.layers = nnx.List(
            CELLS[cell](features if level else embedding, features, rngs=rngs)
            for level in range(layers)
        )
        self.initial = nnx.List(
            nnx.Linear(summary_features, features, param_dtype=float, rngs=rngs)
            for _ in range(layers)
        )
        glorot = jax.nn.initializers.glorot_uniform()
        attends_first = order == "attend_then_step"
        fed = context if attends_first else readout if self.feeds else 0
        self.feed_kernel = nnx.data(None)
        if fed:
            gates = self.layers[0].gates * features
            self.feed_kernel = nnx.Param(glorot(rngs.params(), (fed, gates), float))
        seen = features + context + (embedding if attends_first else 0)
        self.readout = nnx.Linear(seen, readout, param_dtype=float, rngs=rngs)
        self.output_bias = nnx.Param(jnp.zeros(vocabulary))
        self.output_kernel = nnx.data(None)
        if not tied:
            self.output_kernel = nnx.Param(glorot(rngs.params(), (readout, vocabulary), float))

    def look(self, encoded: Encoded) -> Memory:
        """Prepare what every step sees: the keys are projected once."""
        keys = None if self.attention is None else self.attention.keys(encoded.memory)
        return Memory(keys, encoded.memory, encoded.length, encoded.summary)

    def start(self, summary: Float[Array, "b c"]) -> DecoderState:
        """The state before the first step."""
        cells = tuple(
            layer.initial(jnp.tanh(initial(summary)))
            for layer, initial in zip(self.layers, self.initial, strict=True)
        )
        feed = None
        if self.feeds:
            dtype = self.layers[-1].shown(cells[-1]).dtype
            feed = jnp.zeros((summary.shape[0], self.readout.out_features), dtype)
        return DecoderState(cells, feed)

    def step(
        self, token: Int[ArrayLike, " n"], state: DecoderState, memory: Memory
    ) -> tuple[Float[Array, "n v"], DecoderState, Float[Array, "n s"] | None]:
        """Logits of the next token, the next state, and the weights over the source.

        There may be several hypotheses for each source, n = b · hypotheses: they share its memory.
        """
        token, sources = next_tokens_of(token, self.embedding.shape[0]), memory.values.shape[0]
        shared = token.shape[0] % max(sources, 1) == 0
        require(shared, "token", f"be as many for each of the {sources} sources", token)
        embedded = self._embed(token)
        state, seen, asked = self._advance(self._project(embedded), state, memory)
        readout = seen if self.feeds else self._read(*seen, embedded)
        weights = None if self.attention is None else self._weights(asked, memory)
        return self._logits(readout), state, weights

    def __call__(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token, given the tokens before it (teacher forcing)."""
        return jnp.swapaxes(self._logits(self.over_times(tokens, encoded, rng=rng)[0]), 0, 1)

    def weights(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded
    ) -> Float[Array, "b t s"] | None:
        """The soft alignment of given tokens; None without attention."""
        if self.attention is None:
            return None
        asked = self.over_times(tokens, encoded)[1]
        keys = self.attention.keys(encoded.memory)
        return self.attention.weights(jnp.swapaxes(asked, 0, 1), keys, encoded.length)

    def over_times(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "t b r"], Float[Array, "t b h"]]:
        """What `output_layer` makes logits of, and the states that asked; time first."""
        tokens, examples = tokens_of("tokens", tokens, self.embedding.shape[0]), len(encoded.length)
        rule = f"be of {examples} examples, as the memory"
        require(tokens.shape[0] == examples, "tokens", rule, tokens)
        memory = self.look(encoded)
        embedded = drop_units(self._embed(tokens.T), self.dropout, fold(rng, 0))
        drop = self._masks(tokens.shape[0], rng)

        def step(projected, state):
            state, seen, asked = self._advance(projected, state, memory, drop)
            return state, (seen, asked)

        initial = self.start(encoded.summary)
        (seen, asked), _ = over_time(step, self._project(embedded), initial)
        readout = seen if self.feeds else self._read(*seen, embedded)
        return drop_units(readout, self.dropout, fold(rng, 1)), asked

    def _embed(self, tokens: Int[ArrayLike, "*n"]) -> Float[Array, "*n d"]:
        return gathered(self.embedding[...], tokens)

    def _project(self, embedded: Float[Array, "*n d"]) -> Float[Array, "*n g"]:
        return self.layers[0].project(embedded)

    def _advance(
        self,
        projected: Float[Array, "n g"],
        state: DecoderState,
        memory: Memory,
        drop: Callable[[Array, int], Array] = lambda units, level: units,
    ) -> tuple[DecoderState, Any, Float[Array, "n h"]]:
        """The next state, what the readout sees (under input feeding: the readout), who asked."""
        asks = self.layers[-1].shown(state.cells[-1])
        fed = state.feed
        if self.order == "attend_then_step":
            fed = context = self._context(asks, memory)
        if fed is not None:
            projected = projected + fed @ self.feed_kernel[...]
        cells, shown = [], None
        for level, (layer, cell) in enumerate(zip(self.layers, state.cells, strict=True)):
            if level:
                projected = layer.project(drop(shown, level))
            cells.append(layer.step(projected, cell))
            above = layer.shown(cells[-1])
            shown = above if level == 0 else shown + above
        if self.order == "step_then_attend":
            asks = layer.shown(cells[-1])
            context = self._context(asks, memory)
        seen = (shown, context)
        if self.feeds:
            seen = self._read(*seen, None)
        return DecoderState(tuple(cells), seen if self.feeds else None), seen, asks

    def _context(self, asks: Float[Array, "n h"], memory: Memory) -> Float[Array, "n e"]:
        by_source = _by_source(asks, memory)
        if self.attention is None:
            return jnp.repeat(memory.summary, by_source.shape[1], axis=0)
        context = self.attention(by_source, memory.keys, memory.values, memory.length)
        return context.reshape(asks.shape[0], context.shape[-1])

    def _weights(self, asks: Float[Array, "n h"], memory: Memory) -> Float[Array, "n s"]:
        by_source = _by_source(asks, memory)
        weights = self.attention.weights(by_source, memory.keys, memory.length)
        return weights.reshape(asks.shape[0], weights.shape[-1])

    def _read(self, shown: Array, context: Array, embedded: Array | None) -> Float[Array, "*n r"]:
        parts = [shown, context] + ([embedded] if self.order == "attend_then_step" else [])
        kernel, bias = self.readout.kernel[...], self.readout.bias[...]
        return jnp.tanh(affine(jnp.concatenate(parts, axis=-1), kernel, bias))

    def output_layer(self) -> tuple[Float[Array, "r v"], Float[Array, " v"]]:
        """The kernel and the bias that make logits."""
        kernel = self.embedding[...].T if self.tied else self.output_kernel[...]
        return kernel, self.output_bias[...]

    def _logits(self, readout: Float[Array, "*n r"]) -> Float[Array, "*n v"]:
        return affine(readout, *self.output_layer())

    def _masks(self, batch: int, rng: PRNGKeyArray | None) -> Callable[[Array, int], Array]:
        """Dropout between layers: one fate of a unit at all times."""
        if rng is None or self.dropout == 0:
            return lambda units, level: units
        ones = jnp.ones((batch, self.layers[0].features))
        masks = {
            level: drop_units(ones, self.dropout, fold(rng, 2 + level))
            for level in range(1, len(self.layers))
        }
        return lambda units, level: units * masks[level].astype(units.dtype)


class Seq2Seq(nnx.Module):
    """An encoder of source tokens and a decoder of target tokens.

    Args:
      vocabulary: number of source tokens.
      encoder: embedded source [b, s, d] and lengths -> `Encoded`.
      decoder: a `Decoder`.
      embedding: features of a source token.
      dropout: rate on the source's embeddings.
      rngs: a seed for the embeddings.

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
        self.embedding = nnx.Param(_normal(rngs, vocabulary, embedding, embedding**-0.5))
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
    ) -> tuple[Callable, DecoderState]:
        """The step function and the first state for `attn_jax.decoding`; any length has room."""
        del longest  # for a Transformer's cache
        encoded = self.encode(source, length)
        memory = self.decoder.look(encoded)

        def step(token, state):
            return self.decoder.step(token, state, memory)

        return step, self.decoder.start(encoded.summary)


def _by_source(asks: Float[Array, "n h"], memory: Memory) -> Float[Array, "s hypotheses h"]:
    """What asks each source: hypotheses of one are neighbours."""
    sources = memory.values.shape[0]
    hypotheses = asks.shape[0] // sources if sources else 1
    return asks.reshape(sources, hypotheses, asks.shape[-1])


def _normal(rngs: nnx.Rngs, rows: int, features: int, scale: float) -> Float[Array, "v d"]:
    return scale * jax.random.normal(rngs.params(), (rows, features), float)
