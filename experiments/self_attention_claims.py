"""Two claims about self-attention, measured: it recalls over any distance, and it is parallel.

**Recall.** L random tokens and a "?": the first token is to be named at the "?", L places later.
Self-attention gets there in one layer; a GRU or an LSTM carries it through L steps. All have about
the same number of parameters, and the same training sequences, steps and optimizer at each L.

**Parallelism.** The seconds of one training step against the length, in interleaved rounds, and how
many cores it keeps busy: self-attention does all places at once, a recurrent step has to wait for
the one before it.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attn_jax import metrics
from attn_jax.nn import GRU, LSTM, Stack
from attn_jax.nn.language_models import Embedding
from attn_jax.training import Batches, fit, step
from experiments.benchmark.timing import interleaved
from experiments.runs import to_json, write

SELF_ATTENTION = "self-attention"
CELLS = {"GRU": GRU, "LSTM": LSTM}
MODELS = (SELF_ATTENTION, *CELLS)
SYMBOLS = 8  # of the tokens; the "?" is one more
ASK = SYMBOLS
TEST = 1024  # sequences
GRADIENTS = 64  # of them, for the size of the gradient
BUSY_SECONDS = 0.2


class Recall(nnx.Module):
    """Name the token that is asked for: an embedding, one layer, logits at the last place.

    Args:
      name: one of `MODELS`.
      features: of self-attention's embedding; the recurrent layers' are chosen so that all models
        have about as many parameters.
      heads: of self-attention.
      rngs: a seed for the parameters.
    """

    def __init__(self, name: str, features: int, heads: int, *, rngs: nnx.Rngs):
        recurrent = name in CELLS
        width = features if not recurrent else width_of(CELLS[name].gates, features)
        where = {"positions": "none" if recurrent else "sinusoidal", "longest": 1}
        self.embedding = Embedding(SYMBOLS + 1, width, tied=False, rngs=rngs, **where)
        if recurrent:
            self.layer = CELLS[name](width, width, rngs=rngs)
        else:
            self.layer = Stack(features, heads, 1, hidden=2 * features, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits [b, symbols] of the token that is asked for."""
        return self.answer(self.embedding(tokens))

    def answer(self, embedded: jax.Array) -> jax.Array:
        """Logits [b, symbols] from embedded tokens [b, t, d]."""
        outputs = self.layer(embedded)
        outputs = outputs if isinstance(self.layer, Stack) else outputs[0]
        return self.embedding.logits(outputs[:, -1])


def width_of(gates: int, features: int) -> int:
    """Return the units whose gates, 2 · gates · units², are as large as a block's 8 · features².

    >>> width_of(4, 32), width_of(3, 32)
    (32, 37)
    """
    return round(features * (4 / gates) ** 0.5)


def parameters(model: nnx.Module) -> int:
    """Return how many numbers are trained."""
    return sum(each.size for each in jax.tree.leaves(nnx.state(model, nnx.Param)))


def sequences(count: int, distance: int, seed: int) -> np.ndarray:
    """Return [count, distance + 1]: random tokens, of which the first is asked for, and the "?"."""
    rng = np.random.default_rng([seed, distance])
    tokens = rng.integers(0, SYMBOLS, (count, distance), np.int32)
    return np.pad(tokens, [(0, 0), (0, 1)], constant_values=ASK)


def loss(model: Recall, tokens: jax.Array, rng: Any = None) -> tuple[jax.Array, dict[str, Any]]:
    """Return the mean cross-entropy of the first token, and the share of right answers."""
    logits = model(tokens)
    value, _ = metrics.mean_cross_entropy(logits, tokens[:, 0])
    return value, {"accuracy": metrics.token_accuracy(logits, tokens[:, 0])}


# Long distance


