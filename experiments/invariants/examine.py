"""Every implementation against every invariant; the exit code tells whether ours hold."""

from typing import Any

from experiments.harness.errors import UserError
from experiments.harness.runs import start
from experiments.invariants import Invariants, attentions, normalizers, report

SMOKE = {
    "normalizer": ("sums-to-one", "large-scores", "masked-deleted", "empty-row"),
    "attention": ("convex-hull", "large-scores", "masked-deleted", "empty-row"),
}


def run(options: Invariants) -> None:
    """Examine every implementation; print, write, and fail if ours fails."""
    try:
        from attn_jax import testing
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise UserError("this experiment needs hypothesis: pip install '.[test]'") from error
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
