"""What the cells of a column mean: numbers, ISO dates, missing values; and what float64 loses.

A comma or a dot is read as the decimal sign where nothing else could be meant, or where `Form` says
so. Numbers are the nearest ones of float64, and where it has only one for two that differ, or none
for an integer, a note says so.
"""

import calendar
import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from experiments.data.delimited import Table, headerless
from experiments.harness.errors import UserError, unknown

MISSING = {"", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>"}
ISO_DATE = re.compile(
    r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?)?"
)
EXPONENT = r"([eE][+-]?\d+)?"
ALIKE = {" ": " \u00a0\u2009\u202f", "'": "'’"}  # signs that part thousands as this one does


@dataclass(frozen=True)
class Kind:
    """How the cells of a column are read."""

    name: str
    exact: Callable[[str], Any]
    """The cell's meaning before it is rounded; ValueError where it has none."""
    rounded: Callable[[Any], float]
    notes: tuple[str, ...] = ()


def column(table: Table, name: str) -> tuple[np.ndarray, list[str]]:
    """Return one column [n] in float64, missing cells as NaN, and notes on how it was read."""
    at = place(table, name)
    cells = [row[at] for row in table.rows]
    present = {i: cell for i, cell in enumerate(cells) if cell.casefold() not in MISSING}
    kind = kind_of(table, name, present)
    values, exact = np.full(len(cells), np.nan), {}
    for i, cell in present.items():
        where = f"on line {table.lines[i]} of {table.path}"
        try:
            exact[i] = kind.exact(cell)
            values[i] = kind.rounded(exact[i])
        except (ValueError, ArithmeticError):  # Decimal's errors are arithmetic ones
            advice = "missing: leave the cell empty, or NA; categories: encode them as numbers"
            if re.search(r"\d\D\d", cell):
                advice += "; decimal commas, parted thousands: --decimal, --thousands"
            raise UserError(
                f"column {name!r} holds {cell!r} {where}, where {kind.name} are needed ({advice})."
            ) from None
        if np.isinf(values[i]):
            raise UserError(f"column {name!r} must be finite. Got {cell!r} {where}.")
    told = [*kind.notes, *lost(list(exact.values()), values[list(exact)])]
    return values, [f"column {name!r}: {note}" for note in told]


def place(table: Table, name: str) -> int:
    """Return where the column of this name is, in whatever Unicode form it is asked for."""
    name = unicodedata.normalize("NFC", name)
    if name not in table.names:
        hint = headerless(table) or f" ({table.way}.)"
        raise unknown("column", name, table.names, hint=hint)
    if table.names.count(name) > 1:
        raise UserError(f"column {name!r} is {table.names.count(name)} times in {table.path}.")
    return table.names.index(name)


def kind_of(table: Table, name: str, present: dict[int, str]) -> Kind:
    """Return what the cells of a column are: dates where the first one is, else numbers."""
    cells, form = list(present.values()), table.form
    if cells and ISO_DATE.fullmatch(cells[0]):
        return Kind("ISO dates", date, decimal_year, ("ISO dates read as decimal years",))
    decimal, notes = form.decimal, ()
    if decimal is None and form.thousands is not None:
        decimal = "," if form.thousands == "." else "."
    if decimal is None:
        decimal = "."
        if table.delimiter != "," and decimal_commas(cells):
            decimal, notes = ",", ("decimal commas read as decimal points",)
        else:
            notes = dots_read(table, name, present)
    return Kind("numbers", lambda cell: number(cell, decimal, form.thousands), float, notes)


def decimal_commas(cells: Sequence[str]) -> bool:
    """Say whether commas can only be decimal: 1,5 shows it; 1,234 alone could be thousands.

    >>> decimal_commas(["1,234", "0,5"]), decimal_commas(["1,234", "5"])
    (True, False)
    """
    numbers = re.compile(rf"[+-]?(\d*,)?\d+{EXPONENT}")
    shown = any("," in cell and not parts_thousands(cell, ",") for cell in cells)
    return shown and all(map(numbers.fullmatch, cells))


