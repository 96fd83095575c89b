import collections
import io
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import normalizers, scores
from experiments import cli
from experiments.benchmark import (
    Benchmark,
    figures,
    jax_programs,
    measure,
    memory,
    reference,
    report,
    timing,
)
from experiments.benchmark import rows as rows_file
from experiments.benchmark.cases import (
    NORMALIZERS,
    RESULTS,
    SCORES,
    Case,
    draw,
    sample_rows,
    seeded_at,
)
from experiments.benchmark.implementations import IMPLEMENTATIONS, Implementation
from experiments.benchmark.jax_programs import JAX
from experiments.benchmark.rows import Row
from experiments.benchmark.session import require_same
from experiments.benchmark.shapes import FAMILIES, SHAPES, Shape, select
from experiments.harness.errors import UserError
from tests import oracles
from tests.tolerance import assert_close

SMALL = Shape(
    name="small",
    family="tests",
    source="prime sizes",
    queries=5,
    keys=7,
    features=3,
    value_features=2,
    batch=2,
    heads=4,
    key_heads=2,
    window=(3, 1),
)


# Shapes


def test_shapes_are_well_formed():
    for name, shape in SHAPES.items():
        sizes = (shape.queries, shape.keys, shape.features, shape.value_features, shape.batch)
        assert min(sizes) > 0, name
        assert shape.heads % shape.key_heads == 0, name
        assert shape.score in SCORES, name
        assert shape.normalizer in NORMALIZERS, name
        assert len(shape.source) > 10, name
        assert name == shape.name
        assert name in FAMILIES[shape.family]
        assert shape.family == "smoke" or name in FAMILIES["all"]


def test_shapes_of_the_papers():
    gpt2, llama = SHAPES["gpt2"], SHAPES["llama3-8b"]
    assert (gpt2.heads, gpt2.queries, gpt2.features, gpt2.causal) == (12, 1024, 64, True)
    assert (llama.heads, llama.key_heads, llama.features) == (32, 8, 128)
    assert (SHAPES["vit-b16"].queries, SHAPES["whisper-encoder"].queries) == (197, 1500)
    grid = select(["flash-attention-3"])
    assert len(grid) == 36
    for shape in grid:
        assert shape.batch * shape.queries == 16_384
        assert shape.heads * shape.features == 2048
    assert [shape.keys for shape in select(["growth"])] == [2**p for p in range(10, 17)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (3, 1), (0, 9), (1, 0)])
@pytest.mark.parametrize("queries", [5, 11])
def test_a_span_is_the_mask(queries, window, causal):
    shape = replace(SMALL, queries=queries, window=window, causal=causal)
    mask = oracles.Window(*(window or (None, None)))
    if causal:
        mask = mask & oracles.Causal()
    dense = mask.dense(queries, 7)
    for i in range(queries):
        first, end = shape.span(i)
        assert np.flatnonzero(dense[i]).tolist() == list(range(first, end))
    assert shape.pairs == dense.sum()


def test_operations_by_hand():
    causal = replace(SMALL, queries=3, keys=3, window=None, causal=True)  # 6 pairs, 2 × 4 heads
    case = Case(causal, "dot", "softmax", "float32", "forward")
    counts = {direction: replace(case, direction=direction).flop for direction in RESULTS}
    score, weighted_sum = 6 * 2 * 3, 6 * 2 * 2
    assert counts["forward"] == 8 * (score + weighted_sum)
    assert counts["gradient"] == 8 * (4 * score + 3 * weighted_sum)
    assert counts["jvp"] == 8 * 3 * (score + weighted_sum)
    assert replace(case, score="bilinear").flop == counts["forward"] + 8 * 3 * 2 * 3 * 3


# The reference

SCORE_ORACLES = {
    "scaled-dot": oracles.ScaledDot,
    "dot": oracles.Dot,
    "cosine": oracles.Cosine,
    "bilinear": oracles.Bilinear,
    "additive": oracles.Additive,
    "gaussian": oracles.Kernel,
}
NORMALIZER_ORACLES = {
    "softmax": oracles.Softmax,
    "softmax-sink": oracles.Softmax,
    "off-by-one": lambda: oracles.Softmax(0.0),
    "sparsemax": oracles.Sparsemax,
    "entmax15": lambda: oracles.Entmax(1.5),
    "entmax": oracles.Entmax,
    "sigmoid": oracles.Sigmoid,
}


