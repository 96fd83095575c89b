"""A problem: a case's inputs, on every framework, and the right answer in some of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.benchmark import reference
from experiments.benchmark.cases import Case
from experiments.benchmark.inputs import Inputs, Rows, draw, sample_rows, seeded_at
from experiments.benchmark.programs import Framework


@dataclass(frozen=True)
class Problem:
    """`checked` are the inputs of the check; only a gradient's cotangent differs there."""

    case: Case
    inputs: Inputs
    checked: Inputs
    rows: Rows
    expected: Mapping[str, np.ndarray]
    _places: dict[Framework, tuple[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """Draw the inputs and evaluate the reference."""
        inputs, rows = draw(case), sample_rows(case)
        checked = seeded_at(case, inputs, rows)
        return cls(case, inputs, checked, rows, reference.expected(case, checked, rows))

    def placed(self, framework: Framework) -> tuple[Any, Any]:
        """Return (arguments to time, arguments to check) on the device, once for all programs."""
        if framework not in self._places:
            timed = checked = framework.place(self.inputs)
            if self.checked is not self.inputs:
                checked = framework.place(self.checked)._replace(operands=timed.operands)
            self._places[framework] = timed, checked
        return self._places[framework]
