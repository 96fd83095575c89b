"""Numbers from a person's CSV or TSV file: exact, or refused with the line that is wrong.

Nothing is guessed that could be wrong in silence: what a file does not show by itself, `Form` says.
The standard library's reader is used instead of pandas because it knows the line of every row, and
refuses rows that are too short and quotes that do not close.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from experiments.harness.errors import UserError, listed

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
BY_NAME = {name: sign for sign, name in DELIMITERS.items()} | {"space": " ", r"\t": "\t"}
SEP_LINE = re.compile(r'"?sep=(.)"?(\r\n?|\n|$)', re.IGNORECASE)  # what Excel puts first
LOOKS_NUMERIC = re.compile(r"[+-]?\d[\d.,:TZ+-]*([eE][+-]?\d+)?")  # dates and times too
FOUND = "(default: found)"


@dataclass(frozen=True)
class Form:
    """How your file is written."""

    delimiter: Annotated[str | None, arg(metavar="SIGN", help_behavior_hint=FOUND)] = None
    """What parts the cells: a sign, or comma, semicolon, tab, bar, space."""
    decimal: Annotated[Literal[".", ","] | None, arg(help_behavior_hint=FOUND)] = None
    """The decimal sign of all numbers."""
    thousands: Annotated[str | None, arg(metavar="SIGN", help_behavior_hint="(default: none)")] = (
        None
    )
    """What parts thousands: a sign, or space; where it is a dot, decimals have commas."""
    encoding: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: utf-8)")] = (
        None
    )
    """The file's encoding: utf-16, latin1, cp1252 …"""

    def __post_init__(self):
        for name in ("delimiter", "thousands"):
            given = getattr(self, name)
            sign = given if given is None else BY_NAME.get(given, given)
            if sign is not None and (len(sign) != 1 or sign.isalnum() or sign in '"+-\r\n'):
                raise UserError(f"--{name} must be one sign. Got {given!r}.")
            object.__setattr__(self, name, sign)
        if self.thousands is not None and self.thousands == self.decimal:
            raise UserError(f"--thousands must not be --decimal. Got {self.thousands!r} twice.")


@dataclass(frozen=True)
class Table:
    """A file's cells as text."""

    path: Path
    names: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    """The line of the file on which each row begins, from 1."""
    delimiter: str
    form: Form

    @property
    def way(self) -> str:
        """How the file was read, for those whom the result surprises."""
        name = DELIMITERS.get(self.delimiter, repr(self.delimiter))
        return f"read with {name} as delimiter; --delimiter names another"


def read(path: Path, form: Form | None = None) -> Table:
    """Read a delimited file with a header line, every row as long as the header.

    Names of columns are brought into the Unicode form NFC.
    """
    form = form or Form()
    text = read_text(path, form.encoding or "utf-8")
    sep = SEP_LINE.match(text)
    body = text[sep.end() :] if sep else text
    delimiter = form.delimiter or (sep and sep[1]) or find_delimiter(path, body)
    records = read_records(path, body, delimiter, first=2 if sep else 1)
    header = next(records, None)
    if header is None:
        raise UserError(f"{path} is empty: it needs a header line and at least two rows.")
    names = tuple(unicodedata.normalize("NFC", name) for name in header[1])
    table = Table(path, names, [], [], delimiter, form)
    for line, cells in records:
        if len(cells) != len(names):
            raise UserError(
                f"{path} has {len(cells)} cells on line {line}, but {len(names)} in its header "
                f"({table.way})."
            )
        table.lines.append(line)
        table.rows.append(cells)
    if not table.rows:
        raise UserError(f"{path} has a header ({listed(names)}) but no rows below it.")
    return table


def read_text(path: Path, encoding: str) -> str:
    """Return the file's text without byte-order marks."""
    from attn_jax import text

    try:
        return text.read_text(path, encoding)
    except ValueError as error:
        undecodable = isinstance(error.__cause__, UnicodeError)
        advice = " --encoding names another encoding." if undecodable else ""
        raise UserError(f"{error}{advice}") from error


def read_records(
    path: Path, text: str, delimiter: str, first: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Yield (its first line, stripped cells) of each record that is not blank."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    spaces = delimiter != " "  # before a quote
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=spaces)
    line = first
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) or len(cells) > 1:
                yield line, [cell.strip() for cell in cells]
            line = first + reader.line_num
    except csv.Error as error:
        raise UserError(f"{path} breaks off in the record on line {line}: {error}.") from error


def find_delimiter(path: Path, text: str) -> str:
    """Return tab for .tsv and .tab, else the delimiter that splits the first rows best.

    Evenly first, then so that most cells below the header look like numbers, then into most cells.
    """
    if {".tsv", ".tab"} & {each.lower() for each in path.suffixes}:
        return "\t"

    def merit(delimiter: str) -> tuple[bool, float, int]:
        rows = []
        with suppress(UserError):  # a record that breaks off is refused when all are read
            for _, cells in islice(read_records(path, text, delimiter), 20):
                rows.append(cells)
        width = len(rows[0]) if rows else 0
        if width < 2 or any(len(cells) != width for cells in rows):
            return (False, 0.0, width)
        below = [cell for cells in rows[1:] for cell in cells]
        numeric = sum(bool(LOOKS_NUMERIC.fullmatch(cell)) for cell in below)
        return (True, numeric / max(len(below), 1), width)

    return max(DELIMITERS, key=merit)


def headerless(table: Table) -> str:
    """Return a hint where the header looks like a row of data, else nothing."""
    if not all(map(LOOKS_NUMERIC.fullmatch, table.names)):
        return ""
    return f" The first line of {table.path} looks like data: put a header line above it."
