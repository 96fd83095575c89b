"""Recall over a distance: a token to keep, random others, and L places after it a "?".

Task 2b of Hochreiter & Schmidhuber (1997, §5.2) with eight tokens to keep instead of two, and eight
others. Self-attention gets there in one layer; a GRU or an LSTM has to carry the token through L
steps. All have about as many parameters, and the same sequences, steps and optimizer at each L.
Beside what they recall: the size of the gradient of the last logits with respect to each input.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from attn_jax import metrics
from attn_jax.nn import GRU, LSTM, Embedding, Stack
from attn_jax.training import Batches
from experiments.harness.files import read_json, to_json, write
from experiments.harness.training import fit, warmup_cosine
from experiments.self_attention import ClaimOptions

CELLS = {"GRU": GRU, "LSTM": LSTM}
MODELS = ("self-attention", *CELLS)
KEPT, OTHERS = 8, 8  # tokens: those to keep, those between; then the "?"
QUESTION = KEPT + OTHERS
TEST, PART = 1024, 64  # sequences, and how many at a time


class Recall(nnx.Module):
    """Name the first token: an embedding, one layer, logits at the last place.

    Args:
      name: one of `MODELS`.
      features: of self-attention's embedding; the recurrent layers' are chosen so that all models
        have about as many parameters: their 2 · gates · units² are a block's 8 · features².
      heads: of self-attention.
      rngs: a seed for the parameters.
    """

    def __init__(self, name: str, features: int, heads: int, *, rngs: nnx.Rngs):
        cell = CELLS.get(name)
        width = round(features * (4 / cell.gates) ** 0.5) if cell else features
        where = {"positions": "none" if cell else "sinusoidal", "longest": 1}
        self.embedding = Embedding(QUESTION + 1, width, tied=False, rngs=rngs, **where)
        if cell:
            self.layer = cell(width, width, rngs=rngs)
        else:
            self.layer = Stack(features, heads, 1, hidden=2 * features, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [b, tokens] of the first token."""
        return self.of_embedded(self.embedding(tokens))

    def of_embedded(self, embedded: jax.Array) -> jax.Array:
        """Logits [b, tokens] from embedded tokens [b, t, d]."""
        outputs = self.layer(embedded)
        outputs = outputs if isinstance(self.layer, Stack) else outputs[0]
        return self.embedding.logits(outputs[:, -1])


def parameters(model: nnx.Module) -> int:
    """Return how many numbers are trained."""
    return sum(each.size for each in jax.tree.leaves(nnx.state(model, nnx.Param)))


def sequences(count: int, distance: int, seed: int) -> np.ndarray:
    """Return [count, distance + 1] tokens: one to keep, others, the "?".

    >>> kept, other, last = sequences(1, 2, seed=0)[0]
    >>> bool(kept < KEPT <= other < last == QUESTION)
    True
    """
    rng = np.random.default_rng([seed, distance])
    kept = rng.integers(0, KEPT, (count, 1), np.int32)
    others = rng.integers(KEPT, QUESTION, (count, distance - 1), np.int32)
    return np.concatenate([kept, others, np.full_like(kept, QUESTION)], axis=1)


def loss(model: Recall, tokens: jax.Array, rng: Any = None) -> tuple[jax.Array, dict[str, Any]]:
    """Return the mean cross-entropy of the first token, and the share of right ones."""
    logits = model(tokens)
    value, _ = metrics.mean_cross_entropy(logits, tokens[:, 0])
    return value, {"accuracy": metrics.token_accuracy(logits, tokens[:, 0])}


