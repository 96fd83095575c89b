"""Measure one case: each implementation is checked against the reference, then all are timed.

Whatever an implementation raises is its row's result, and the others go on.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from experiments.benchmark import Benchmark, memory, reference
from experiments.benchmark.cases import Case, Inputs, draw, sample_rows, seeded_at
from experiments.benchmark.implementations import Framework, Implementation
from experiments.benchmark.jax_programs import JAX
from experiments.benchmark.rows import TIMED, Row
from experiments.benchmark.timing import interleaved

FALLBACK_BASELINE = "dense"
Call = Callable[[], Any]
Check = Callable[[Row, Implementation], tuple[Row, Call]]


def measure(
    case: Case,
    implementations: Iterable[Implementation],
    device: jax.Device,
    *,
    options: Benchmark,
    peak: float,
    tell: Callable[[Row], None],
) -> list[Row]:
    """Return a row for each implementation; `tell` gets each as soon as it is checked.

    `peak` is the largest rate of matrix products in GFLOP/s.
    """
    check = checker(case, device)
    rows: dict[str, Row] = {}
    calls: dict[str, Call] = {}
    for each in implementations:
        row = Row(**case.names, implementation=each.name, status=TIMED)
        if each.missing:
            row = replace(row, status="not installed", message=each.library)
        elif reason := each.refusal(case, device.platform):
            row = replace(row, status="refused", message=reason)
        else:
            try:
                row, call = check(row, each)
            except Exception as error:  # others' code, and memory
                row = failed(row, error)
        if row.status == TIMED:
            calls[each.name] = call
        rows[each.name] = row
        tell(row)
    try:
        seconds = interleaved(list(calls.values()), options.seconds) if calls else ()
    except Exception as error:  # what could run once could not run again
        return list((rows | {name: failed(rows[name], error) for name in calls}).values())
    rows |= timed(rows, dict(zip(calls, seconds, strict=True)), case, options.baseline, peak)
    return list(rows.values())


@functools.cache
def framework(name: str, device: jax.Device) -> Framework:
    """Return what makes programs; PyTorch is imported when its first one is made."""
    if name == "jax":
        return JAX(device)
    from experiments.benchmark.torch_programs import PyTorch

    return PyTorch(device.platform)


def checker(case: Case, device: jax.Device) -> Check:
    """Return the check of a case's implementations, which share its inputs and the reference.

    The check makes the program, runs it once and compares the results with the reference. It
    returns the row so far, and the call to time.
    """
    inputs, sample = draw(case), sample_rows(case)
    seeded = seeded_at(case, inputs, sample)
    expected = reference.expected(case, seeded, sample)
    most = reference.tolerance(case.dtype, device.platform)

    @functools.cache
    def placed(on: Framework) -> tuple[Inputs, Inputs]:
        """The arguments to time and those to check, on the device once for all programs."""
        to_time = to_check = on.place(inputs)
        if seeded is not inputs:  # only a gradient's cotangent differs
            to_check = on.place(seeded)._replace(operands=to_time.operands)
        return to_time, to_check

    def check(row: Row, implementation: Implementation) -> tuple[Row, Call]:
        on = framework(implementation.framework, device)
        to_time, to_check = placed(on)
        program = on.program(implementation, case, to_time)
        available = on.available()
        if available is not None and program.needed > available:
            raise memory.OutOfMemory(program.needed)
        begin = time.perf_counter()
        results = program.call(to_check)
        first_call = time.perf_counter() - begin
        error = reference.error(case, on.read(results, case), expected, sample)
        del results
        compiles = implementation.compiles_at_first_call
        row = replace(
            row,
            error=error,
            tolerance=most,
            lower_seconds=program.lower_seconds,
            compile_seconds=first_call if compiles else program.compile_seconds,
            memory=program.memory(to_time),
        )
        if not error <= most:  # NaN is wrong too
            row = replace(row, status="wrong", message=f"error {error:.1e}, at most {most:.0e}")
        return row, functools.partial(program.call, to_time)

    return check


def failed(row: Row, error: Exception) -> Row:
    """Return the row of an implementation that raised."""
    message = (str(error).splitlines() or [""])[0]
    names_it = isinstance(error, ValueError) and "implementation" in message
    if memory.is_exhausted(error):
        return replace(row, status="out of memory", message=message)
    if names_it or isinstance(error, NotImplementedError):
        return replace(row, status="refused", message=message)
    return replace(row, status="failed", message=f"{type(error).__name__}: {message}")


def timed(
    rows: Mapping[str, Row],
    seconds: Mapping[str, np.ndarray],
    case: Case,
    baseline: str,
    peak: float,
) -> dict[str, Row]:
    """Return the rows with their seconds, [rounds], and the baseline's over their own by round."""
    names = (name for name in (baseline, FALLBACK_BASELINE) if name in seconds)
    baseline, flop, found = next(names, None), case.flop, {}
    for name, own in seconds.items():
        median, quartiles = spread(own)
        row = replace(
            rows[name],
            run_seconds=median,
            run_quartiles=quartiles,
            rounds=len(own),
            flop=flop,
            least_bytes=case.least_bytes,
            gflop_per_second=flop / median / 1e9,
            fraction_of_matmul=flop / median / 1e9 / peak,
        )
        if baseline is not None:
            ratio, quartiles = spread(seconds[baseline] / own)
            row = replace(row, baseline=baseline, ratio=ratio, ratio_quartiles=quartiles)
        found[name] = row
    return found


def spread(values: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Return the median and the quartiles."""
    first, median, third = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return median, (first, third)
