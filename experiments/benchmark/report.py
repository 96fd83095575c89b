"""The results as tables: one for each shape and its slots, and growth with the number of keys."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.benchmark.memory import RESIDENT
from experiments.benchmark.rows import TIMED, Row
from experiments.benchmark.shapes import SHAPES
from experiments.harness import tables

Curve = tuple[str, ...]  # score, normalizer, dtype, direction

TIMES = (("ms", 1e-3), ("µs", 1e-6))
SIZES = (("MiB", 2**20), ("KiB", 2**10))
RATES = (("GFLOP", 1e9), ("MFLOP", 1e6))


def print_report(rows: Sequence[Row]) -> None:
    """Print every table, and the slopes where shapes grow."""
    by_shape: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_shape.setdefault((row.shape, row.score, row.normalizer, row.dtype), []).append(row)
    for (shape, *slots), own in by_shape.items():
        print(f"\n{shape}, {', '.join(slots)}: {SHAPES[shape]}")
        tables.print_table(columns([row for row in own if row.status == TIMED]))
        for line in untimed(own):
            print(line)
    for curve, sweeps in growth(rows).items():
        print(f"\ngrowth, {', '.join(curve)}")
        tables.print_table([slopes(name, own) for name, own in sweeps.items()])
    resident = [row.implementation for row in rows if row.memory and row.memory.source == RESIDENT]
    if resident:
        names = ", ".join(dict.fromkeys(resident))
        print(f"\nmemory of {names}: growth of the process's resident memory during a call")


def columns(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return timed rows in columns, in units that suit the largest of them.

    ± is half the interquartile range of the run time; memory is the peak beyond the arguments.
    """
    run, second = unit((row.run_seconds for row in rows), TIMES)
    memory, byte = unit((row.memory.peak for row in rows if row.memory), SIZES)
    rate, flop = unit((1e9 * row.gflop_per_second for row in rows), RATES)
    return [
        {
            "": f"{row.direction} {row.implementation}",
            "lower\nms": _milliseconds(row.lower_seconds),
            "compile\nms": _milliseconds(row.compile_seconds),
            f"run\n{run}": row.run_seconds / second,
            "±\n%": round(50 * (row.run_quartiles[1] - row.run_quartiles[0]) / row.run_seconds),
            f"{rate}\n/s": 1e9 * row.gflop_per_second / flop,
            "peak\n%": round(100 * row.fraction_of_matmul),
            memory: row.memory and row.memory.peak / byte,
            f"×\n{row.baseline}" if row.baseline else "×": row.ratio,
        }
        for row in rows
    ]


def unit(values: Iterable[float], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Return the first unit, (name, size), that the largest value reaches, or the last.

    >>> unit([3, 2000], (("km", 1000), ("m", 1)))
    ('km', 1000)
    """
    largest = max(values, default=0)
    return next((each for each in units if largest >= each[1]), units[-1])


def untimed(rows: Iterable[Row]) -> list[str]:
    """Return a line for each result that is no time, with all the directions that share it."""
    directions: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != TIMED:
            directions.setdefault((row.implementation, row.result), []).append(row.direction)
    return [f"{name} ({', '.join(of)}): {result}" for (name, result), of in directions.items()]


def growth(rows: Iterable[Row]) -> dict[Curve, dict[str, list[Row]]]:
    """Return timed rows of the growing shapes, by curve and implementation, in order of size.

    A curve has two sizes or more.
    """
    found: dict[Curve, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=size):
        if SHAPES[row.shape].family == "growth" and row.run_seconds is not None:
            curve = (row.score, row.normalizer, row.dtype, row.direction)
            found.setdefault(curve, {}).setdefault(row.implementation, []).append(row)
    long = {c: {n: own for n, own in each.items() if len(own) > 1} for c, each in found.items()}
    return {curve: sweeps for curve, sweeps in long.items() if sweeps}


def size(row: Row) -> int:
    """Return the number of keys."""
    return SHAPES[row.shape].keys


def slope(points: Iterable[tuple[float, float | None]]) -> float | None:
    """Return p of y ∝ x^p by least squares in logarithms over the larger half of the points (x, y).

    >>> round(slope([(1, 7), (10, 2), (100, 200), (1000, 20_000)]), 6)
    2.0
    """
    known = sorted((x, y) for x, y in points if y)
    if len(known) < 2:
        return None
    larger = np.log(known[len(known) - max(2, -(-len(known) // 2)) :])
    x, y = (larger - larger.mean(axis=0)).T
    return float(x @ y / (x @ x))


def seconds(rows: Iterable[Row]) -> list[tuple[int, float]]:
    """Return points (keys, seconds)."""
    return [(size(row), row.run_seconds) for row in rows]


def peaks(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """Return points (keys, bytes at the peak), where these are known."""
    return [(size(row), row.memory.peak) for row in rows if row.memory and row.memory.peak]


def slopes(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return one implementation's row of the table of slopes."""
    time, memory = slope(seconds(rows)), slope(peaks(rows))
    return {
        "": name,
        "n": f"{size(rows[0])} … {size(rows[-1])}",
        "time ∝": time and f"n^{time:.2f}",
        "memory ∝": memory and f"n^{memory:.2f}",
    }


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e3)