def each(options: ClaimOptions, directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each model at each distance; what is done already is read again."""
    directory.mkdir(parents=True, exist_ok=True)
    for distance in options.lengths:
        for name in MODELS:
            path = directory / f"{name}-{distance}.json".lower()
            if not path.exists():
                write(path, to_json(recalled(name, distance, options)))
            yield read_json(path)


def recalled(name: str, distance: int, options: ClaimOptions) -> dict[str, Any]:
    """Train one model at one distance; return what it recalls and its gradients' sizes."""
    began = time.perf_counter()
    untrained = built(name, options)
    train = sequences(options.steps * options.batch_size, distance, options.seed)
    test = sequences(TEST, distance, options.seed + 1)
    trained = fit(
        untrained,
        loss,
        Batches(train, batch_size=options.batch_size, shuffle=False),
        options,
        optimizer=optimizer(options),
        clip_norm=1.0,
        log_every=max(options.steps // 20, 1),
        progress=False,
    )
    return {
        "model": name,
        "length": distance,
        "parameters": parameters(untrained),
        "accuracy": accuracy(trained.model, test),
        "seconds": time.perf_counter() - began,
        "learning": {row["step"]: row["accuracy"] for row in trained.history},
        "gradient_before": gradient_sizes(untrained, test[:PART], options.seed),
        "gradient_after": gradient_sizes(trained.model, test[:PART], options.seed),
    }


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a model at a distance without the curves."""
    names = ("model", "length", "parameters", "accuracy", "seconds")
    ratios = {
        f"gradient_ratio_{when}": row[f"gradient_{when}"][0] / row[f"gradient_{when}"][-1]
        for when in ("before", "after")
    }
    return {name: row[name] for name in names} | ratios


def by_length(rows: Sequence[dict[str, Any]], name: str) -> dict[int, dict[str, Any]]:
    """Return one number of each row: length → model → number.

    >>> by_length([{"model": "GRU", "length": 8, "ms": 2.0}], "ms")
    {8: {'GRU': 2.0}}
    """
    table: dict[int, dict[str, Any]] = {
        length: {} for length in sorted({r["length"] for r in rows})
    }
    for row in rows:
        table[row["length"]][row["model"]] = row[name]
    return table


def built(name: str, options: ClaimOptions) -> Recall:
    """Return a model with new parameters."""
    return Recall(name, options.features, options.heads, rngs=nnx.Rngs(options.seed))


def optimizer(options: ClaimOptions) -> optax.GradientTransformation:
    """Return Adam; its rate rises over a tenth of the steps and falls along a cosine."""
    warmup, peak = max(options.steps // 10, 1), options.learning_rate
    return optax.adam(warmup_cosine(peak, options.steps, warmup=warmup, end=0.05))


def accuracy(model: Recall, tokens: np.ndarray) -> float:
    """Return the share of sequences whose first token is named."""
    parts = tokens.reshape(-1, PART, tokens.shape[1])
    return float(np.mean([_right(*nnx.split(model), some) for some in parts]))


def gradient_sizes(model: Recall, tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the Frobenius norm of ∂ logits / ∂ input_t for each place t, from one backward pass.

    It is the root of the mean of ‖Jᵀu‖² over sequences, each with its own u ~ N(0, I).
    """
    products = _pulled_back(*nnx.split(model), tokens, jax.random.key(seed))
    squares = np.asarray(products, np.float64) ** 2  # in float32 a vanishing one would be 0
    return np.sqrt(np.mean(np.sum(squares, axis=-1), axis=0))


@partial(jax.jit, static_argnums=0)
def _right(graphdef: Any, state: Any, tokens: jax.Array) -> jax.Array:
    """Return whether each sequence's first token is named [b]."""
    return nnx.merge(graphdef, state)(tokens).argmax(-1) == tokens[:, 0]


@partial(jax.jit, static_argnums=0)
def _pulled_back(graphdef: Any, state: Any, tokens: jax.Array, rng: jax.Array) -> jax.Array:
    """Return Jᵀu of each sequence [b, t, d], J = ∂ logits / ∂ inputs."""
    model = nnx.merge(graphdef, state)
    logits, pull = jax.vjp(model.of_embedded, model.embedding(tokens))
    return pull(jax.random.normal(rng, logits.shape, logits.dtype))[0]
