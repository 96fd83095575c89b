"""Rows of the result, and the file that keeps them whatever happens: rows.jsonl.

Its first line says when, where and with what it was begun; each other line is a row. Lines are
appended whole and forced to the disk. A line that a crash cut short counts for nothing.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmark.memory import Memory
from experiments.harness import runs
from experiments.harness.errors import UserError

Key = tuple[str, ...]
TIMED = "timed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one implementation did on one case. Times are in seconds, sizes in bytes.

    `status` is "timed", "wrong", "out of memory", "refused", "failed" or "not installed", and
    `message` says more. `ratio` is the baseline's time over this one's: more than 1 is faster.
    """

    shape: str
    score: str
    normalizer: str
    dtype: str
    direction: str
    implementation: str
    status: str
    message: str = ""
    error: float | None = None
    tolerance: float | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    run_seconds: float | None = None  # the median
    run_quartiles: tuple[float, float] | None = None
    rounds: int | None = None
    flop: int | None = None
    least_bytes: int | None = None
    gflop_per_second: float | None = None
    fraction_of_matmul: float | None = None
    memory: Memory | None = None
    baseline: str | None = None
    ratio: float | None = None
    ratio_quartiles: tuple[float, float] | None = None

    @property
    def key(self) -> Key:
        """What tells this row from all others."""
        case = (self.shape, self.score, self.normalizer, self.dtype, self.direction)
        return (*case, self.implementation)

    @property
    def result(self) -> str:
        """The status and what it means, in words."""
        if not self.message:
            return self.status
        brackets = self.status == "out of memory"
        return f"{self.status} ({self.message})" if brackets else f"{self.status}: {self.message}"


class Journal:
    """The file rows.jsonl of a run."""

    def __init__(self, path: Path):
        self.path = path

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the first line, in place of an earlier run's file."""
        runs.write(self.path, _line(header))

    def discard(self) -> None:
        """Forget an earlier run."""
        with runs.refusing(self.path):
            self.path.unlink(missing_ok=True)

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows after the last whole line."""
        with runs.refusing(self.path), self.path.open("rb+") as file:
            file.truncate(len(b"".join(self._lines())))
            file.seek(0, os.SEEK_END)
            file.write("".join(map(_line, rows)).encode())
            file.flush()
            os.fsync(file.fileno())

    def header(self) -> dict[str, Any] | None:
        """Return the first line; None where nothing has begun."""
        lines = self._lines()
        return json.loads(lines[0]) if lines else None

    def rows(self) -> dict[Key, Row]:
        """Return the rows by key, in the order in which they came."""
        rows = [_row(json.loads(line)) for line in self._lines()[1:]]
        return {row.key: row for row in rows}

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        return [e for e in self.path.read_bytes().splitlines(keepends=True) if e.endswith(b"\n")]


def require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with rows of another machine, or of other versions."""
    now = json.loads(runs.to_json(now))
    changed = [f"{n}: {before[n]} → {now[n]}" for n in now if before[n] != now[n]]
    if changed:
        raise UserError(f"--resume needs the same machine and versions. Changed: {changed[0]}.")


def _line(value: Any) -> str:
    return json.dumps(runs.plain(value), ensure_ascii=False, allow_nan=False) + "\n"


def _row(fields: Mapping[str, Any]) -> Row:
    memory, error = fields["memory"], fields["error"]
    return Row(
        **{
            **fields,
            "memory": memory and Memory(**memory),
            "error": None if error is None else float(error),  # "NaN" is a string in JSON
            **{n: fields[n] and tuple(fields[n]) for n in ("run_quartiles", "ratio_quartiles")},
        }
    )
