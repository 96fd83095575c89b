"""What a language model is worth: bits per character, weights that are 0, entropies, maps."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from attn_jax import metrics, regression, text
from attn_jax.nn import LanguageModel
from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.language_model import data

COUNTED = 4  # passages whose weights are counted


class Passages:
    """A text in passages of one length, each token of which but the first is predicted once.

    `characters` are those of the tokens that are predicted.
    """

    def __init__(self, tokens: np.ndarray, characters: int, context: int, *, batch_size: int = 16):
        starts = np.arange(0, len(tokens) - 1, context)
        padded = np.concatenate([tokens, np.zeros(context + 1, np.int32)])
        self.passages = np.stack([padded[s : s + context + 1] for s in starts])
        targets = starts[:, None] + 1 + np.arange(context)[None, :]
        self.real = targets < len(tokens)
        self.characters, self.batch_size = characters, batch_size

    def evaluate(self, model: LanguageModel) -> dict[str, float]:
        """Return bits per character, and nats and perplexity per token."""
        graphdef, state = nnx.split(model)
        fill = [(0, -len(self.passages) % self.batch_size), (0, 0)]
        passages, real = (
            np.pad(each, fill).reshape(-1, self.batch_size, each.shape[1])
            for each in (self.passages, self.real)
        )
        nats = sum(
            float(_nats(graphdef, state, *some)) for some in zip(passages, real, strict=True)
        )
        loss = nats / int(self.real.sum())
        return {
            "bits_per_character": nats / math.log(2) / max(self.characters, 1),
            "loss": loss,
            "perplexity": math.exp(min(loss, 700)),
        }

    @property
    def unknown(self) -> float:
        """The share of the predicted tokens that are no token of the vocabulary."""
        return float((self.passages == text.UNKNOWN)[:, 1:][self.real].mean())


@partial(jax.jit, static_argnums=0)
def _nats(graphdef: Any, state: Any, passages: jax.Array, real: jax.Array) -> jax.Array:
    logits = nnx.merge(graphdef, state)(passages[:, :-1])
    return metrics.cross_entropy(logits, passages[:, 1:], where=real).sum()


def passages_of(vocabulary: text.Vocabulary, written: str, context: int) -> Passages:
    """Return the passages of a text."""
    tokens = data.encode(vocabulary, written)
    if len(tokens) < 2:
        raise UserError(f"the text to evaluate must have two tokens at least. Got {len(tokens)}.")
    return Passages(tokens, data.predicted_characters(vocabulary, written, tokens), context)


def row_of(
    name: str, model: LanguageModel, passages: Passages, window: int | None
) -> dict[str, Any]:
    """Return the numbers of one model."""
    return {"model": name, **passages.evaluate(model), **sparsity(model, passages, window)}


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of metrics.json as a table."""
    tables.print_table(
        [
            {
                "model": row["model"],
                "bits per\ncharacter": row["bits_per_character"],
                "perplexity\nper token": row["perplexity"],
                "weights that\nare 0 *": row["zero_weights"],
                "entropy,\nnats *": float(np.mean(row["entropy"])),
            }
            for row in rows
        ]
    )
    print(f"* over {rows[0]['passages_looked_at']} passages, all layers and heads")


def sparsity(model: LanguageModel, passages: Passages, window: int | None = None) -> dict[str, Any]:
    """Return the share of unmasked weights that are 0, and each head's entropy [layers, heads].

    Of all layers, over the first passages; what fills the last one up does not count.
    """
    some, real = passages.passages[:COUNTED, :-1], passages.real[:COUNTED]
    zeros, entropy = map(np.asarray, _rows(*nnx.split(model), some))  # [layers, b, heads, t]
    before = np.arange(some.shape[1])
    unmasked = 1 + (before if window is None else np.minimum(before, window))
    masked = some.shape[1] - unmasked
    counted = np.broadcast_to(real[None, :, None, :], zeros.shape)
    share = (zeros - masked)[counted].sum() / np.broadcast_to(unmasked, zeros.shape)[counted].sum()
    entropy = (entropy * counted).sum(axis=(1, 3)) / counted.sum(axis=(1, 3))
    return {"zero_weights": float(share), "entropy": entropy, "passages_looked_at": len(some)}


@partial(jax.jit, static_argnums=0)
def _rows(graphdef: Any, state: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of each row of weights: how many are 0, and its entropy; no map of all of them exists."""
    model = nnx.merge(graphdef, state)

    def of_weights(weights):
        return (weights == 0).sum(axis=-1), entropies(weights)

    def of_block(block, queries, memory):
        return block.attention.reduced(of_weights, queries.own)

    return model.stack.inspect(of_block, model.embedding(tokens))[1]


def entropies(weights: Any) -> jax.Array:
    """Return the entropy of each row of weights [b, heads, t, t], in nats."""
    return jax.vmap(jax.vmap(regression.entropy))(weights)


def attention_maps(model: LanguageModel, tokens: np.ndarray) -> jax.Array:
    """Return each layer's and head's weights [layers, b, heads, t, t] on short passages."""

    def weights(block, queries, memory):
        return block.attention.weights(queries.own)

    return model.stack.inspect(weights, model.embedding(tokens))[1]
