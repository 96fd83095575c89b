"""Numbers from a person's CSV or TSV file: exact, or refused with the line that is wrong.

Nothing is guessed that could be wrong in silence. The standard library's reader is used instead
of pandas because it knows the line of every row.
"""

import calendar
import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from experiments.errors import UserError, listed, unknown

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
MISSING = {"", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>"}
ISO_DATE = re.compile(
    r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?)?"
)


@dataclass(frozen=True)
class Table:
    """A file's cells as text."""

    path: Path
    names: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    """The line of the file on which each row begins, from 1."""
    delimiter: str


def read(path: Path) -> Table:
    """Read a delimited UTF-8 file with a header line, every row as long as the header."""
    text = read_text(path)
    delimiter = find_delimiter(path, text)
    records = read_records(path, text, delimiter)
    header = next(records, None)
    if header is None:
        raise UserError(f"{path} is empty: it needs a header line and at least two rows.")
    names = header[1]
    lines, rows = [], []
    for line, cells in records:
        if len(cells) != len(names):
            raise UserError(
                f"{path} has {len(cells)} cells on line {line}, but {len(names)} in its header "
                f"(read with {DELIMITERS[delimiter]} as delimiter)."
            )
        lines.append(line)
        rows.append(cells)
    if not rows:
        raise UserError(f"{path} has a header ({listed(names)}) but no rows below it.")
    return Table(path, tuple(names), rows, lines, delimiter)


def read_text(path: Path) -> str:
    """Return the file's text without a byte-order mark."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"no file {path}.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory; a CSV or TSV file is needed.") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} is not UTF-8 (byte 0x{data[error.start]:02x} on line {line}). Save it as "
            f"UTF-8, or convert it: iconv -f latin1 -t utf-8 (for Excel's Unicode: -f utf-16)."
        ) from None


def read_records(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, stripped cells) of each record that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path} breaks off in the record on line {line}: {error}.") from error


def find_delimiter(path: Path, text: str) -> str:
    """Return tab for .tsv and .tab, else the delimiter that splits the first rows evenly."""
    if path.suffix.lower() in (".tsv", ".tab"):
        return "\t"

    def evenness(delimiter: str) -> tuple[bool, int]:
        counts = []
        with suppress(UserError):  # a record that breaks off is refused when all are read
            for _, cells in islice(read_records(path, text, delimiter), 20):
                counts.append(len(cells))
        return (len(set(counts)) == 1 and counts[0] > 1, counts[0] if counts else 0)

    return max(DELIMITERS, key=evenness)


def column(table: Table, name: str) -> tuple[np.ndarray, list[str]]:
    """Return one column [n] in float64, missing cells as NaN, and notes on how it was read.

    Numbers, ISO dates (as decimal years), and decimal commas where no thousands could be meant.
    """
    if name not in table.names:
        raise unknown("column", name, table.names, hint=headerless(table))
    if table.names.count(name) > 1:
        raise UserError(f"column {name!r} is {table.names.count(name)} times in {table.path}.")
    at = table.names.index(name)
    cells = [row[at] for row in table.rows]
    present = [cell for cell in cells if cell.casefold() not in MISSING]
    read_cell, kind, notes = number, "numbers", []
    if present and ISO_DATE.fullmatch(present[0]):
        read_cell, kind = date, "ISO dates"
        notes = [f"column {name!r}: ISO dates read as decimal years"]
    elif table.delimiter != "," and decimal_commas(present):
        read_cell, kind = decimal_comma, "numbers"
        notes = [f"column {name!r}: decimal commas read as decimal points"]
    values = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell.casefold() not in MISSING:
            try:
                values[i] = read_cell(cell)
            except ValueError:
                raise UserError(
                    f"column {name!r} holds {cell!r} on line {table.lines[i]} of {table.path}, "
                    f"where {kind} are needed (missing: leave the cell empty, or NA; categories: "
                    "encode them as numbers)."
                ) from None
        if np.isinf(values[i]):
            raise UserError(
                f"column {name!r} must be finite. Got {cell!r} on line {table.lines[i]} of "
                f"{table.path}."
            )
    return values, notes


def headerless(table: Table) -> str:
    """Return a hint where the header looks like a row of data, else nothing."""
    try:
        for cell in table.names:
            number(cell)
    except ValueError:
        return ""
    return f" The first line of {table.path} looks like data: put a header line above it."


def number(cell: str) -> float:
    """Return the float64 nearest to a decimal number.

    >>> number("-1.5e3")
    -1500.0
    """
    if "_" in cell:  # Python's float would take 1_000
        raise ValueError
    return float(cell)


def decimal_comma(cell: str) -> float:
    """Return the number written with a decimal comma.

    >>> decimal_comma("3,14")
    3.14
    """
    return number(cell.replace(",", "."))


def decimal_commas(cells: Sequence[str]) -> bool:
    """Say whether commas can only be decimal: 1,5 shows it; 1,234 alone could be thousands."""
    with_comma = [cell for cell in cells if "," in cell]
    return all(re.fullmatch(r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?", cell) for cell in cells) and any(
        not re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", cell) for cell in with_comma
    )


def date(cell: str) -> float:
    """Return an ISO date (YYYY-MM, YYYY-MM-DD, with a time or not) as a decimal year.

    >>> date("2023-07-02T12:00")
    2023.5
    """
    if not ISO_DATE.fullmatch(cell):
        raise ValueError
    return decimal_year(datetime.fromisoformat(cell + "-01" if len(cell) == 7 else cell))


def decimal_year(when: datetime) -> float:
    """Return the year and its part gone by; a time with a zone is taken in UTC."""
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    days = 366 if calendar.isleap(when.year) else 365
    gone = (when - datetime(when.year, 1, 1)).total_seconds() / 86_400
    return math.fsum([when.year, gone / days])