def test_every_score_and_normalizer_of_the_library_is_there():
    names = {name.replace("-", "_") for name in SCORES}
    assert names == scores.BY_NAME.keys()
    assert NORMALIZERS.keys() == normalizers.BY_NAME.keys() | {"softmax-sink"}
    assert SCORES.keys() == reference.SCORES.keys() == SCORE_ORACLES.keys()
    assert NORMALIZERS.keys() == reference.NORMALIZERS.keys() == NORMALIZER_ORACLES.keys()


def oracle(case, inputs, rows):
    """The output [r, E] in these rows, by the loops of tests.oracles."""
    arrays = {name: np.float64(each) for name, each in inputs.parameters.items()}
    slots = {
        "score": SCORE_ORACLES[case.score](**{n: arrays[n] for n in SCORES[case.score]}),
        "normalizer": NORMALIZER_ORACLES[case.normalizer](
            **{n: arrays[n] for n in NORMALIZERS[case.normalizer]}
        ),
    }
    window, group = oracles.Window(*case.shape.window), case.shape.heads // case.shape.key_heads
    query, key, value = inputs.operands
    outputs = []
    for b, i, n in zip(*rows, strict=True):
        mask = oracles.Where(lambda _, j, i=i: window(i, j))
        one, keys = query[b, i : i + 1, n], (b, slice(None), n // group)
        outputs += [oracles.attention(one, key[keys], value[keys], mask=mask, **slots)]
    return np.concatenate(outputs)


@pytest.mark.parametrize(
    ("score", "normalizer"),
    [(score, "softmax") for score in SCORES]
    + [("scaled-dot", normalizer) for normalizer in NORMALIZERS if normalizer != "softmax"],
)
def test_the_reference_is_the_oracle_and_its_derivatives(score, normalizer):
    case = Case(SMALL, score, normalizer, "float64", "jvp")
    inputs, rows = draw(case), sample_rows(case, most=13)
    got = reference.expected(case, inputs, rows)
    assert_close(got["output"], oracle(case, inputs, rows), tolerance=1e-12)

    step = 1e-5
    above, below = (
        [each + sign * step * dot for each, dot in zip(inputs.operands, inputs.seed, strict=True)]
        for sign in (1, -1)
    )
    difference = oracle(case, inputs._replace(operands=above), rows)
    difference -= oracle(case, inputs._replace(operands=below), rows)
    assert_close(got["tangent"], difference / (2 * step), tolerance=1e-7)

    reverse = replace(case, direction="gradient")
    seeded = seeded_at(reverse, draw(reverse), rows)
    seeded = seeded._replace(operands=inputs.operands, parameters=inputs.parameters)
    gradients = reference.expected(reverse, seeded, rows)
    pulled = sum(np.sum(g * dot) for g, dot in zip(gradients.values(), inputs.seed, strict=True))
    assert_close(pulled, np.sum(seeded.seed[0][rows] * got["tangent"]), tolerance=1e-12)


def test_inputs_are_the_same_for_everyone():
    case = Case(SMALL, "additive", "entmax", "bfloat16", "gradient")
    first, second = draw(case), draw(case)
    assert {each.dtype.name for each in jax.tree.leaves(first)} == {"bfloat16"}
    jax.tree.map(np.testing.assert_array_equal, first, second)
    rows = sample_rows(case)
    assert len(set(zip(*map(list, rows), strict=True))) == 32
    cotangent = seeded_at(case, first, rows).seed[0]
    assert np.count_nonzero(cotangent.any(axis=-1)) == 32


# What is measured


def test_each_program_begins_a_round_in_turn():
    order = []
    calls = [lambda name=name: order.append(name) for name in "abc"]
    taken = timing.interleaved(calls, seconds=1e-9)
    assert taken.shape == (3, timing.FEWEST_ROUNDS)
    assert np.all(taken > 0)
    changes = [each for each, before in zip(order, [None, *order], strict=False) if each != before]
    assert "".join(changes) == "abc" + "abc" + "bca" + "cab"


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
def test_the_slope_is_that_of_the_larger_half(p):
    points = [(n, 1e-9 * n**p) for n in (2**i for i in range(10, 17))]
    assert report.slope(points) == pytest.approx(p)
    points[:3] = [(n, 1.0) for n, _ in points[:3]]  # an overhead that no size of interest feels
    assert report.slope(points[::-1]) == pytest.approx(p)
    assert report.slope([*points[:-1], (2**16, None)]) == pytest.approx(p)
    assert report.slope(points[:1]) is None


def test_memory_that_a_call_takes():
    grown = memory.resident_growth(lambda: np.ones(2**23))
    assert grown is None or 60 * 2**20 < grown < 80 * 2**20


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    files = [tmp_path / name for name in ("limit", "usage", "stat")]
    for file, text in zip(files, ("3000", "1000", "anon 7\ninactive_file 500\n"), strict=True):
        file.write_text(text)
    monkeypatch.setattr(memory, "CGROUPS", (tuple(map(str, files)),))
    assert memory.available_on_host() in (2500, None)
    files[0].write_text("max")
    assert memory.available_on_host() != 2500


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ValueError("implementation must be 'dense'. Got 'x'."), "refused: implementation must"),
        (NotImplementedError("no backward"), "refused: no backward"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), "out of memory (RESOURCE_EXHAU"),
        (memory.OutOfMemory(3 * 2**30), "out of memory (needs 3.0 GiB)"),
        (TypeError("a bug\nin lines"), "failed: TypeError: a bug"),
        (TypeError(), "failed: TypeError: "),
    ],
)
def test_what_is_raised_is_a_result(error, result):
    row = measure.failed(timed_row("growth-1024", "dense", 1.0), error)
    assert row.result.startswith(result)
    assert "\n" not in row.result


