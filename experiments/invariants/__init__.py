"""Which implementations obey the invariants of attention: ours and the ones people use.

    python -m experiments invariants            all that is installed, three minutes
    python -m experiments invariants --smoke    a few of each, seconds

Expected: no ✗ in ours (the exit code is 1 if there is one; others' do not count).

Each implementation is called as its documentation, or where that is silent its common use, says:

- `jax.nn.softmax` takes `where`, and documents a weight of zero for what is masked out.
- `optax.projections.projection_simplex` takes one vector and no mask: mapped over rows;
  it promises no dtype (float16 gives float32).
- PyTorch's softmax and the entmax package take no mask; their users fill masked scores with -inf.
  The entmax package documents no `torch.vmap`.
- `jax.nn.dot_product_attention` and Flax's want values as wide as keys. Boolean masks everywhere.
- Ours: a softmax with a sink and a sigmoid do not sum to one, and promise nothing that follows from
  it: shift invariance, the temperature limits, the hull. Weights have the accumulation dtype.
- All in float32 and half precision, JAX as it comes (float64 off).

What nobody's documentation says, that a masked NaN does not show or that an empty row has gradient
0, is asked of all: these are the cases on which models break.
"""

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.harness.errors import UserError
from experiments.harness.options import Options, Positive
from experiments.harness.runs import Output, start

OURS = "attn_jax"
SYMBOLS = {"holds": "✓", "fails": "✗", "not promised": "–", "not applicable": "–"}
NO_SUM = frozenset(
    {"sums-to-one", "shift-invariant", "low-temperature", "high-temperature", "jacobian-shift"}
)
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


