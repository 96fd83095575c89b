"""What a language model is worth: bits per character, weights that are 0, entropies, maps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.data import long_text as texts
from experiments.harness.errors import UserError

LOOKED_AT = 4  # passages whose weights are counted


class Passages:
    """A text in passages of one length, each token of which but the first is predicted once.

    `characters` are those of the tokens that are predicted.
    """

    def __init__(self, tokens: np.ndarray, characters: int, context: int, *, batch_size: int = 16):
        starts = np.arange(0, max(len(tokens) - 1, 1), context)
        padded = np.concatenate([tokens, np.zeros(context + 1, np.int32)])
        self.passages = np.stack([padded[s : s + context + 1] for s in starts])
        targets = starts[:, None] + 1 + np.arange(context)[None, :]
        self.real = targets < len(tokens)
        self.characters, self.batch_size = characters, batch_size
        self._compiled: dict[Any, Callable] = {}

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return bits per character, and nats and perplexity per token."""
        import jax
        from flax import nnx

        from attn_jax import metrics

        graphdef, state = nnx.split(model)
        if graphdef not in self._compiled:

            def total(state, passages, real):
                logits = nnx.merge(graphdef, state)(passages[:, :-1])
                return metrics.cross_entropy(logits, passages[:, 1:], where=real).sum()

            self._compiled[graphdef] = jax.jit(total)
        nats, size = 0.0, self.batch_size
        for first in range(0, len(self.passages), size):
            some, real = self.passages[first : first + size], self.real[first : first + size]
            fill = [(0, size - len(some)), (0, 0)]
            nats += float(self._compiled[graphdef](state, np.pad(some, fill), np.pad(real, fill)))
        count = int(self.real.sum())
        return {
            "bits_per_character": nats / math.log(2) / max(self.characters, 1),
            "loss": nats / max(count, 1),
            "perplexity": math.exp(min(nats / max(count, 1), 700)),
        }


def passages_of(vocabulary: Any, written: str, context: int) -> Passages:
    """Return the passages of a text."""
    tokens = texts.encode(vocabulary, written)
    if len(tokens) < 2:
        raise UserError(f"the text to evaluate must have two tokens at least. Got {len(tokens)}.")
    return Passages(tokens, texts.predicted_characters(vocabulary, written, tokens), context)


def sparsity(model: Any, passages: Passages, window: int | None = None) -> dict[str, Any]:
    """Return the share of visible weights that are 0, and each head's entropy [layers, heads].

    Of all layers, over the first passages; what fills the last one up does not count.
    """
    some, real = passages.passages[:LOOKED_AT, :-1], passages.real[:LOOKED_AT]
    zeros, entropy = (np.asarray(each) for each in _rows(model, some))  # [layers, b, heads, t]
    before = np.arange(some.shape[1])
    visible = 1 + (before if window is None else np.minimum(before, window))
    counted = np.broadcast_to(real[None, :, None, :], zeros.shape)
    hidden = some.shape[1] - visible
    share = (zeros - hidden)[counted].sum() / np.broadcast_to(visible, zeros.shape)[counted].sum()
    entropy = (entropy * counted).sum(axis=(1, 3)) / counted.sum(axis=(1, 3))
    return {"zero_weights": float(share), "entropy": entropy, "passages_looked_at": len(some)}


def _rows(model: Any, tokens: np.ndarray) -> tuple[Any, Any]:
    """Of each row of weights: how many are 0, and its entropy; no map of all of them exists."""
    import jax
    from flax import nnx

    graphdef, state = nnx.split(model)

    def counted(weights):
        return (weights == 0).sum(axis=-1), entropies(weights)

    @jax.jit
    def of_layers(state, tokens):
        model = nnx.merge(graphdef, state)
        rows = lambda block, queries, _: block.attention.reduced(counted, queries.own)  # noqa: E731
        return model.stack.inspect(rows, model.embedding(tokens))[1]

    return of_layers(state, tokens)


def entropies(weights: Any) -> Any:
    """Return the entropy of each row of weights [b, heads, t, t], in nats."""
    import jax

    from attn_jax import regression

    return jax.vmap(jax.vmap(regression.entropy))(weights)


def attention_maps(model: Any, tokens: np.ndarray) -> Any:
    """Return each layer's and head's weights [layers, b, heads, t, t] on short passages."""

    def weights(block, queries, memory):
        return block.attention.weights(queries.own)

    return model.stack.inspect(weights, model.embedding(tokens))[1]
