"""Interleaved timing: what slows the machine down for a while slows all programs down."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FEWEST_ROUNDS, MOST_ROUNDS = 3, 20
SHORTEST = 0.002  # seconds: a shorter call is repeated, so that the clock's own time is nothing


def interleaved(calls: Sequence[Callable[[], Any]], seconds: float) -> np.ndarray:
    """Return the seconds of each program's call, [calls, rounds]; all are compiled already.

    A round calls all of them, the next one begins with the next of them. About `seconds` are spent
    on each, in `FEWEST_ROUNDS` rounds at least.
    """
    once = [_seconds(call, 1) for call in calls]
    repeats = [max(1, math.ceil(SHORTEST / each)) for each in once]
    of_round = sum(each * times for each, times in zip(once, repeats, strict=True))
    rounds = int(np.clip(seconds * len(calls) / of_round, FEWEST_ROUNDS, MOST_ROUNDS))
    result = np.zeros((len(calls), rounds))
    for number in range(rounds):
        for place in range(len(calls)):
            which = (number + place) % len(calls)
            result[which, number] = _seconds(calls[which], repeats[which])
    return result


def _seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return max((time.perf_counter() - begin) / times, 1e-9)
