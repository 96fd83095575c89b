"""Each target's programs compiled in a process of its own; the table, and metrics.json."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from experiments.compile import NAME, Compile
from experiments.compile.targets import TARGETS, Target, install
from experiments.harness import tables
from experiments.harness.files import plain
from experiments.harness.runs import start


def compile_all(options: Compile) -> None:
    """Compile for each target; what is done stays in metrics.json, whatever comes."""
    if options.install:
        install()
    output = start(NAME, options, options.output)
    rows: list[dict[str, Any]] = []
    skipped = {}
    for name in options.targets:
        target = TARGETS[name]
        if target.missing is not None:
            skipped[name] = target.missing
            print(f"{name}: left out, {target.missing}")
            continue
        began = time.perf_counter()
        for row in compiled(name, target, plain(options)):
            rows.append({"target": name} | row)
            output.update_metrics({"programs": rows, "skipped": skipped})
            said = row.get("error") or f"{row['compile_seconds']:.1f} s"
            which = f"{row['program']} {row['implementation']} {row['direction']}"
            print(
                f"  {time.perf_counter() - began:5.0f} s  {name}  {which}: {said[:80]}", flush=True
            )
    output.update_metrics({"programs": rows, "skipped": skipped})
    for name in dict.fromkeys(row["target"] for row in rows):
        print(f"\n{name}: compiled, not run")
        own = [row for row in rows if row["target"] == name]
        tables.print_table([readable(row, options) for row in own if "error" not in row])
        for row in own:
            if "error" in row:
                print(f"{row['program']} {row['direction']}: {row['error']}")
    print(f"\nresults in  {output.directory}/")


def compiled(name: str, target: Target, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each program, from a process that compiles for this target."""
    command = [sys.executable, "-m", "experiments.compile.child", name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=target.environment, **pipes) as process:
        try:
            process.stdin.write(json.dumps(options))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            last = process.stderr.read().strip().splitlines()[-3:]
        finally:
            process.terminate()
    if process.returncode:
        yield {
            "program": "the compiler",
            "implementation": "",
            "direction": "",
            "error": f"ended with {process.returncode}: {' '.join(last)}",
        }


def readable(row: dict[str, Any], options: Compile) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""

    def mebibytes(name: str) -> float | None:
        return None if row[name] is None else row[name] / 2**20

    pairs = options.length**2
    member = row["direction"] != "training step"
    return {
        "program": row["program"],
        "": f"{row['implementation']} {row['direction']}",
        "compile\ns": row["compile_seconds"],
        "code\nKiB": round(row["code"] / 2**10),
        "temporary\nMiB": mebibytes("temporaries"),
        "moved\nMiB": mebibytes("bytes"),
        "largest array\nof pairs": row["largest_array"] / pairs if member else None,
    }
