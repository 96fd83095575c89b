"""The cells of a person's CSV or TSV file, or a refusal that names the line.

Nothing is guessed that could be wrong in silence: what a file does not show by itself, `Form` says.
The standard library's reader is used instead of pandas, which knows no row's line: its C engine
fills short rows, its Python engine drops what follows a quote that does not close, both in silence.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator
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
Sign = Annotated[str | None, arg(metavar="SIGN", help_behavior_hint="")]


@dataclass(frozen=True)
class Form:
    """How your file is written."""

    delimiter: Sign = None
    """The delimiter of cells: a sign, or comma, semicolon, tab, bar, space. Default: found."""
    decimal: Annotated[Literal[".", ","] | None, arg(help_behavior_hint="")] = None
    """The decimal sign of all numbers. Default: found."""
    thousands: Sign = None
    """The separator of thousands: a sign, or space; where it is a dot, decimals have commas."""
    encoding: Annotated[str, arg(metavar="NAME")] = "utf-8"
    """The file's encoding: utf-16, latin1, cp1252 …"""

    def __post_init__(self):
        for name in ("delimiter", "thousands"):
            given = getattr(self, name)
            sign = BY_NAME.get(given, given)
            if sign is not None and (len(sign) != 1 or sign.isalnum() or sign in '"+-\r\n'):
                raise UserError(f"--{name} must be one sign. Got {given!r}.")
            object.__setattr__(self, name, sign)
        if self.thousands is not None and self.thousands == self.decimal:
            raise UserError(f"--thousands must not be --decimal. Got {self.thousands!r} twice.")


@dataclass(frozen=True)
class Table:
    """A file's cells as text; `lines`, from 1, are those on which the rows begin."""

    path: Path
    form: Form
    delimiter: str
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    @property
    def headerless(self) -> str:
        """A hint where the header looks like a row of data, else nothing."""
        if not all(map(LOOKS_NUMERIC.fullmatch, self.names)):
            return ""
        return f" The first line of {self.path} looks like data: put a header line above it."


def read_as(delimiter: str) -> str:
    """Return how a file was read, for those whom the result surprises."""
    name = DELIMITERS.get(delimiter, repr(delimiter))
    return f"read with {name} as delimiter; --delimiter names another"


def read(path: Path, form: Form) -> Table:
    """Read a delimited file with a header line, every row as long as the header.

    Lines end with LF, CR or both. Names of columns are brought into the Unicode form NFC.
    """
    from attn_jax.text import read_text

    try:
        text = read_text(path, form.encoding)
    except ValueError as error:
        undecodable = isinstance(error.__cause__, UnicodeError)
        advice = " --encoding names another encoding." if undecodable else ""
        raise UserError(f"{error}{advice}") from error
    sep = SEP_LINE.match(text)
    body = text[sep.end() :] if sep else text
    delimiter = form.delimiter or (sep and sep[1]) or find_delimiter(path, body)
    records = list(read_records(path, body, delimiter, first=2 if sep else 1))
    if not records:
        raise UserError(f"{path} is empty: it needs a header line and at least two rows.")
    (_, header), *records = records
    names = tuple(unicodedata.normalize("NFC", name) for name in header)
    if not records:
        raise UserError(f"{path} has a header ({listed(names)}) but no rows below it.")
    for line, cells in records:
        if len(cells) != len(names):
            raise UserError(
                f"{path} has {len(cells)} cells on line {line}, but {len(names)} in its header "
                f"({read_as(delimiter)})."
            )
    lines, rows = map(list, zip(*records, strict=True))
    return Table(path, form, delimiter, names, rows, lines)


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
            cells = [cell.strip() for cell in cells]
            if len(cells) > 1 or any(cells):
                yield line, cells
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
