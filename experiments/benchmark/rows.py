"""Rows of the result, and the file that keeps them whatever happens: rows.jsonl.

Its first line says when, where and with what it was begun; each other line is a row. Lines are
appended and forced to the disk. An incomplete last line is ignored: a crash may leave one.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmark.memory import Memory
from experiments.harness import files

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


def write(path: Path, header: Mapping[str, Any] | None = None, rows: Iterable[Row] = ()) -> None:
    """Write the file anew; without a header it is empty."""
    files.write(path, "" if header is None else _lines([header, *rows]))


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to the file."""
    with files.refusing(path), path.open("a", encoding="utf-8") as file:
        file.write(_lines(rows))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> tuple[dict[str, Any] | None, dict[Key, Row]]:
    """Return the first line (None: nothing has begun) and the rows by key, as they came."""
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    header, *rows = map(json.loads, text.split("\n")[:-1] or ["null"])
    return header, {row.key: row for row in map(_row, rows)}


def _lines(values: Iterable[Any]) -> str:
    texts = (json.dumps(files.plain(e), ensure_ascii=False, allow_nan=False) for e in values)
    return "".join(f"{text}\n" for text in texts)


def _row(fields: Mapping[str, Any]) -> Row:
    memory, error = fields["memory"], fields["error"]
    parsed = {name: fields[name] and tuple(fields[name]) for name in fields if "quartiles" in name}
    parsed["memory"] = memory and Memory(**memory)
    parsed["error"] = None if error is None else float(error)  # "NaN" is a string in JSON
    return Row(**{**fields, **parsed})
