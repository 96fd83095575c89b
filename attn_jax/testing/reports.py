"""What is reported of a function: the result of each invariant, and counterexamples."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Status = Literal["holds", "fails", "not promised", "not applicable"]


class PropertyViolation(Exception):  # noqa: N818 - it is no error of the program: a counterexample
    """An invariant does not hold: what was computed, and by how much it is wrong."""

    def __init__(self, message: str, **outputs: Any):
        super().__init__(message)
        self.message, self.outputs = message, outputs


@dataclass(frozen=True)
class Result:
    """One invariant on one function; where it fails, the smallest input found that shows it."""

    invariant: str
    statement: str
    status: Status
    message: str = ""
    input: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    output: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        if self.status != "fails":
            return f"{self.invariant:24}  {self.status}"
        lines = [f"{self.invariant}: {self.statement}", f"  {self.message}"]
        lines += [f"  input   {name} {show(value)}" for name, value in self.input.items()]
        lines += [
            f"  output  {name} {show(value, dtype=False)}" for name, value in self.output.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The result of every invariant."""

    results: tuple[Result, ...]

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that fail."""
        return tuple(each for each in self.results if each.status == "fails")

    def __getitem__(self, invariant: str) -> Result:
        return {each.invariant: each for each in self.results}[invariant]

    def __str__(self) -> str:
        lines = [f"{each.invariant:24}  {each.status}" for each in self.results]
        return "\n\n".join(["\n".join(lines), *map(str, self.failures)])

    def check(self) -> None:
        """Raise `InvariantError` where an invariant fails."""
        if self.failures:
            raise InvariantError(self)


class InvariantError(AssertionError):
    """An invariant fails. `report` has all results; the message shows the first that fails."""

    def __init__(self, report: Report):
        first, *others = report.failures
        names = ", ".join(each.invariant for each in others)
        super().__init__(f"{first}\nalso broken: {names}" if others else str(first))
        self.report, self.invariant = report, first.invariant


def show(value: Any, *, dtype: bool = True) -> str:
    """A value on one line: `[0., 1.] float32`."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    numbers = value if value.dtype.kind in "biuf" else value.astype(np.float64)
    text = np.array2string(numbers, separator=", ", max_line_width=10**6).replace("\n", "")
    return f"{text} {value.dtype.name}" if dtype and value.dtype != bool else text
