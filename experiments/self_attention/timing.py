"""Is it parallel? The seconds of a training step against the length, and the cores that it uses.

Self-attention computes all places at once, in work that grows with the square of the length; a
recurrent step waits for the one before it, in work that grows with the length.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from experiments.benchmark.models import training_step
from experiments.benchmark.timing import interleaved
from experiments.self_attention import ClaimOptions
from experiments.self_attention.recall import MODELS, built, loss, optimizer, sequences

BUSY_SECONDS = 0.2


def each(options: ClaimOptions) -> Iterator[dict[str, Any]]:
    """Yield the seconds of each model's training step at each length, and the cores it uses."""
    for length in options.lengths:
        tokens = sequences(options.batch_size, length, options.seed)
        how = loss, optimizer(options), options.seed
        compiled = [training_step.compiled(built(name, options), *how) for name in MODELS]
        calls = [training_step.repeated(*one, tokens) for one in compiled]
        for call in calls:
            call()  # compiles
        seconds = interleaved(calls, options.timing_seconds)
        for name, call, own in zip(MODELS, calls, seconds, strict=True):
            lower, median, upper = np.quantile(own, [0.25, 0.5, 0.75])
            numbers = {"model": name, "length": length, "seconds": median}
            yield numbers | {"quartiles": (lower, upper), "cores": cores(call)}


def cores(call: Callable[[], Any]) -> float | None:
    """Return how many CPU cores a call keeps busy on average; None where another device works."""
    if jax.devices()[0].platform != "cpu":
        return None
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < BUSY_SECONDS:
        call()
    return (time.process_time() - used) / (time.perf_counter() - began)