# Sessions


def main(directory, *options):
    """Run the benchmark on the smoke run's terms."""
    argv = ["benchmark", "--smoke", "--output-dir", str(directory), *options]
    with jax.numpy_rank_promotion("allow"):  # others' code
        return cli.main(argv)


def read(directory):
    """The metrics of a run, and its rows by direction and implementation."""
    run = directory / "benchmark" / "default"
    text = (run / "metrics.json").read_text("utf-8")
    metrics = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    return metrics, {(r["direction"], r["implementation"]): r for r in metrics["rows"]}


def enter(monkeypatch, name, make, **options):
    """Put an implementation into the table."""
    options = {"library": "jax", "framework": "jax"} | options
    monkeypatch.setitem(IMPLEMENTATIONS, name, Implementation(name, **options))
    monkeypatch.setitem(jax_programs.FUNCTIONS, name, make)


ONE = ("--shapes", "smoke-window", "--direction", "forward")


def test_smoke(tmp_path, capsys):
    directions = ("forward", "gradient")  # all three below
    options = ("--implementations", "dense", "jax.nn", "--direction", *directions)
    assert main(tmp_path, *options) == 0
    metrics, _ = read(tmp_path)
    assert metrics["device"]["platform"] == "cpu"
    assert metrics["device"]["cores"] > 0
    assert {"python", "jax", "attn_jax", "torch"} <= metrics["versions"].keys()
    assert metrics["date"].startswith("20")
    assert metrics["commit"] is None or len(metrics["commit"]) >= 40
    assert metrics["matmul_gflop_per_second"]["float32"] > 0
    assert [each["name"] for each in metrics["shapes"]] == list(FAMILIES["smoke"])
    assert len(metrics["rows"]) == 4 * 2 * 2
    numbers = (
        *("error", "tolerance", "lower_seconds", "compile_seconds", "run_seconds", "rounds"),
        *("flop", "least_bytes", "gflop_per_second", "fraction_of_matmul", "ratio"),
    )
    for row in metrics["rows"]:
        served = row["implementation"] == "dense" or row["score"] == "scaled-dot"
        assert row["status"] == ("timed" if served else "refused")
        if served:
            assert all(row[name] > 0 for name in numbers)
            assert row["error"] <= row["tolerance"]
            assert row["run_quartiles"][0] <= row["run_seconds"] <= row["run_quartiles"][1]
            assert row["memory"]["peak"] == row["memory"]["temporary"] + row["memory"]["outputs"]
            assert row["baseline"] == "dense"
    run = tmp_path / "benchmark" / "default"
    assert len((run / "rows.jsonl").read_text("utf-8").splitlines()) == 1 + 16
    pictures = {path.name for path in (run / "figures").iterdir()}
    assert pictures == {f"roofline_{direction}.png" for direction in directions}
    out = capsys.readouterr().out
    assert "jax.nn (forward, gradient): refused: no gaussian score" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_what_is_wrong_or_too_large_is_one_rows_result(tmp_path, monkeypatch, capsys):
    def unmasked(case):
        return lambda query, key, value, _: jax.nn.dot_product_attention(query, key, value)

    def hungry(case):
        def attend(query, key, value, parameters):
            x = jnp.arange(1000.0) + query.mean()
            return jnp.sort(x[:, None] * x[None, :])[0, 0] + query

        return attend

    enter(monkeypatch, "unmasked", unmasked)
    enter(monkeypatch, "nan", lambda case: lambda query, *others: query * jnp.nan)
    enter(monkeypatch, "hungry", hungry)
    monkeypatch.setattr(JAX, "available", lambda self: 10**6)
    names = ("unmasked", "jax.nn", "nan", "hungry", "dense")
    assert main(tmp_path, *ONE, "--implementations", *names) == 0
    _, rows = read(tmp_path)
    for name in ("unmasked", "nan"):
        assert rows["forward", name]["status"] == "wrong"
        assert rows["forward", name]["run_seconds"] is None
    assert rows["forward", "nan"]["error"] == "NaN"
    assert rows["forward", "hungry"]["status"] == "out of memory"
    assert rows["forward", "hungry"]["message"] == "needs 0.0 GiB"
    assert {rows["forward", name]["status"] for name in ("jax.nn", "dense")} == {"timed"}
    out = capsys.readouterr().out
    assert "unmasked (forward): wrong: error" in out
    assert "hungry (forward): out of memory (needs 0.0 GiB)" in out

    enter(monkeypatch, "unmasked", unmasked, library="attn_jax")
    assert main(tmp_path, *ONE, "--implementations", "unmasked") == 1
    assert (
        "attn_jax: smoke-window scaled-dot softmax float32 forward unmasked: wrong"
        in capsys.readouterr().out
    )