def parts_thousands(cell: str, sign: str) -> bool:
    """Say whether the sign could part thousands in a cell."""
    return bool(re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({re.escape(sign)}\d{{3}})+{EXPONENT}", cell))


def dots_read(table: Table, name: str, present: dict[int, str]) -> tuple[str, ...]:
    """Return a note where a column's dots, read as decimal points, could part thousands.

    Refuse to read them where any cell of the file shows that decimals have commas.
    """
    dotted = [i for i, cell in present.items() if "." in cell]
    if not dotted or not all(parts_thousands(present[i], ".") for i in dotted):
        return ()
    both = re.compile(rf"[+-]?\d{{1,3}}(\.\d{{3}})+,\d+{EXPONENT}")
    for line, row in zip(table.lines, table.rows, strict=True):
        for cell in row:
            if "," in cell and (decimal_commas([cell]) or both.fullmatch(cell)):
                raise UserError(
                    f"column {name!r} holds {present[dotted[0]]!r} on line "
                    f"{table.lines[dotted[0]]} of {table.path}, where {cell!r} on line {line} has "
                    "a decimal comma. Do dots part thousands (--thousands .), or are they decimal "
                    "points (--decimal .)?"
                )
    if table.delimiter == ",":
        return ()
    return ("dots read as decimal points; do they part thousands? --thousands .",)


def lost(exact: Sequence[Hashable], values: np.ndarray) -> list[str]:
    """Return notes on what float64 loses: integers that it has not, differences that it drops.

    >>> lost([Decimal("0.1"), Decimal("0.10000000000000000001")], np.array([0.1, 0.1]))
    ['2 different values become 1 in float64']
    """
    notes = []
    pairs = list(zip(exact, values.tolist(), strict=True))
    large = [(each, value) for each, value in pairs if abs(value) >= 2**53]  # no dates
    whole = [pair for pair in large if pair[0].as_tuple().exponent <= 0 and not pair[0] % 1]
    if rounded := sum(each != int(value) for each, value in whole):
        notes.append(f"{rounded} integers beyond 2^53 rounded to float64's nearest")
    if vanished := sum(value == 0 and each != 0 for each, value in pairs):
        notes.append(f"{vanished} numbers too small for float64, read as 0")
    different, left = len(set(exact)), len(set(values.tolist()))
    if left < different:
        notes.append(f"{different} different values become {left} in float64")
    return notes


def number(cell: str, decimal: str = ".", thousands: str | None = None) -> Decimal:
    """Return a decimal number as it is written.

    >>> number("-1.234,5", decimal=",", thousands=".")
    Decimal('-1234.5')
    """
    if thousands is not None:
        signs, point = f"[{re.escape(ALIKE.get(thousands, thousands))}]", re.escape(decimal)
        grouped = rf"[+-]?(\d{{1,3}}({signs}\d{{3}})+|\d*)({point}\d*)?{EXPONENT}"
        if not re.fullmatch(grouped, cell):
            raise ValueError
        cell = re.sub(signs, "", cell)
    if "_" in cell or (decimal != "." and "." in cell):  # Python would take 1_000
        raise ValueError
    value = Decimal(cell.replace(decimal, "."))
    if value.is_nan():  # Decimal takes nan123 for one
        raise ValueError
    return value


def date(cell: str) -> datetime:
    """Return an ISO date (YYYY-MM, YYYY-MM-DD, with a time or not); one with a zone in UTC."""
    if not ISO_DATE.fullmatch(cell):
        raise ValueError
    when = datetime.fromisoformat(cell + "-01" if len(cell) == 7 else cell)
    return when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)


def decimal_year(when: datetime) -> float:
    """Return the year and its part gone by.

    >>> decimal_year(date("2023-07-02T12:00"))
    2023.5
    """
    days = 366 if calendar.isleap(when.year) else 365
    gone = (when - datetime(when.year, 1, 1)).total_seconds() / 86_400
    return math.fsum([when.year, gone / days])
