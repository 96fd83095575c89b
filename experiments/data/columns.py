"""What the cells of a column mean: numbers, ISO dates, missing values; and what float64 loses.

A comma or a dot is read as the decimal sign where nothing else could be meant, or where `Form` says
so. Numbers are the nearest ones of float64, and where it has only one for two that differ, or none
for an integer, a note says so.
"""

import calendar
import re
import unicodedata
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np

from experiments.data.delimited import Table, read_as
from experiments.harness.errors import UserError, unknown

MISSING = {"", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>"}
ISO_DATE = re.compile(
    r"\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}(:\d{2}(?P<fraction>\.\d+)?)?"
    r"(?P<zone>Z|[+-]\d{2}:?\d{2})?)?)?"
)
EXPONENT = r"([eE][+-]?\d+)?"
ALIKE = {" ": " \u00a0\u2009\u202f", "'": "'’"}  # signs that separate thousands as this one does


def column(table: Table, name: str) -> tuple[np.ndarray, list[str]]:
    """Return one column [n] in float64, missing cells as NaN, and notes on how it was read."""
    name = unicodedata.normalize("NFC", name)
    if name not in table.names:
        hint = table.headerless or f" ({read_as(table.delimiter)}.)"
        raise unknown("column", name, table.names, hint=hint)
    if table.names.count(name) > 1:
        raise UserError(f"column {name!r} is {table.names.count(name)} times in {table.path}.")
    at = table.names.index(name)
    cells = {line: row[at] for line, row in zip(table.lines, table.rows, strict=True)}
    present = {line: cell for line, cell in cells.items() if cell.casefold() not in MISSING}
    needed, read, notes = "numbers", date, ["ISO dates read as decimal years"]
    if present and ISO_DATE.fullmatch(next(iter(present.values()))):
        needed = "ISO dates"
        require_one_clock(table, name, present)
    else:
        decimal, notes = decimal_sign(table, name, present)
        read = partial(number, decimal=decimal, thousands=table.form.thousands)
    exact, values = {}, dict.fromkeys(cells, np.nan)
    for line, cell in present.items():
        try:
            exact[line] = read(cell)
            values[line] = float(exact[line])
        except (ValueError, ArithmeticError):  # Decimal's errors are arithmetic ones
            advice = "missing: leave the cell empty, or NA; categories: encode them as numbers"
            if re.search(r"\d\D\d", cell):
                advice += "; decimal commas, separated thousands: --decimal, --thousands"
            raise UserError(
                f"column {name!r} holds {cell!r} on line {line} of {table.path}, where {needed} "
                f"are needed ({advice})."
            ) from None
        if np.isinf(values[line]):
            where = f"on line {line} of {table.path}"
            raise UserError(f"column {name!r} must be finite. Got {cell!r} {where}.")
    notes += lost(list(exact.values()), [values[line] for line in exact])
    return np.array(list(values.values())), [f"column {name!r}: {note}" for note in notes]


def decimal_sign(table: Table, name: str, present: dict[int, str]) -> tuple[str, list[str]]:
    """Return a column's decimal sign, and notes where it is read off the cells.

    Dots that could separate thousands are refused where a cell of the file has a decimal comma.
    """
    decimal, thousands = table.form.decimal, table.form.thousands
    if decimal is not None or thousands is not None:
        return decimal or ("," if thousands == "." else "."), []
    if table.delimiter != "," and decimal_commas(present.values()):
        return ",", ["decimal commas read as decimal points"]
    dotted = {line: cell for line, cell in present.items() if "." in cell}
    if not dotted or not all(separates_thousands(cell, ".") for cell in dotted.values()):
        return ".", []
    both = re.compile(rf"[+-]?\d{{1,3}}(\.\d{{3}})+,\d+{EXPONENT}")
    line, dots = next(iter(dotted.items()))
    for other, row in zip(table.lines, table.rows, strict=True):
        for cell in row:
            if "," in cell and (decimal_commas([cell]) or both.fullmatch(cell)):
                raise UserError(
                    f"column {name!r} holds {dots!r} on line {line} of {table.path}, where "
                    f"{cell!r} on line {other} has a decimal comma. Do dots separate thousands "
                    "(--thousands .), or are they decimal points (--decimal .)?"
                )
    note = "dots read as decimal points; do they separate thousands? --thousands ."
    return ".", [] if table.delimiter == "," else [note]


def decimal_commas(cells: Collection[str]) -> bool:
    """Say whether commas can only be decimal: 1,5 shows it; 1,234 alone could be thousands.

    >>> decimal_commas(["1,234", "0,5"]), decimal_commas(["1,234", "5"])
    (True, False)
    """
    numbers = re.compile(rf"[+-]?(\d*,)?\d+{EXPONENT}")
    shown = any("," in cell and not separates_thousands(cell, ",") for cell in cells)
    return shown and all(map(numbers.fullmatch, cells))


def separates_thousands(cell: str, sign: str) -> bool:
    """Say whether the sign could separate thousands in a cell."""
    return bool(re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}({re.escape(sign)}\d{{3}})+{EXPONENT}", cell))


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


def require_one_clock(table: Table, name: str, present: dict[int, str]) -> None:
    """Refuse dates some of which have a time zone: nothing says which one the others have."""
    lines = {}
    for line, cell in present.items():
        if match := ISO_DATE.fullmatch(cell):
            lines.setdefault(match["zone"] is not None, line)
    if len(lines) == 2:
        zoned, plain = lines[True], lines[False]
        raise UserError(
            f"column {name!r} must give all dates a time zone, or none. Got {present[zoned]!r} on "
            f"line {zoned} of {table.path}, {present[plain]!r} on line {plain}."
        )


def date(cell: str) -> Fraction:
    """Return an ISO date (YYYY-MM, YYYY-MM-DD, with a time or not) as a decimal year, exactly.

    One with a time zone is taken in UTC.

    >>> date("2023-07-02T12:00")
    Fraction(4047, 2)
    """
    match = ISO_DATE.fullmatch(cell)
    if not match:
        raise ValueError
    fraction = match["fraction"] or ""  # datetime would drop what is smaller than a microsecond
    when = datetime.fromisoformat(cell.replace(fraction, "") + "-01" * (len(cell) == 7))
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return decimal_year(when, Fraction("0" + fraction))


def decimal_year(when: datetime, seconds: Fraction | int = 0) -> Fraction:
    """Return the year and its part gone by, with further seconds."""
    days = 366 if calendar.isleap(when.year) else 365
    seconds += Fraction((when - datetime(when.year, 1, 1)) // timedelta(microseconds=1), 10**6)
    return when.year + seconds / (days * 86_400)


def written_whole(value: Decimal) -> bool:
    """Say whether a number is an integer with all its digits: 1e30 is not."""
    return value.as_tuple().exponent <= 0 and value == value.to_integral_value()


def lost(exact: Sequence[Decimal | Fraction], values: Sequence[float]) -> list[str]:
    """Return notes on what float64 loses: integers that it has not, differences that it drops.

    >>> lost([Decimal("0.1"), Decimal("0.10000000000000000001")], [0.1, 0.1])
    ['2 different values become 1 in float64']
    """
    notes = []
    pairs = list(zip(exact, values, strict=True))
    large = [(each, value) for each, value in pairs if abs(value) >= 2**53]  # no dates
    if rounded := sum(written_whole(each) and each != int(value) for each, value in large):
        notes.append(f"{rounded} integers beyond 2^53 rounded to float64's nearest")
    if vanished := sum(value == 0 and each != 0 for each, value in pairs):
        notes.append(f"{vanished} numbers too small for float64, read as 0")
    different, left = len(set(exact)), len(set(values))
    if left < different:
        notes.append(f"{different} different values become {left} in float64")
    return notes
