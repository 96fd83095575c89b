"""Is it parallel? The seconds of a training step against the length, and the cores that it uses.

Self-attention does all places at once, in work that grows with the square of the length; a
recurrent step waits for the one before it, in work that grows with the length.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from attn_jax.training import step
from experiments.benchmark.timing import interleaved
from experiments.self_attention.recall import MODELS, Recall, built, loss, optimizer, sequences

BUSY_SECONDS = 0.2


def each(options: Any) -> Iterator[dict[str, Any]]:
    """Yield the seconds of each model's training step at each length, and the cores it uses."""
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
