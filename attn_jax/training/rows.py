"""metrics.jsonl: one row, one JSON object, per step that was reported."""

import json
import math
import os
from pathlib import Path
from typing import Any


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
    with file.open("a") as stream:
        stream.write(json.dumps(row, allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def rewind(file: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows after a step, and a last one that was cut short; return the others."""
    kept = [row for row in _whole_rows(file) if row["step"] <= step]
    rewritten = file.with_suffix(".partial")
    rewritten.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))
    rewritten.replace(file)
    return kept


def _whole_rows(file: Path) -> list[dict[str, Any]]:
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
