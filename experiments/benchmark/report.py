"""The results as tables: one for each shape and its slots, with what was not timed below it."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.benchmark import growth
from experiments.benchmark.memory import RESIDENT
from experiments.benchmark.rows import TIMED, Row
from experiments.benchmark.shapes import SHAPES
from experiments.harness import tables

TIMES = (("ms", 1e-3), ("µs", 1e-6))
SIZES = (("MiB", 2**20), ("KiB", 2**10))
RATES = (("GFLOP", 1e9), ("MFLOP", 1e6))


def print_report(rows: Iterable[Row]) -> None:
    """Print every table, and the slopes where shapes grow."""
    rows = list(rows)
    together: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        together.setdefault((row.shape, row.score, row.normalizer, row.dtype), []).append(row)
    for (shape, *slots), own in together.items():
        print(f"\n{shape}, {', '.join(slots)}: {SHAPES[shape]}")
        timed = [row for row in own if row.status == TIMED]
        if timed:
            tables.print_table(columns(timed))
        for line in untimed(own):
            print(line)
    for curve, sweeps in growth.sweeps(rows).items():
        print(f"\ngrowth, {', '.join(curve)}")
        tables.print_table([slopes(sweep) for sweep in sweeps])
    resident = [row.implementation for row in rows if row.memory and row.memory.source == RESIDENT]
    if resident:
        names = ", ".join(dict.fromkeys(resident))
        print(f"\nmemory of {names}: growth of the process's resident memory during a call")


def columns(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return timed rows in columns, in units that suit the largest of them.

    ± is half the interquartile range of the run time; memory is the peak beyond the arguments.
    """
    rows = list(rows)
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


def slopes(sweep: growth.Sweep) -> dict[str, Any]:
    """Return one implementation's row of the table of slopes."""
    time = growth.exponent(sweep.n, sweep.seconds)
    memory = growth.exponent(sweep.n, sweep.bytes)
    return {
        "": sweep.implementation,
        "n": f"{sweep.n[0]} … {sweep.n[-1]}",
        "time ∝": time and f"n^{time:.2f}",
        "memory ∝": memory and f"n^{memory:.2f}",
    }


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e3)
