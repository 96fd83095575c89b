"""Measure one case: every implementation is checked against the reference, then all are timed.

Whatever an implementation raises is its row's result, and the others go on.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.benchmark import agreement, flop, memory, timing
from experiments.benchmark.cases import Case
from experiments.benchmark.implementations import Implementation
from experiments.benchmark.problems import Problem
from experiments.benchmark.programs import Framework, Program
from experiments.benchmark.rows import TIMED, Row

FALLBACK_BASELINE = "dense"


@dataclass(frozen=True)
class Contest:
    """Who competes, where, and against whom. `by_name`: say why one does not serve a case."""

    implementations: Sequence[Implementation]
    framework: Callable[[str], Framework]
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


@dataclass(frozen=True)
class Ready:
    """A program that is right, its arguments, and its row so far."""

    row: Row
    program: Program
    arguments: Any


def measure(case: Case, contest: Contest, tell: Callable[[Row], Any]) -> list[Row]:
    """Return the case's rows; `tell` hears of each as soon as it is checked."""
    problem, ready, rows = Problem.of(case), [], {}
    for implementation in contest.entrants(case):
        entry = prepared(implementation, problem, contest)
        if isinstance(entry, Ready):
            ready.append(entry)
            entry = entry.row
        rows[implementation.name] = entry
        tell(entry)
    try:
        finished = timed(ready, problem, contest) if ready else []
    except Exception as error:  # what could run once could not run again
        finished = [failed(each.row, error) for each in ready]
    return list((rows | {row.implementation: row for row in finished}).values())


def prepared(implementation: Implementation, problem: Problem, contest: Contest) -> Row | Ready:
    """Return the program where it is right, else the row that says why there is none."""
    row = Row(**problem.case.names, implementation=implementation.name, status=TIMED)
    if implementation.missing:
        return replace(row, status="not installed", message=implementation.library)
    if reason := implementation.refusal(problem.case, contest.platform):
        return replace(row, status="refused", message=reason)
    try:
        return checked(row, implementation, problem, contest)
    except Exception as error:  # others' code, and memory
        return failed(row, error)


def checked(
    row: Row, implementation: Implementation, problem: Problem, contest: Contest
) -> Row | Ready:
    """Make the program, run it once and hold its results against the reference."""
    case, framework = problem.case, contest.framework(implementation.framework)
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
    most = agreement.tolerance(case.dtype, contest.platform)
    row = replace(
        row,
        error=error,
        tolerance=most,
        lower_seconds=program.lower_seconds,
        compile_seconds=first_call if program.compiles_at_first_call else program.compile_seconds,
        memory=program.memory(arguments),
    )
    if not error <= most:  # NaN is wrong too
        return replace(row, status="wrong", message=f"error {error:.1e}, at most {most:.0e}")
    return Ready(row, program, arguments)


def failed(row: Row, error: Exception) -> Row:
    """Return the row of an implementation that raised."""
    message = (str(error).splitlines() or [""])[0]
    names_it = isinstance(error, ValueError) and "implementation" in message
    if memory.is_exhausted(error):
        status = "out of memory"
    elif names_it or isinstance(error, NotImplementedError):
        status = "refused"
    else:
        status, message = "failed", f"{type(error).__name__}: {message}"
    return replace(row, status=status, message=message)


def timed(ready: Sequence[Ready], problem: Problem, contest: Contest) -> list[Row]:
    """Run the programs in turns and return their rows, complete."""
    calls = [functools.partial(each.program.call, each.arguments) for each in ready]
    seconds = timing.interleaved(calls, contest.seconds)
    by_name = {each.row.implementation: own for each, own in zip(ready, seconds, strict=True)}
    baseline = next((n for n in (contest.baseline, FALLBACK_BASELINE) if n in by_name), None)
    work = flop.count(problem.case)
    peak = contest.matmul_gflop_per_second[problem.case.dtype]
    rows = []
    for each, own in zip(ready, seconds, strict=True):
        median = float(np.median(own))
        row = replace(
            each.row,
            run_seconds=median,
            run_quartiles=quartiles(own),
            rounds=len(own),
            flop=work,
            least_bytes=flop.least_bytes(problem.case, problem.inputs),
            gflop_per_second=work / median / 1e9,
            fraction_of_matmul=work / median / 1e9 / peak,
        )
        rows.append(row if baseline is None else against(row, baseline, by_name[baseline] / own))
    return rows


def against(row: Row, baseline: str, ratios: np.ndarray) -> Row:
    """Return the row with the baseline's time over its own, round by round."""
    ratio = float(np.median(ratios))
    return replace(row, baseline=baseline, ratio=ratio, ratio_quartiles=quartiles(ratios))


def quartiles(values: np.ndarray) -> tuple[float, float]:
    """Return the first and the third."""
    first, third = np.quantile(values, [0.25, 0.75])
    return float(first), float(third)
