"""Interleaved timing: what slows the machine down for a while slows every competitor down."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FEWEST_ROUNDS, MOST_ROUNDS = 3, 20
SHORTEST = 0.002  # seconds: a shorter call is repeated until the clock and the call itself vanish


def interleaved(calls: Sequence[Callable[[], Any]], seconds: float) -> np.ndarray:
    """Return the seconds of one call, [calls, rounds]: each round runs all, each begins elsewhere.

    About `seconds` are spent for each of the calls, but never fewer than `FEWEST_ROUNDS` rounds.
    """
    once = [_seconds(call, 1) for call in calls]
    repeats = [max(1, math.ceil(SHORTEST / each)) for each in once]
    of_round = sum(each * times for each, times in zip(once, repeats, strict=True))
    rounds = int(np.clip(seconds * len(calls) / of_round, FEWEST_ROUNDS, MOST_ROUNDS))
    taken = np.zeros((len(calls), rounds))
    for number in range(rounds):
        for turn in range(len(calls)):
            which = (number + turn) % len(calls)
            taken[which, number] = _seconds(calls[which], repeats[which])
    return taken


def _seconds(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return max((time.perf_counter() - begin) / times, 1e-9)
