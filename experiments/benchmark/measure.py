"""Measure one case: every implementation is checked against the reference, then all are timed.

Whatever an implementation raises is its row's result, and the others go on.
"""

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.benchmark import agreement, flop, memory, reference, timing
from experiments.benchmark.cases import Case
from experiments.benchmark.implementations import Implementation
from experiments.benchmark.inputs import Inputs, Rows, draw, sample_rows, seeded_at
from experiments.benchmark.programs import Framework, Program
from experiments.benchmark.rows import TIMED, Row

FALLBACK_BASELINE = "dense"


@dataclass(frozen=True)
class Contest:
    """Who competes, where, and against whom. `by_name`: say why one does not serve a case."""

    implementations: Sequence[Implementation]
    frameworks: Mapping[str, Framework]
    platform: str
    baseline: str
    seconds: float
    matmul_gflop_per_second: Mapping[str, float]
    by_name: bool = False

    def entrants(self, case: Case) -> list[Implementation]:
        """Return who has a row in this case."""
        return [
            each
            for each in self.implementations
            if self.by_name or not (each.missing or each.refusal(case, self.platform))
        ]


@dataclass(frozen=True, eq=False)
class Problem:
    """A case's inputs, and the answer in some of its rows."""

    case: Case
    inputs: Inputs
    checked: Inputs
    rows: Rows
    expected: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, case: Case) -> "Problem":
        """Draw the inputs and evaluate the reference."""
        inputs, rows = draw(case), sample_rows(case)
        checked = seeded_at(case, inputs, rows)
        return cls(case, inputs, checked, rows, reference.expected(case, checked, rows))

    @functools.cache  # noqa: B019 - a problem lives as long as its case is measured
    def placed(self, framework: Framework) -> tuple[Any, Any]:
        """Return the arguments to time and those to check, on the device."""
        timed = framework.place(self.inputs)
        if self.checked is self.inputs:
            return timed, timed
        return timed, framework.place(self.checked)._replace(operands=timed.operands)


def measure(case: Case, contest: Contest) -> Iterator[Row]:
    """Yield a row for each entrant when it is checked, and again, last, when all are timed.

    So the last row of an implementation is its result, and what comes before it is progress.
    """
    problem = Problem.of(case)
    programs: dict[Row, Program] = {}
    for implementation in contest.entrants(case):
        row, program = prepared(implementation, problem, contest)
        yield row
        if program is not None:
            programs[row] = program
    if programs:
        yield from timed(programs, problem, contest)


def prepared(
    implementation: Implementation, problem: Problem, contest: Contest
) -> tuple[Row, Program | None]:
    """Return the row so far, and the program where it is right."""
    case = problem.case
    row = Row(**case.names, implementation=implementation.name, status=TIMED)
    if implementation.missing:
        return replace(row, status="not installed", message=implementation.library), None
    if reason := implementation.refusal(case, contest.platform):
        return replace(row, status="refused", message=reason), None
    framework = contest.frameworks[implementation.framework]
    try:
        return checked(row, implementation, framework, problem, contest.platform)
    except Exception as error:  # others' code, and memory: this row's result
        status, message = outcome(error)
        return replace(row, status=status, message=message), None


def checked(
    row: Row,
    implementation: Implementation,
    framework: Framework,
    problem: Problem,
    platform: str,
) -> tuple[Row, Program | None]:
    """Make the program, run it once and hold its results against the reference."""
    case = problem.case
    arguments, to_check = problem.placed(framework)
    program = framework.program(
        implementation.make(case), case, arguments, **implementation.options
    )
    memory.require(program.needed, framework.available())
    begin = time.perf_counter()
    results = program.call(to_check)
    first_call = time.perf_counter() - begin
    error = agreement.error(case, framework.read(results, case), problem.expected, problem.rows)
    del results
    most = agreement.tolerance(case.dtype, platform)
    row = replace(
        row,
        error=error,
        tolerance=most,
        lower_seconds=program.lower_seconds,
        compile_seconds=first_call if program.compiles_at_first_call else program.compile_seconds,
        memory=program.memory(arguments),
    )
    if not error <= most:  # NaN is wrong too
        message = f"error {error:.1e}, at most {most:.0e}"
        return replace(row, status="wrong", message=message), None
    return row, program


def outcome(error: Exception) -> tuple[str, str]:
    """Return the status and the message of what an implementation raised."""
    first_line = (str(error).splitlines() or [""])[0]
    if memory.is_exhausted(error):
        return "out of memory", first_line
    names_it = isinstance(error, ValueError) and "implementation" in first_line
    if names_it or isinstance(error, NotImplementedError):
        return "refused", first_line
    return "failed", f"{type(error).__name__}: {first_line}"


def timed(
    programs: Mapping[Row, Program], problem: Problem, contest: Contest
) -> Iterator[Row]:
    """Run the programs in turns and yield their rows, complete."""
    case, rows = problem.case, list(programs)
    frameworks = {each.name: each.framework for each in contest.implementations}
    arguments = [
        problem.placed(contest.frameworks[frameworks[row.implementation]])[0] for row in rows
    ]
    calls = [
        functools.partial(program.call, given)
        for program, given in zip(programs.values(), arguments, strict=True)
    ]
    seconds = timing.interleaved(calls, contest.seconds)
    by_name = dict(zip((row.implementation for row in rows), seconds, strict=True))
    baseline = next((n for n in (contest.baseline, FALLBACK_BASELINE) if n in by_name), None)
    work = flop.count(case)
    for row, own in zip(rows, seconds, strict=True):
        rate = work / np.median(own) / 1e9
        row = replace(
            row,
            run_seconds=float(np.median(own)),
            run_quartiles=quartiles(own),
            rounds=len(own),
            flop=work,
            least_bytes=flop.least_bytes(case, problem.inputs),
            gflop_per_second=float(rate),
            fraction_of_matmul=float(rate / contest.matmul_gflop_per_second[case.dtype]),
        )
        if baseline is not None:
            ratios = by_name[baseline] / own
            row = replace(
                row,
                baseline=baseline,
                ratio=float(np.median(ratios)),
                ratio_quartiles=quartiles(ratios),
            )
        yield row


def quartiles(values: np.ndarray) -> tuple[float, float]:
    """Return the first and the third."""
    first, third = np.quantile(values, [0.25, 0.75])
    return float(first), float(third)
