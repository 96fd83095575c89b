"""Learning rates over the steps of a training."""

from collections.abc import Callable
from typing import Any


def warmup_cosine(peak: float, steps: int, *, warmup: int, end: float) -> Callable[[Any], Any]:
    """Return step -> rate: a straight line from 0 to `peak`, then a cosine down to `end` · peak.

    Without warm-up it begins at `peak`. (Loshchilov & Hutter 2017, eq. 5, without restarts.)
    """
    import optax

    start = 0.0 if warmup else peak
    longest = max(steps, warmup + 1)
    return optax.warmup_cosine_decay_schedule(start, peak, warmup, longest, end * peak)
