"""A recurrent decoder that attends to what was encoded.

Bahdanau's and Luong's models, and the model without attention that they improve on, are one module
with different slots. Teacher forcing runs all target times in one scan; `step` is one time of the
same, for `attn_jax.decoding`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.matmul import affine
from attn_jax.meshes import gathered, repeated
from attn_jax.nn.arguments import (
    fold,
    next_tokens_of,
    require_flags,
    require_rate,
    require_rngs,
    sizes_of,
    tokens_of,
)
from attn_jax.nn.attention import Attention
from attn_jax.nn.copying import Copying, known
from attn_jax.nn.encoders import Encoded
from attn_jax.nn.history import Attended, History
from attn_jax.nn.memory import Memory
from attn_jax.nn.recurrent import CELLS, CellName
from attn_jax.normalizers import Softmax
from attn_jax.recurrence import over_time

Order = Literal["attend_then_step", "step_then_attend"]
# Numbers of a pair of sequences that the derivative keeps: more are computed again, step by step.
MOST_KEPT = 2**22
ORDERS = ("attend_then_step", "step_then_attend")


class DecoderState(NamedTuple):
    """What a decoder carries from step to step."""

    cells: tuple[Any, ...]  # of each layer
    feed: Float[Array, "n r"] | None  # the last readout, under input feeding
    attended: Attended | None = None  # the weights so far, where attention knows them


class Times(NamedTuple):
    """What a decoder computes of all target times at once."""

    readout: Float[Array, "t b r"]  # `Decoder.output_layer` makes logits of it
    queries: Float[Array, "t b h"]
    weights: Float[Array, "t b m"] | None  # where attention knows the weights so far


class Decoder(nnx.Module):
    """Recurrent layers with attention over a memory, or with a fixed context.

    In the order "attend_then_step" (Bahdanau et al. 2014, appendix A.2) the last state is the
    query, and the cell steps with the context; in "step_then_attend" (Luong et al. 2015, §3) the
    new state is, and under input feeding the readout goes into the next step. Logits are a linear
    map of the readout, tanh(W [state; context; embedding of the last token]) (Luong: without the
    last).

    Args:
      vocabulary: number of target tokens.
      memory_features: e of the memory. summary_features: c of the summary.
      embedding: features of a token. features: units of a layer. layers: how many.
      readout: features of the readout; None: `features`, or `embedding` where that is tied.
      cell: "gru" or "lstm".
      attention: a score or its name (see `Attention`); None: at every step the context is the
        encoder's summary (Cho et al. 2014).
      normalizer, learn_alpha, attention_features: as for `Attention`, where there is one.
      order: which comes first, attention or the step.
      gate: whether the context is multiplied by σ(w · query + b), one number for each step (Xu et
        al. 2015, section 4.2.1).
      location, location_width, coverage, window: what attention knows of its own past weights, as
        for `History`.
      copy: whether tokens of the source may be copied (`copying.Copying`): logits are then log p of
        v + m tokens, m being the length of the padded source, of the same vocabulary.
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
        gate: bool = False,
        location: int = 0,
        location_width: int = 15,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        copy: bool = False,
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
        require_flags(gate=gate, coverage=coverage, copy=copy)
        require_rngs(rngs)
        require(not tied or readout == embedding, "readout", "be the embedding where tied", readout)
        past = {"location": location, "coverage": coverage, "window": window}
        given = past | {"gate": gate, "copy": copy}
        if attention is None:
            rule = "be left out without attention"
            require(not learn_alpha, "learn_alpha", rule, learn_alpha)
            no_width = attention_features is None
            require(no_width, "attention_features", rule, attention_features)
            for name, each in given.items():
                require(not each, name, rule, each)
        self.order, self.dropout, self.tied = order, dropout, tied
        self.feeds = input_feeding and order == "step_then_attend"
        self.attention = self.history = self.gate = nnx.data(None)
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
        if any(past.values()):
            width = self.attention.compared_features
            self.history = History(width, location_width=location_width, **past, rngs=rngs)
        if gate:
            self.gate = nnx.Linear(features, 1, param_dtype=float, rngs=rngs)
        context = summary_features if attention is None else memory_features
        self.embedding = nnx.Param(normal(rngs, vocabulary, embedding))
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
        width = features + context + (embedding if attends_first else 0)
        self.readout = nnx.Linear(width, readout, param_dtype=float, rngs=rngs)
        self.output_bias = nnx.Param(jnp.zeros(vocabulary))
        self.copying = Copying(readout, rngs=rngs) if copy else nnx.data(None)
        self.output_kernel = nnx.data(None)
        if not tied:
            self.output_kernel = nnx.Param(glorot(rngs.params(), (readout, vocabulary), float))

    def project_memory(self, encoded: Encoded) -> Memory:
        """The memory for all steps: its keys are projected once."""
        keys = None if self.attention is None else self.attention.keys(encoded.memory)
        return Memory(keys, *encoded)

    def start(self, encoded: Encoded) -> DecoderState:
        """The state before the first step."""
        cells = tuple(
            layer.initial(jnp.tanh(initial(encoded.summary)))
            for layer, initial in zip(self.layers, self.initial, strict=True)
        )
        feed = None
        if self.feeds:
            dtype = self.layers[-1].hidden(cells[-1]).dtype
            feed = jnp.zeros((encoded.summary.shape[0], self.readout.out_features), dtype)
        attended = None if self.history is None else self.history.start(encoded.memory)
        return DecoderState(cells, feed, attended)

    def step(
        self, token: Int[ArrayLike, " n"], state: DecoderState, memory: Memory
    ) -> tuple[Float[Array, "n v"], DecoderState, Float[Array, "n s"] | None]:
        """Logits of the next token, the next state, and the weights over the source.

        There may be several hypotheses for each source, n = b · hypotheses: they share its memory.
        """
        sources = memory.values.shape[0]
        token = next_tokens_of(token, self.tokens(memory.values.shape[1]))
        shared = token.shape[0] % max(sources, 1) == 0
        require(shared, "token", f"be as many for each of the {sources} sources", token)
        embedded = self._embed(token)
        state, outputs, query = self._advance(
            self._project(embedded), state, partial(self._attend, memory)
        )
        readout = outputs if self.feeds else self._read(*outputs, embedded)
        if state.attended is None:
            weights = memory.weights(self.attention, query)
        else:
            weights = state.attended.last
        logits = self._logits(readout)
        if self.copying is not None:
            source = repeated(memory.tokens, len(token) // max(sources, 1))
            logits = self.copying(readout, logits, weights, source)
        return logits, state, weights

    def __call__(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b t v"]:
        """Logits of each next token, given the tokens before it (teacher forcing)."""
        times = self.over_times(tokens, encoded, rng=rng)
        if self.copying is not None:
            return self.mixture(times, encoded)
        return jnp.swapaxes(self._logits(times.readout), 0, 1)

    def mixture(self, times: Times, encoded: Encoded) -> Float[Array, "b t w"]:
        """log p of the vocabulary's tokens and those of the source, at all times."""
        assert self.copying is not None
        return jax.vmap(self.copying)(*self._mixed(times, encoded))

    def copying_losses(
        self, times: Times, encoded: Encoded, target: Int[Array, "b t"]
    ) -> tuple[Float[Array, "b t"], Bool[Array, "b t"]]:
        """`Copying.losses` of targets."""
        assert self.copying is not None
        return jax.vmap(self.copying.losses)(*self._mixed(times, encoded), target)

    def _mixed(self, times: Times, encoded: Encoded) -> tuple[Array, ...]:
        """What `Copying` takes of each example."""
        readout, weights = jnp.swapaxes(times.readout, 0, 1), self.weights_of(times, encoded)
        source = jnp.broadcast_to(encoded.tokens[:, None], weights.shape)
        return readout, self._logits(readout), weights, source

    def tokens(self, source_length: int) -> int:
        """How many tokens a target may hold: those of the vocabulary, and those to be copied."""
        return self.embedding.shape[0] + (0 if self.copying is None else source_length)

    def weights(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded
    ) -> Float[Array, "b t s"] | None:
        """The soft alignment of given tokens; None without attention."""
        if self.attention is None:
            return None
        return self.weights_of(self.over_times(tokens, encoded), encoded)

    def weights_of(self, times: Times, encoded: Encoded) -> Float[Array, "b t m"]:
        """The weights of all times."""
        if times.weights is not None:
            return jnp.swapaxes(times.weights, 0, 1)
        keys = self.attention.keys(encoded.memory)
        return self.attention.weights(jnp.swapaxes(times.queries, 0, 1), keys, encoded.length)

    def over_times(
        self, tokens: Int[ArrayLike, "b t"], encoded: Encoded, *, rng: PRNGKeyArray | None = None
    ) -> Times:
        """All target times, teacher forcing: one scan."""
        most, examples = self.tokens(encoded.memory.shape[1]), len(encoded.length)
        tokens = tokens_of("tokens", tokens, most)
        rule = f"be of {examples} examples, as the memory"
        require(tokens.shape[0] == examples, "tokens", rule, tokens)
        memory = self.project_memory(encoded)
        embedded = drop_units(self._embed(tokens.T), self.dropout, fold(rng, 0))
        drop = self._masks(tokens.shape[0], rng)
        attend = partial(self._attend, memory)
        kept = 0 if memory.keys is None else tokens.shape[1] * math.prod(memory.keys.shape[1:])
        if self.history is not None or kept >= MOST_KEPT:
            attend = jax.checkpoint(attend, prevent_cse=False)

        def step(projected, state):
            state, outputs, query = self._advance(projected, state, attend, drop)
            weights = None if state.attended is None else state.attended.last
            return state, (outputs, query, weights)

        initial = self.start(encoded)
        (outputs, queries, weights), _ = over_time(step, self._project(embedded), initial)
        readout = outputs if self.feeds else self._read(*outputs, embedded)
        return Times(drop_units(readout, self.dropout, fold(rng, 1)), queries, weights)

    def _embed(self, tokens: Int[ArrayLike, "*n"]) -> Float[Array, "*n d"]:
        if self.copying is not None:
            tokens = known(tokens, self.embedding.shape[0])
        return gathered(self.embedding[...], tokens)

    def _project(self, embedded: Float[Array, "*n d"]) -> Float[Array, "*n g"]:
        return self.layers[0].project(embedded)

    def _advance(
        self,
        projected: Float[Array, "n g"],
        state: DecoderState,
        attend: Callable[..., tuple[Array, Attended | None]],
        drop: Callable[[Array, int], Array] = lambda units, level: units,
    ) -> tuple[DecoderState, Any, Float[Array, "n h"]]:
        """The next state, what the readout is made of, or under input feeding is, the query."""
        query = self.layers[-1].hidden(state.cells[-1])
        fed, attended = state.feed, state.attended
        if self.order == "attend_then_step":
            context, attended = attend(query, attended)
            fed = context
        if fed is not None:
            projected = projected + fed @ self.feed_kernel[...]
        cells, hidden = [], None
        for level, (layer, cell) in enumerate(zip(self.layers, state.cells, strict=True)):
            if level:
                projected = layer.project(drop(hidden, level))
            cells.append(layer.step(projected, cell))
            above = layer.hidden(cells[-1])
            hidden = above if level == 0 else hidden + above
        if self.order == "step_then_attend":
            query = above
            context, attended = attend(query, attended)
        if not self.feeds:
            return DecoderState(tuple(cells), None, attended), (hidden, context), query
        readout = self._read(hidden, context, None)
        return DecoderState(tuple(cells), readout, attended), readout, query

    def _attend(
        self, memory: Memory, query: Float[Array, "n h"], attended: Attended | None
    ) -> tuple[Float[Array, "n e"], Attended | None]:
        """The context, and the weights so far where attention knows them."""
        if attended is None:
            context = memory.context(self.attention, query)
        else:
            context, attended = memory.next(self.attention, self.history, query, attended)
        if self.gate is not None:
            context = context * jax.nn.sigmoid(self.gate(query))
        return context, attended

    def _read(self, hidden: Array, context: Array, embedded: Array | None) -> Float[Array, "*n r"]:
        parts = [hidden, context] + ([embedded] if self.order == "attend_then_step" else [])
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


def normal(rngs: nnx.Rngs, tokens: int, features: int) -> Float[Array, "v d"]:
    """The first embeddings: vectors of an expected length of 1."""
    return features**-0.5 * jax.random.normal(rngs.params(), (tokens, features), float)
