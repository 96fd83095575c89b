"""metrics.jsonl: one row, one JSON object, per step that was reported."""

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

from attn_jax.training import processes
from attn_jax.training.checkpoints import DamagedCheckpointWarning, accessing


def mean_rows(pending: list[dict[str, float]]) -> dict[str, float | None]:
    """The mean of each entry over the steps since the last row."""
    return {
        name: number_or_none(math.fsum(metrics[name] for metrics in pending) / len(pending))
        for name in pending[0]
    }


def number_or_none(value: Any) -> float | None:
    """A float; None where it is not finite, which JSON cannot say."""
    number = float(value)
    return number if math.isfinite(number) else None


def append(file: Path, row: dict[str, Any]) -> None:
    """Add a row and see it to the disk: a checkpoint must never be newer than its rows."""
    with accessing(file), file.open("a") as stream:
        stream.write(json.dumps(row, allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def rewind(file: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows after a step, and a last one that was cut short; return the others."""
    kept = [row for row in _whole_rows(file) if row["step"] <= step]
    processes.wait("the rows of an earlier run are read")
    if not processes.is_first():
        return kept
    rewritten = file.with_suffix(".partial")
    with accessing(file):
        try:
            rewritten.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))
            rewritten.replace(file)
        finally:
            rewritten.unlink(missing_ok=True)
    return kept


def read(directory: str | Path) -> list[dict[str, Any]]:
    """The rows of a directory that `fit` wrote to; none where there are none.

    A row is {step, loss, …}, the means since the row before it, with what was evaluated at that
    step under "evaluation".
    """
    return _whole_rows(Path(directory) / "metrics.jsonl")


def _whole_rows(file: Path) -> list[dict[str, Any]]:
    with accessing(file):
        *lines, cut_short = file.read_bytes().split(b"\n") if file.exists() else [b""]
    rows = [_row(line) for line in [*lines, cut_short]]
    damaged = [number for number, row in enumerate(rows[: len(lines)], 1) if row is None]
    if damaged:
        numbers = ", ".join(map(str, damaged))
        told = f"{file} is damaged: what is in line {numbers} is no row, and left out"
        warnings.warn(told, DamagedCheckpointWarning, stacklevel=5)
    return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line, None where it is none."""
    try:
        row = json.loads(line)
        json.dumps(row, allow_nan=False)
        return row if row["step"] >= 0 else None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
