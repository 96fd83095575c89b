"""One session of the benchmark: plan, measure case by case, keep, show; and resume."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from experiments.benchmark import implementations, shapes
from experiments.benchmark.cases import Case, plan
from experiments.benchmark.measure import Contest, measure
from experiments.benchmark.options import Benchmark
from experiments.benchmark.programs import Framework
from experiments.benchmark.rows import TIMED, Journal, Row, require_same
from experiments.harness.runs import Run, compile_quickly, start

OURS = "attn_jax"
BUSY = 0.5  # processes that wanted to run in the last minute, on average


def run(options: Benchmark) -> None:
    """Measure every case; print, write and draw the results, of an interrupted run too."""
    if options.smoke:
        options = smaller(options)
    chosen = shapes.select(options.shapes)
    competitors = implementations.select(options.implementations, smoke=options.smoke)
    implementations.select((options.baseline,))
    cases = plan(
        chosen,
        scores=options.scores,
        normalizers=options.normalizers,
        dtypes=options.dtype,
        directions=options.direction,
    )
    device = jax_device(options)
    output = start("benchmark", options, options.output, resume=options.resume)
    journal = Journal(output.directory / "rows.jsonl")
    header = begin(journal, device, options)
    try:
        measure_all(cases, contest(competitors, device, header, options), journal)
    except KeyboardInterrupt:
        conclude(output, header, journal)
        print("interrupted: the same command with --resume goes on here")
        raise
    conclude(output, header, journal)
    missing = dict.fromkeys(each.library for each in competitors if each.missing)
    if missing:
        print(f"not installed: {', '.join(missing)}")
    broken = [row for row in journal.rows().values() if broken_by_us(row)]
    for row in broken:
        print(f"attn_jax: {' '.join(row.key)}: {row.result}")
    if broken:
        raise SystemExit(1)


def smaller(options: Benchmark) -> Benchmark:
    """Return the options of a run of seconds: tiny shapes, little time; LLVM optimizes nothing."""
    compile_quickly()
    default = options.shapes == Benchmark.shapes
    return replace(
        options,
        shapes=("smoke",) if default else options.shapes,
        seconds=min(options.seconds, 0.02),
    )


def jax_device(options: Benchmark) -> Any:
    """Set JAX up and return the device to run on."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs some of a GPU
    import jax

    from experiments.benchmark import machine

    if "float64" in options.dtype:
        jax.config.update("jax_enable_x64", True)
    return machine.find(options.device)


def begin(journal: Journal, device: Any, options: Benchmark) -> Mapping[str, Any]:
    """Return when, where and with what the run began; measure what the machine can do at best."""
    from experiments.benchmark import machine

    identity = machine.identity(device)
    before = journal.header() if options.resume else None
    if before is not None:
        require_same(before, identity)
        return before
    journal.discard()
    provenance = machine.provenance()
    if provenance["load_average"] > BUSY:
        load = f"load average {provenance['load_average']:.1f}"
        print(f"this machine is busy ({load}): times will be too long, and PyTorch's far too long")
    print("measuring what this machine can do at best …", flush=True)
    limits = machine.limits(device, options.dtype, smoke=options.smoke)
    header = {**provenance, **identity, **limits}
    journal.begin(header)
    return header


def contest(
    competitors: Sequence[implementations.Implementation],
    device: Any,
    header: Mapping[str, Any],
    options: Benchmark,
) -> Contest:
    """Return who competes where; a framework is imported when its first program is made."""

    @functools.cache
    def framework(name: str) -> Framework:
        if name == "jax":
            from experiments.benchmark.jax_programs import JAX

            return JAX(device)
        from experiments.benchmark.torch_programs import PyTorch

        return PyTorch(device.platform)

    return Contest(
        competitors,
        framework,
        device.platform,
        baseline=options.baseline,
        seconds=options.seconds,
        matmul_gflop_per_second=header["matmul_gflop_per_second"],
        by_name=bool(options.implementations),
    )


def measure_all(cases: Sequence[Case], contest: Contest, journal: Journal) -> None:
    """Measure the cases that the journal does not have yet, and append each when it is done."""
    known = journal.rows()
    for number, case in enumerate(cases, 1):
        names = tuple(case.names.values())
        entrants = [each.name for each in contest.entrants(case)]
        if all((*names, name) in known for name in entrants):
            continue
        print(f"[{number}/{len(cases)}] {case}", flush=True)
        journal.append(measure(case, contest, tell=progress))


def progress(row: Row) -> None:
    """Say that a program is ready, or why there is none."""
    error = "" if row.error is None else f", error {row.error:.0e}"
    said = f"ready{error}" if row.status == TIMED else row.result
    print(f"    {row.implementation}: {said}", flush=True)


def conclude(output: Run, header: Mapping[str, Any], journal: Journal) -> None:
    """Write metrics.json and the figures, and print the tables, of all rows that there are."""
    from experiments.benchmark import figures, report

    rows = list(journal.rows().values())
    names = dict.fromkeys(row.shape for row in rows)
    output.write_metrics(
        {**header, "shapes": [asdict(shapes.SHAPES[name]) for name in names], "rows": rows}
    )
    report.print_report(rows)
    for name, figure in figures.draw(rows, header):
        output.write_figure(name, figure)
    output.say_where()


def broken_by_us(row: Row) -> bool:
    """Say whether attn_jax gave a wrong result, or none for a reason that is not its own."""
    library = implementations.IMPLEMENTATIONS[row.implementation].library
    return row.status in ("wrong", "failed") and library == OURS