def recall(options: Any, directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each model at each distance; what is done already is read again."""
    for distance in options.lengths:
        for name in MODELS:
            path = directory / f"{name}-{distance}.json".lower()
            if path.exists():
                yield json.loads(path.read_text("utf-8"))
                continue
            numbers = recalled(name, distance, options)
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, to_json(numbers))
            yield json.loads(to_json(numbers))


def recalled(name: str, distance: int, options: Any) -> dict[str, Any]:
    """Train one model at one distance, and return what it recalls and how its gradient fares."""
    began = time.perf_counter()
    untrained = built(name, options)
    train, test = (
        sequences(count, distance, seed)
        for count, seed in (
            (options.steps * options.batch_size, options.seed),
            (TEST, options.seed + 1),
        )
    )
    trained = fit(
        untrained,
        loss,
        Batches(train, batch_size=options.batch_size, shuffle=False),
        steps=options.steps,
        optimizer=optimizer(options),
        clip_norm=1.0,
        seed=options.seed,
        log_every=max(options.steps // 20, 1),
        progress=False,
    )
    if trained.stopped == "interrupted":
        raise KeyboardInterrupt
    return {
        "model": name,
        "distance": distance,
        "parameters": parameters(untrained),
        "accuracy": accuracy(trained.model, test),
        "seconds": time.perf_counter() - began,
        "learning": {row["step"]: row["accuracy"] for row in trained.history},
        "gradient_before": gradient_sizes(untrained, test[:GRADIENTS], options.seed),
        "gradient_after": gradient_sizes(trained.model, test[:GRADIENTS], options.seed),
    }


def built(name: str, options: Any) -> Recall:
    """Return a model with new parameters."""
    return Recall(name, options.features, options.heads, rngs=nnx.Rngs(options.seed))


def optimizer(options: Any) -> optax.GradientTransformation:
    """Return Adam; its rate rises over a tenth of the steps and falls along a cosine."""
    warmup, peak = max(options.steps // 10, 1), options.learning_rate
    return optax.adam(
        optax.warmup_cosine_decay_schedule(
            0.0, peak, warmup, max(options.steps, warmup + 1), peak / 20
        )
    )


def accuracy(model: Recall, tokens: np.ndarray) -> float:
    """Return the share of sequences whose first token is named, some at a time."""
    graphdef, state = nnx.split(model)
    right = jax.jit(lambda state, some: nnx.merge(graphdef, state)(some).argmax(-1) == some[:, 0])
    return float(np.mean([right(state, some) for some in tokens.reshape(-1, 64, tokens.shape[1])]))


def gradient_sizes(model: Recall, tokens: np.ndarray, seed: int) -> np.ndarray:
    """Return the size of ∂ logits / ∂ input_t for each t: the root of the mean of ‖Jᵀu‖², u ~ N(0, I).

    That is the Frobenius norm of the Jacobian of the last place's logits, from one backward pass.
    """
    graphdef, state = nnx.split(model)

    @jax.jit
    def gradient(state, tokens, rng):
        model = nnx.merge(graphdef, state)
        logits, pull = jax.vjp(model.answer, model.embedding(tokens))
        return pull(jax.random.normal(rng, logits.shape, logits.dtype))[0]

    sizes = np.asarray(gradient(state, tokens, jax.random.key(seed)), np.float64)
    return np.sqrt(np.mean(np.sum(sizes**2, axis=-1), axis=0))


# Parallelism


def timed(options: Any) -> Iterator[dict[str, Any]]:
    """Yield the seconds of a training step at each length, in interleaved rounds, and busy cores."""
    for length in options.lengths:
        tokens = sequences(options.batch_size, length, options.seed)
        calls = [training_step(built(name, options), tokens, options) for name in MODELS]
        for call in calls:
            call()  # compiles
        seconds = interleaved(calls, options.timing_seconds)
        for name, call, own in zip(MODELS, calls, seconds, strict=True):
            quartiles = np.quantile(own, [0.25, 0.5, 0.75])
            numbers = {"model": name, "length": length, "seconds": quartiles[1]}
            yield numbers | {"quartiles": quartiles[[0, 2]], "cores": cores(call)}


def training_step(model: Recall, tokens: np.ndarray, options: Any) -> Callable[[], None]:
    """Return a call that does one more step of training on the same batch, and waits for it."""
    how = optimizer(options)
    compiled = step.make_step(step.split(model)[0], loss, how, None)
    state = step.initial_state(model, how, options.seed)

    def call() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(compiled(state, tokens))

    return call


def cores(call: Callable[[], None]) -> float | None:
    """Return how many CPU cores a call keeps busy on average; None where another device works."""
    if jax.devices()[0].platform != "cpu":
        return None
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < BUSY_SECONDS:
        call()
    return (time.process_time() - used) / (time.perf_counter() - began)


def largest(rows: Sequence[dict[str, Any]], model: str, name: str) -> Any:
    """Return the row of a model with the largest of a number."""
    return max((row for row in rows if row["model"] == model), key=lambda row: row[name])
