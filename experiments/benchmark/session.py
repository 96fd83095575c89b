"""One run of the benchmark: measure case by case, keep each row, report; and resume."""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from experiments.benchmark import Benchmark, cases, figures, machine, report, rows, shapes
from experiments.benchmark.cases import Case
from experiments.benchmark.implementations import IMPLEMENTATIONS, Implementation, select
from experiments.benchmark.measure import measure
from experiments.benchmark.rows import TIMED, Row
from experiments.harness import files, runs
from experiments.harness.errors import UserError, require_known

BUSY = 0.5  # processes that wanted to run in the last minute, on average


def run(options: Benchmark) -> None:
    """Measure every case; print, write and draw the results, of an interrupted run too."""
    chosen, planned = select(options.implementations, smoke=options.smoke), plan(options)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs some of a GPU
    if "float64" in options.dtype:
        jax.config.update("jax_enable_x64", True)
    device = machine.find(options.device)
    output = runs.start("benchmark", options, options.output, resume=options.resume)
    path = output.directory / "rows.jsonl"
    begin(path, device, options)
    try:
        measure_all(planned, chosen, path, device, options)
    except KeyboardInterrupt:
        conclude(output, path)
        print("interrupted: the same command with --resume goes on here")
        raise
    conclude(output, path)
    missing = dict.fromkeys(each.library for each in chosen if each.missing)
    if missing:
        print(f"not installed: {', '.join(missing)}")
    broken = [row for row in rows.read(path)[1].values() if broken_by_us(row)]
    for row in broken:
        print(f"attn_jax: {' '.join(row.key)}: {row.result}")
    if broken:
        raise SystemExit(1)


def plan(options: Benchmark) -> list[Case]:
    """Return every combination; without scores or normalizers each shape's own."""
    require_known("implementation", [options.baseline], IMPLEMENTATIONS)
    require_known("score", options.scores, cases.SCORES)
    require_known("normalizer", options.normalizers, cases.NORMALIZERS)
    require_known("dtype", options.dtype, cases.DTYPES)
    require_known("direction", options.direction, cases.RESULTS)
    return [
        Case(shape, *names)
        for shape in shapes.select(options.shapes)
        for names in itertools.product(
            options.scores or (shape.score,),
            options.normalizers or (shape.normalizer,),
            options.dtype,
            options.direction,
        )
    ]


def begin(path: Path, device: jax.Device, options: Benchmark) -> None:
    """Write when, where and with what a run begins, and what the machine can do at best."""
    identity = machine.identity(device)
    header, known = rows.read(path) if options.resume else (None, {})
    if header is not None:
        require_same(header, identity)
        rows.write(path, header, known.values())  # without an incomplete line
        return
    rows.write(path)
    provenance = machine.provenance()
    if provenance["load_average"] > BUSY:
        load = f"load average {provenance['load_average']:.1f}"
        print(f"this machine is busy ({load}): times will be too long, and PyTorch's far too long")
    print("measuring what this machine can do at best …", flush=True)
    limits = machine.limits(device, options.dtype, smoke=options.smoke)
    rows.write(path, {**provenance, **identity, **limits})


def require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with rows of another machine, or of other versions."""
    now = json.loads(files.to_json(now))
    changed = [f"{n}: {before[n]} → {now[n]}" for n in now if before[n] != now[n]]
    if changed:
        raise UserError(f"--resume needs the same machine and versions. Changed: {changed[0]}.")


def measure_all(
    planned: Sequence[Case],
    chosen: Sequence[Implementation],
    path: Path,
    device: jax.Device,
    options: Benchmark,
) -> None:
    """Measure the cases whose rows the file does not have yet, and append each when it is done."""
    header, known = rows.read(path)
    for number, case in enumerate(planned, 1):
        serving = [
            each
            for each in chosen
            if options.implementations  # named: a row says why there is no time
            or not (each.missing or each.refusal(case, device.platform))
        ]
        if all((*case.names.values(), each.name) in known for each in serving):
            continue
        print(f"[{number}/{len(planned)}] {case}", flush=True)
        peak = header["matmul_gflop_per_second"][case.dtype]
        rows.append(path, measure(case, serving, device, options=options, peak=peak, tell=progress))


def progress(row: Row) -> None:
    """Print that a program is ready, or why there is none."""
    error = "" if row.error is None else f", error {row.error:.0e}"
    result = f"ready{error}" if row.status == TIMED else row.result
    print(f"    {row.implementation}: {result}", flush=True)


def conclude(output: runs.Run, path: Path) -> None:
    """Write metrics.json and the figures, and print the tables, of all rows that there are."""
    header, known = rows.read(path)
    found = list(known.values())
    used = [asdict(shapes.SHAPES[name]) for name in dict.fromkeys(row.shape for row in found)]
    output.write_metrics({**header, "shapes": used, "rows": found})
    report.print_report(found)
    for name, figure in figures.draw(found, header):
        output.write_figure(name, figure)
    output.say_where()


def broken_by_us(row: Row) -> bool:
    """Say whether attn_jax gave a wrong result, or none for a reason that is not its own."""
    return row.status in ("wrong", "failed") and IMPLEMENTATIONS[row.implementation].ours
