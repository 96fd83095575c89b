"""The columns of the tables, and what is printed and written about them."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_jax.testing import Report
from experiments.harness import tables
from experiments.harness.implementations import Implementation

SYMBOLS = {"holds": "✓", "fails": "✗", "not promised": "–", "not applicable": "–"}


@dataclass(frozen=True, eq=False)
class Column(Implementation):
    """An implementation, the head of its column, and what it promises."""

    code: str
    function: Callable[..., Any] | None = None
    """None: `library.name`, imported when it is examined."""
    adapt: Callable[[Callable], Callable] = lambda function: function
    """From the function to what the kit calls."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of `testing.examine_normalizer` or `testing.examine_attention`."""
    smoke: bool = False

    def make(self) -> Callable[..., Any]:
        """Return the function to examine."""
        return self.adapt(self.function or pkgutil.resolve_name(f"{self.library}.{self.name}"))


def slot_name(slot: Any) -> str:
    """Return how a slot is written, without the arguments that it leaves out."""
    return repr(slot).replace("sink=None", "").replace("bias=0.0", "")


def records(kind: str, column: Column, report: Report) -> list[dict[str, Any]]:
    """Return the rows of metrics.json of one implementation."""
    whose = {"kind": kind, "library": column.library, "name": column.name}
    return [whose | vars(each) for each in report.results]


def print_table(kind: str, names: Sequence[str], reports: Mapping[Column, Report]) -> None:
    """Print one table of invariants × implementations, its legend, and each failure."""
    print(f"\n{kind}: ✓ holds, ✗ fails, – not promised or not applicable\n")
    rows = [{"invariant": name} for name in names]
    for column, report in reports.items():
        for row in rows:
            row[column.code] = SYMBOLS[report[row["invariant"]].status]
    tables.print_table(rows)
    print()
    for column in reports:
        print(f"  {column.code:3} {column.library}: {column.name}")
    for column, report in reports.items():
        for each in report.failures:
            print(f"\n{column.library} {column.name}\n{each}")
    print()