def test_an_interrupted_run_keeps_its_rows_and_resumes(tmp_path, monkeypatch, capsys):
    made, interrupts = collections.Counter(), iter([True])

    def make(case):
        made[case.direction] += 1
        if case.direction == "gradient" and next(interrupts, False):
            raise KeyboardInterrupt
        return jax_programs.FUNCTIONS["dense"](case)

    enter(monkeypatch, "counted", make)
    options = ("--shapes", "smoke-window", "--implementations", "counted")
    assert main(tmp_path, *options) == 130
    metrics, rows = read(tmp_path)
    assert rows.keys() == {("forward", "counted")}
    said = capsys.readouterr()
    assert "forward counted" in said.out
    assert "--resume" in said.out
    assert said.err == "interrupted: what is done is kept\n"

    assert main(tmp_path, *options, "--resume", "--dtype", "float64") == 2
    assert "Changed: dtype" in capsys.readouterr().err
    path = tmp_path / "benchmark" / "default" / "rows.jsonl"
    with path.open("a") as file:
        file.write('{"shape": "smoke-wi')  # the power went
    assert main(tmp_path, *options, "--resume") == 0
    resumed, rows = read(tmp_path)
    assert made == {"forward": 1, "gradient": 2, "jvp": 1}
    assert list(rows) == [(direction, "counted") for direction in RESULTS]
    assert resumed["rows"][0] == metrics["rows"][0]
    assert resumed["date"] == metrics["date"]


