"""Which implementations obey the invariants of attention: ours and the ones people use.

    python -m experiments invariants            all that is installed, three minutes
    python -m experiments invariants --smoke    a few of each, seconds

Expected: no ✗ in ours (the exit code is 1 if there is one; others' do not count).

Each implementation is called as its documentation, or where that is silent its common use, says.
All in float32 and half precision, JAX as it comes (float64 off). What nobody's documentation says,
that a masked NaN does not show or that an empty row has gradient 0, is tested of all: these are the
cases on which models break.
"""

from dataclasses import dataclass, field
from typing import Any

from experiments.harness.errors import UserError
from experiments.harness.options import Options, Positive
from experiments.harness.runs import Output, start

SMOKE = {
    "normalizer": ("sums-to-one", "large-scores", "masked-deleted", "empty-row"),
    "attention": ("convex-hull", "large-scores", "masked-deleted", "empty-row"),
}


@dataclass(frozen=True)
class Invariants(Options):
    """Test implementations of attention, ours and others', by their invariants.

    Prints a table and the smallest input of each failure, and writes config.json and metrics.json.
    """

    output: Output = field(default_factory=Output)
    examples: Positive[int] = 50
    """Inputs per invariant and implementation."""
    smoke: bool = False
    """A tiny run that takes seconds: softmax only, four invariants."""


def run(options: Invariants) -> None:
    """Examine every implementation; print, write, and fail if ours fails."""
    try:
        from attn_jax import testing
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise UserError("this experiment needs hypothesis: pip install '.[test]'") from error
    from experiments.invariants import attentions, normalizers, report

    output = start("invariants", options, options.output)
    kinds = {
        "normalizer": (
            normalizers.COLUMNS, testing.NORMALIZER_INVARIANTS, testing.examine_normalizer
        ),
        "attention": (attentions.COLUMNS, testing.ATTENTION_INVARIANTS, testing.examine_attention),
    }  # fmt: skip
    metrics: dict[str, Any] = {"missing": {}, "results": []}
    tables, broken = [], set()
    for kind, (columns, invariants, examine) in kinds.items():
        chosen = SMOKE[kind] if options.smoke else [each.name for each in invariants]
        names = [each.name for each in invariants if each.name in chosen]
        names = [name for name in names if name != "reference"]
        reports = {}
        for column in columns:
            if options.smoke and not column.smoke:
                continue
            if column.missing:
                metrics["missing"].setdefault(column.library, []).append(column.name)
                continue
            print(f"{kind}: {column.library} {column.name} …", flush=True)
            examples = 5 if options.smoke else options.examples
            found = examine(column.make(), only=names, examples=examples, **column.options)
            reports[column] = found
            if column.ours and found.failures:
                broken.add(column.name)
            metrics["results"] += report.records(kind, column, found)
            output.write_metrics(metrics)  # what is done stays, whatever comes
        tables.append((kind, names, reports))
    for table in tables:
        report.print_table(*table)
    for library, names in metrics["missing"].items():
        print(f"not installed: {library} ({', '.join(names)}): pip install '.[peers]'")
    print(f"\nresults in {output.directory}/")
    if broken:
        print(f"attn_jax breaks an invariant: {', '.join(sorted(broken))}")
        raise SystemExit(1)


COMMANDS = {"run": run}
