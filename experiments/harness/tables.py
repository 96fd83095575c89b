"""Results as a table that reads well in a terminal, a pipe and a log file."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import IO, Any

Row = Mapping[str, Any]


def print_table(
    rows: Sequence[Row], *, title: str | None = None, file: IO[str] | None = None
) -> None:
    """Print rows (column name → value) with one line each; numbers align right.

    A column's name may have several lines. No rows, no table.

    A table wider than the terminal (80 columns where there is none) continues below, its first
    column repeated: no number is ever cut.
    """
    from rich.console import Console

    if not rows:
        return
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = {name: column_text([row.get(name) for row in rows]) for name in names}
    width = {name: max(map(len, [*name.split("\n"), *cells[name]])) + GAP for name in names}
    for number, part in enumerate(parts(width, console.width)):
        numeric = {name for name in part if all(is_number(row.get(name)) for row in rows)}
        heading = title if number == 0 else (title and f"{title} (continued)")
        console.print(table({name: cells[name] for name in part}, numeric, heading))


GAP = 2


def table(cells: Mapping[str, Sequence[str]], numeric: set[str], title: str | None):
    """Return the rich table of these columns of text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=title and Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the divider is the other blank
        collapse_padding=True,
    )
    for name in cells:
        right = name in numeric
        result.add_column(
            Text(name), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in zip(*cells.values(), strict=True):
        result.add_row(*map(Text, row))
    return result


def parts(width: Mapping[str, int], total: int) -> list[list[str]]:
    """Split the columns into tables that fit, each beginning with the first column.

    >>> parts({"name": 4, "a": 4, "b": 4}, 8)
    [['name', 'a'], ['name', 'b']]
    """
    first, *others = width
    result = [[first]]
    for name in others:
        if len(result[-1]) > 1 and sum(width[each] for each in [*result[-1], name]) > total:
            result.append([first])
        result[-1].append(name)
    return result


def is_number(value: Any) -> bool:
    """Say whether the value aligns with numbers (a missing one does)."""
    return value is None or (hasattr(value, "__float__") and not isinstance(value, bool | str))


def column_text(values: Sequence[Any]) -> list[str]:
    """Return one column's values as text: four significant digits, decimal points in line.

    >>> column_text([0.5, 12.3456, None])
    ['0.5000', '12.3456', '-']
    >>> column_text([1e-9, 3])
    ['1.000e-09', '3']
    """
    values = [plain_number(value) if is_number(value) else value for value in values]
    floats = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    sizes = [size for size in floats if size > 0]
    aligned = (
        bool(sizes) and min(sizes) >= 1e-3 and max(sizes) < 1e6 and max(sizes) < 1e4 * min(sizes)
    )
    places = max(map(decimals, sizes)) if aligned else None
    return [cell_text(value, places) for value in values]


def plain_number(value: Any) -> int | float | None:
    """Return a number of any library as Python's own."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return value.item()  # zero-dimensional arrays


def decimals(size: float) -> int:
    """Return how many decimals show four significant digits of a positive number."""
    return max(0, 3 - math.floor(math.log10(size)))


def cell_text(value: Any, places: int | None) -> str:
    """Return one cell: floats to `places` decimals, or by their own size where it is None."""
    if value is None:
        return "-"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if places is not None:
        return f"{value:.{places}f}"
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:.{decimals(size)}f}" if 1e-3 <= size < 1e6 else f"{value:.3e}"
