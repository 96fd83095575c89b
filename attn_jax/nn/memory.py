"""The encoded source, as every step of a recurrent decoder attends to it."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

from attn_jax.meshes import regrouped, repeated
from attn_jax.nn.attention import Attention
from attn_jax.nn.history import Attended, History


class Memory(NamedTuple):
    """Keys, values and a summary of each source.

    The queries are those of the hypotheses, as many for each source: hypotheses of one source are
    neighbours and share its memory.
    """

    keys: Float[Array, "b s a"] | None  # as the score compares them; None without attention
    values: Float[Array, "b s e"]
    length: Int[Array, " b"]
    summary: Float[Array, "b c"]
    tokens: Int[Array, "b s"] | None = None  # of the source, where they may be copied

    def context(
        self, attention: Attention | None, query: Float[Array, "n h"]
    ) -> Float[Array, "n e"]:
        """The output of attention; the summary without it."""
        by_source = self._by_source(query)
        if attention is None:
            return repeated(self.summary, by_source.shape[1])
        context = attention(by_source, self.keys, self.values, self.length)
        return context.reshape(query.shape[0], context.shape[-1])

    def weights(
        self, attention: Attention | None, query: Float[Array, "n h"]
    ) -> Float[Array, "n s"] | None:
        """The weights of attention; None without it."""
        if attention is None:
            return None
        weights = attention.weights(self._by_source(query), self.keys, self.length)
        return weights.reshape(query.shape[0], weights.shape[-1])

    def next(
        self, attention: Attention, history: History, query: Float[Array, "n h"], past: Attended
    ) -> tuple[Float[Array, "n e"], Attended]:
        """The output of attention whose keys know the weights so far, and the weights then.

        Each hypothesis has weights, and so keys, of its own.
        """
        n = query.shape[0]
        hypotheses = self._by_source(query).shape[1]
        keys, length = (repeated(each, hypotheses) for each in (self.keys, self.length))
        keys = history.keys(keys, past)
        weights = attention.weights(query[:, None], keys, length, history.mask, past.last)
        by_source = regrouped(weights, (len(self.length), hypotheses, weights.shape[-1]))
        context = by_source @ self.values
        return regrouped(context, (n, context.shape[-1])), past.plus(weights[:, 0])

    def _by_source(self, query: Float[Array, "n h"]) -> Float[Array, "s hypotheses h"]:
        sources = self.values.shape[0]
        hypotheses = query.shape[0] // sources if sources else 1
        return query.reshape(sources, hypotheses, query.shape[-1])
