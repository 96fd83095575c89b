"""Results as a table that reads well in a terminal, a pipe and a log file."""

import math
from collections.abc import Mapping, Sequence
from typing import IO, Any

Row = Mapping[str, Any]
GAP = 2  # blanks between columns


def print_table(
    rows: Sequence[Row], *, title: str | None = None, file: IO[str] | None = None
) -> None:
    """Print rows (column name → value) with one line each; numbers align right.

    A column's name may have several lines. No rows, no table. One wider than the terminal (80
    columns where there is none) continues below, its first column repeated: no number is truncated.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    cells = {name: column_text(values) for name, values in columns.items()}
    width = {name: max(map(len, [*name.split("\n"), *cells[name]])) + GAP for name in names}
    for number, part in enumerate(parts(width, console.width)):
        table = Table(
            title=title and Text(title + " (continued)" * (number > 0)),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, GAP - 1, 0, 0),  # the divider is the other blank
            collapse_padding=True,
        )
        for name in part:
            right = all(map(is_number, columns[name]))
            justify = "right" if right else "left"
            table.add_column(Text(name), justify=justify, no_wrap=right, overflow="fold")
        for row in zip(*(cells[name] for name in part), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)


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
    return value is None or (hasattr(value, "__float__") and not isinstance(value, bool))


def column_text(values: Sequence[Any]) -> list[str]:
    """Return one column's values as text: four significant digits, decimal points in line.

    >>> column_text([0.5, 12.3456, None])
    ['0.5000', '12.3456', '-']
    >>> column_text([1e-9, 3])
    ['1.000e-09', '3']
    """
    values = [value.item() if hasattr(value, "item") else value for value in values]
    sizes = [abs(value) for value in values if isinstance(value, float) and value]
    sizes = list(filter(math.isfinite, sizes))
    aligned = sizes and min(sizes) >= 1e-3 and max(sizes) < min(1e6, 1e4 * min(sizes))
    places = max(map(decimals, sizes)) if aligned else None
    return [cell_text(value, places) for value in values]


def decimals(size: float) -> int:
    """Return how many decimals show four significant digits of a positive number."""
    return max(0, 3 - math.floor(math.log10(size)))


def cell_text(value: Any, places: int | None) -> str:
    """Return one cell: floats to `places` decimals, or by their own size where it is None."""
    if value is None:
        return "-"
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if places is None and value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    if places is None:
        places = decimals(abs(value)) if value else 0
    return f"{value or 0.0:.{places}f}"
