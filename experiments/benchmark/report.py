"""The results as tables: one for each shape and its slots, with what was not timed below it."""

from collections.abc import Iterable
from typing import Any

from experiments import tables
from experiments.benchmark import growth
from experiments.benchmark.memory import RESIDENT
from experiments.benchmark.rows import TIMED, Row
from experiments.benchmark.shapes import SHAPES

MIB = 2**20


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
            tables.print_table([readable(row) for row in timed])
        for line in untimed(own):
            print(line)
    for curve, sweeps in growth.sweeps(rows).items():
        print(f"\ngrowth, {', '.join(curve)}")
        tables.print_table([slopes(sweep) for sweep in sweeps])
    resident = [row.implementation for row in rows if row.memory and row.memory.source == RESIDENT]
    if resident:
        print(f"\nMiB of {', '.join(dict.fromkeys(resident))}: growth of the resident memory")


def readable(row: Row) -> dict[str, Any]:
    """Return a timed row in columns.

    ± is half the interquartile range of the run time, MiB the peak beyond the arguments.
    """
    first, third = row.run_quartiles
    return {
        "": f"{row.direction} {row.implementation}",
        "lower\nms": _milliseconds(row.lower_seconds),
        "compile\nms": _milliseconds(row.compile_seconds),
        "run\nms": row.run_seconds * 1e3,
        "±\n%": round(50 * (third - first) / row.run_seconds),
        "GFLOP\n/s": row.gflop_per_second,
        "peak\n%": round(100 * row.fraction_of_matmul),
        "MiB": row.memory and row.memory.peak / MIB,
        f"×\n{row.baseline}" if row.baseline else "×": row.ratio,
    }


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