@dataclass(frozen=True, eq=False)
class Implementation:
    """One column: whose function it is, what it is called, how it is made, what it promises."""

    code: str
    library: str
    name: str
    make: Callable[[], Callable[..., Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    smoke: bool = False

    @property
    def missing(self) -> bool:
        """Whether the library is not installed."""
        return importlib.util.find_spec(self.library) is None


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
        "normalizer": (normalizers(), testing.NORMALIZER_INVARIANTS, testing.examine_normalizer),
        "attention": (attentions(), testing.ATTENTION_INVARIANTS, testing.examine_attention),
    }
    metrics: dict[str, Any] = {"missing": {}, "results": []}
    shown = []
    for kind, (columns, table, examine) in kinds.items():
        columns = [each for each in columns if each.smoke or not options.smoke]
        rows = [each for each in table if not options.smoke or each.name in SMOKE[kind]]
        rows = [each for each in rows if each.name != "reference"]
        reports = {}
        for column in columns:
            if column.missing:
                metrics["missing"].setdefault(column.library, []).append(column.name)
                continue
            print(f"{kind}: {column.library} {column.name} …", flush=True)
            reports[column] = examine(
                column.make(),
                only=[each.name for each in rows],
                examples=5 if options.smoke else options.examples,
                **column.options,
            )
            metrics["results"] += records(kind, column, reports[column])
            output.write_metrics(metrics)  # what is done stays, whatever comes
        shown.append((kind, rows, reports))
    for kind, rows, reports in shown:
        print_reports(kind, rows, reports)
    for library, names in metrics["missing"].items():
        print(f"not installed: {library} ({', '.join(names)}): pip install '.[peers]'")
    print(f"\nresults in {output.directory}/")
    ours = {each["name"] for each in metrics["results"] if broken_by_us(each)}
    if ours:
        print(f"attn_jax breaks an invariant: {', '.join(sorted(ours))}")
        raise SystemExit(1)


def broken_by_us(record: Mapping[str, Any]) -> bool:
    """Say whether a row of metrics.json is a failure of attn_jax."""
    return record["library"] == OURS and record["status"] == "fails"


def records(kind: str, column: Implementation, report: Any) -> list[dict[str, Any]]:
    """Return the rows of metrics.json of one implementation."""
    return [
        {
            "kind": kind,
            "library": column.library,
            "name": column.name,
            "invariant": each.invariant,
            "statement": each.statement,
            "status": each.status,
            "message": each.message,
            "input": each.input,
            "output": each.output,
        }
        for each in report.results
    ]


def print_reports(kind: str, rows: Sequence[Any], reports: Mapping[Implementation, Any]) -> None:
    """Print one table, its legend, and each failure."""
    from experiments.harness import tables

    print(f"\n{kind}: ✓ holds, ✗ fails, – not promised or not applicable\n")
    tables.print_table(
        [
            {"invariant": row.name}
            | {column.code: SYMBOLS[each[row.name].status] for column, each in reports.items()}
            for row in rows
        ],
    )
    print()
    for column in reports:
        print(f"  {column.code:3} {column.library}: {column.name}")
    for column, report in reports.items():
        for each in report.failures:
            print(f"\n{column.library} {column.name}\n{each}")
    print()


def written(slot: Any) -> str:
    """Return how a slot is written, without what it leaves out."""
    return repr(slot).replace("sink=None", "").replace("bias=0.0", "")


def normalizers() -> list[Implementation]:
    """Return the columns of the first table."""
    import attn_jax

    def ours(code: str, slot: Any, **options: Any) -> Implementation:
        options = {"output_dtype": "accumulation", "framework": "jax", **options}
        return Implementation(code, OURS, written(slot), lambda: slot, options, code == "So")

    return [
        ours("So", attn_jax.Softmax()),
        ours("Si", attn_jax.Softmax(sink=0.0), skip=NO_SUM),
        ours("Sp", attn_jax.Sparsemax()),
        ours("E1", attn_jax.Entmax(1.5)),
        ours("E3", attn_jax.Entmax(3.0)),
        ours("Sg", attn_jax.Sigmoid(), skip=NO_SUM),
        Implementation("jx", "jax", "nn.softmax", _jax_softmax, {"framework": "jax"}, smoke=True),
        Implementation(
            "op",
            "optax",
            "projections.projection_simplex",
            _optax_simplex,
            {
                "framework": "jax",
                "supports_mask": False,
                "skip": "all-minus-infinity",
                "output_dtype": None,
            },
        ),
        Implementation("to", "torch", "softmax", _torch_softmax, {"framework": "torch"}),
        *(
            Implementation(
                code,
                "entmax",
                name,
                functools.partial(_entmax, name),
                {"framework": "torch", "skip": "vmap-equals-loop"},
            )
            for code, name in (("es", "sparsemax"), ("e1", "entmax15"), ("eb", "entmax_bisect"))
        ),
    ]


def attentions() -> list[Implementation]:
    """Return the columns of the second table."""
    import attn_jax

    def ours(code: str, slot: Any, **options: Any) -> Implementation:
        return Implementation(
            code,
            OURS,
            f"attention with {written(slot)}",
            lambda: functools.partial(_attention, slot),
            {"framework": "jax", **options},
            code == "So",
        )

    no_sum = {"skip": ("convex-hull", "sums-to-one")}
    narrow = {"framework": "jax", "layout": "BTNH", "value_features": 2}
    return [
        ours("So", attn_jax.Softmax()),
        ours("Si", attn_jax.Softmax(sink=0.0), **no_sum),
        ours("Sp", attn_jax.Sparsemax()),
        ours("E1", attn_jax.Entmax(1.5)),
        ours("E3", attn_jax.Entmax(3.0)),
        ours("Sg", attn_jax.Sigmoid(), **no_sum),
        Implementation(
            "dp",
            OURS,
            "dot_product_attention",
            lambda: attn_jax.dot_product_attention,
            {
                "framework": "jax",
                "layout": "BTNH",
                "causal": functools.partial(attn_jax.dot_product_attention, is_causal=True),
            },
        ),
        Implementation("jx", "jax", "nn.dot_product_attention", _jax_attention, narrow, smoke=True),
        Implementation("fx", "flax", "nnx.dot_product_attention", _flax_attention, narrow),
        Implementation(
            "to",
            "torch",
            "nn.functional.scaled_dot_product_attention",
            _torch_attention,
            {"framework": "torch", "layout": "BNTH"},
        ),
    ]


def _attention(normalizer: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    import attn_jax

    mask = None if mask is None else attn_jax.Dense(mask)
    return attn_jax.attention(query, key, value, normalizer=normalizer, mask=mask)


def _jax_softmax() -> Callable[..., Any]:
    import jax

    return jax.nn.softmax


def _optax_simplex() -> Callable[..., Any]:
    import jax.numpy as jnp
    import optax

    return jnp.vectorize(optax.projections.projection_simplex, signature="(k)->(k)")


def _filled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a PyTorch normalizer with a mask, the way its users write it."""

    def normalizer(scores: Any, where: Any = None) -> Any:
        filled = scores if where is None else scores.masked_fill(~where, float("-inf"))
        return function(filled, dim=-1)

    return normalizer


def _torch_softmax() -> Callable[..., Any]:
    import torch

    return _filled(torch.softmax)


def _entmax(name: str) -> Callable[..., Any]:
    import entmax

    return _filled(getattr(entmax, name))


def _jax_attention() -> Callable[..., Any]:
    import jax

    return jax.nn.dot_product_attention


def _flax_attention() -> Callable[..., Any]:
    from flax import nnx

    return nnx.dot_product_attention


def _torch_attention() -> Callable[..., Any]:
    from torch.nn import functional

    def attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attention


COMMANDS = {"run": run}
