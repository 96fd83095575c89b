"""How time and memory grow with the number of keys: slopes in the log-log plane."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.benchmark.rows import Row
from experiments.benchmark.shapes import SHAPES

FAMILY = "growth"


class Sweep(NamedTuple):
    """One implementation's rows over the growing shapes: sizes n, seconds and bytes."""

    implementation: str
    n: list[int]
    seconds: list[float]
    bytes: list[int | None]


def sweeps(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Sweep]]:
    """Return the sweeps by (score, normalizer, dtype, direction), each with two sizes or more."""
    measured: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if SHAPES[row.shape].family == FAMILY and row.run_seconds is not None:
            curve = (row.score, row.normalizer, row.dtype, row.direction)
            measured.setdefault(curve, {}).setdefault(row.implementation, []).append(row)
    found = {
        curve: [_sweep(name, own) for name, own in by_name.items() if len(own) > 1]
        for curve, by_name in measured.items()
    }
    return {curve: own for curve, own in found.items() if own}


def exponent(n: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Return p of values ∝ n^p by least squares in logarithms over the larger half of the sizes.

    >>> round(exponent([1, 10, 100, 1000], [7, 2, 200, 20_000]), 6)
    2.0
    """
    known = sorted((size, value) for size, value in zip(n, values, strict=True) if value)
    if len(known) < 2:
        return None
    larger = np.log(known[len(known) - max(2, -(-len(known) // 2)) :])
    x, y = (larger - larger.mean(axis=0)).T
    return float(x @ y / (x @ x))


def _sweep(name: str, rows: Iterable[Row]) -> Sweep:
    rows = sorted(rows, key=lambda row: SHAPES[row.shape].keys)
    return Sweep(
        name,
        [SHAPES[row.shape].keys for row in rows],
        [row.run_seconds for row in rows],
        [row.memory and row.memory.peak for row in rows],
    )