def test_rows_of_another_machine_are_not_mixed_in():
    before = {"device": {"kind": "a"}, "versions": {"jax": "1"}}
    require_same(before, before)
    with pytest.raises(UserError, match="--resume needs the same machine and versions"):
        require_same(before, before | {"versions": {"jax": "2"}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shapes", "gpt3"], "unknown shape 'gpt3'. Did you mean 'gpt2'?"),
        (["--implementations", "jaxnn"], "unknown implementation 'jaxnn'. Did you mean 'jax.nn'?"),
        (["--scores", "additve"], "unknown score 'additve'. Did you mean 'additive'?"),
        (["--normalizers", "softmx"], "unknown normalizer 'softmx'. Did you mean 'softmax'?"),
        (["--dtype", "float23"], "unknown dtype 'float23'. Did you mean 'float32'?"),
        (["--direction", "jvpp"], "unknown direction 'jvpp'. Did you mean 'jvp'?"),
        (["--baseline", "dence"], "unknown implementation 'dence'. Did you mean 'dense'?"),
        (["--device", "tpu"], "--device tpu needs one that JAX finds. Got cpu only."),
        (["--resume"], "--resume needs an earlier run."),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_bad_options_are_said_in_one_line(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("options", [["--seconds", "0"], ["--shapes"], ["--direction"]])
def test_bad_values_are_refused_at_once(options, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# What is shown


def timed_row(shape, implementation, seconds, peak=2**20):
    return Row(
        **Case(SHAPES[shape], "scaled-dot", "softmax", "float32", "forward").names,
        implementation=implementation,
        status="timed",
        run_seconds=seconds,
        run_quartiles=(seconds, seconds),
        flop=10**6,
        least_bytes=10**6,
        gflop_per_second=1e-3 / seconds,
        fraction_of_matmul=0.5,
        memory=memory.Memory(peak, "compiled", peak, 0, 0),
    )


@pytest.fixture
def sweep():
    """Streaming to the end, dense until its memory is too much."""
    rows = []
    for n in (2**p for p in range(10, 17)):
        rows.append(timed_row(f"growth-{n}", "streaming", 1e-9 * n**2, 100 * n))
        dense = timed_row(f"growth-{n}", "dense", 2e-9 * n**2, 8 * n**2)
        rows.append(dense if n < 30_000 else measure.failed(dense, memory.OutOfMemory(8 * n**2)))
    return [replace(row, run_seconds=None) if row.status != "timed" else row for row in rows]


def test_growth_is_reported(sweep, capsys):
    report.print_report(sweep)
    out = capsys.readouterr().out
    assert "dense (forward): out of memory (needs 32.0 GiB)" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if "…" in line}
    assert lines["streaming"][1:] == ["1024", "…", "65536", "n^2.00", "n^1.00"]
    assert lines["dense"][1:] == ["1024", "…", "16384", "n^2.00", "n^2.00"]


def test_pictures(sweep):
    machine = {"matmul_gflop_per_second": {"float32": 100.0}, "memory_gb_per_second": 10.0}
    drawn = dict(figures.draw(sweep, machine))
    assert drawn.keys() == {"growth_scaled-dot_softmax_float32_forward", "roofline_forward"}
    times, memories = drawn["growth_scaled-dot_softmax_float32_forward"].axes
    assert [each.get_text() for each in times.get_legend().get_texts()] == [
        "streaming: time ∝ n^2.00",
        "dense: time ∝ n^2.00",
    ]
    assert "streaming: memory ∝ n^1.00" in [
        each.get_text() for each in memories.get_legend().get_texts()
    ]
    assert (times.get_xscale(), times.get_yscale()) == ("log", "log")
    bars = drawn["roofline_forward"].axes[0].patches
    assert [bar.get_width() for bar in bars] == [50.0] * 12
    assert figures.attainable(sweep[0], machine) == pytest.approx(0.1)  # 1 FLOP a byte, 10 GB/s
    for figure in drawn.values():
        figure.savefig(io.BytesIO(), dpi=20)


def test_a_row_survives_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert rows_file.read(path) == (None, {})
    rows = [
        timed_row("gpt2", "dense", 1.0),
        replace(timed_row("gpt2", "jax.nn", 2.0), error=float("inf"), memory=None),
    ]
    rows_file.write(path, {"date": "today"}, rows[:1])
    rows_file.append(path, rows[1:])
    header, kept = rows_file.read(path)
    assert list(kept.values()) == rows
    assert header == {"date": "today"}
    rows_file.write(path)
    assert rows_file.read(path) == (None, {})


# PyTorch


@pytest.mark.parametrize("direction", ["forward", "gradient"])
@pytest.mark.parametrize(
    ("name", "shape", "normalizer"),
    [
        ("torch-sdpa", "smoke-heads", "softmax"),
        ("entmax", "smoke-heads", "sparsemax"),
        ("entmax", "smoke-window", "entmax15"),
        ("entmax", "smoke-window", "entmax"),
    ],
)
def test_torch_implementations_agree(name, shape, normalizer, direction):
    pytest.importorskip("torch")
    pytest.importorskip(IMPLEMENTATIONS[name].library)
    case = Case(SHAPES[shape], "scaled-dot", normalizer, "float32", direction)
    options, device = Benchmark(seconds=1e-3), jax.devices("cpu")[0]
    (row,) = measure.measure(
        case, [IMPLEMENTATIONS[name]], device, options=options, peak=1.0, tell=lambda row: None
    )
    assert row.result == "timed"


def test_open_models_are_measured(tmp_path, capsys):
    assert cli.main(["benchmark", "open-models", "--smoke", "--output-dir", str(tmp_path)]) == 0
    (metrics,) = tmp_path.rglob("metrics.json")
    rows = json.loads(metrics.read_text())["rows"]
    assert [row["family"] for row in rows] == ["gpt2", "llama"]
    assert all(row[f"{what}\nms"] > 0 for row in rows for what in ("forward", "token"))
