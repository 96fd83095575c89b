import csv
import json
import signal
from typing import get_args

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

from attn_jax import kernels, regression, training
from attn_jax.nn import NadarayaWatson
from experiments import cli
from experiments.data.curves import Curve
from experiments.harness import parts
from experiments.kernel_regression import KernelName, baselines, figures, methods
from experiments.kernel_regression.data import Problem
from tests.tolerance import assert_close

METHODS = (
    "average pooling",
    "max pooling",
    "linear layer",
    "fixed bandwidth",
    "learned bandwidth",
    "searched bandwidth",
    "entmax, α learned",
)


@pytest.fixture(autouse=True)
def _no_window(monkeypatch):
    """Pictures go to files: nothing asks for a window."""

    def refuse(*args, **options):
        raise AssertionError("a picture for the screen")

    for name in ("show", "figure", "subplots"):
        monkeypatch.setattr(plt, name, refuse)


def main(directory, *options):
    return cli.main(
        ["kernel-regression", "--smoke", "--output-dir", str(directory), *map(str, options)]
    )


def read(directory, name="default"):
    """The config, the rows of metrics and the columns of predictions of a run; its pictures."""
    run = directory / "kernel-regression" / name
    config = json.loads((run / "config.json").read_text("utf-8"))
    rows = json.loads((run / "metrics.json").read_text("utf-8"))["rows"]
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as file:
        names, *lines = csv.reader(file)
    columns = dict(zip(names, np.array(lines, float).T, strict=True))
    pictures = {path.stem: path.read_bytes() for path in (run / "figures").iterdir()}
    for picture in pictures.values():
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 5000
    return config, rows, columns, set(pictures)


def assert_rows(rows, sizes, error):
    """The documented keys, one row for each size and method, numbers that make sense."""
    keys = ["n", "method", "bandwidth", "alpha", "loo_error", error, "effective_neighbours"]
    assert [(row["n"], row["method"]) for row in rows] == [(n, m) for n in sizes for m in METHODS]
    for row in rows:
        assert list(row) == keys
        assert (row["bandwidth"] is None) == (row["method"] in METHODS[:3])
        assert (row["alpha"] is None) == (row["method"] != METHODS[-1])
        assert np.all(np.isfinite([row["loo_error"], row[error]]))
        assert 1 - 1e-9 <= row["effective_neighbours"] <= row["n"] + 1e-9
    for n in sizes:
        loo = {row["method"]: row["loo_error"] for row in rows if row["n"] == n}
        searched = loo["searched bandwidth"]
        assert searched <= loo["learned bandwidth"] + 1e-9
        assert loo["learned bandwidth"] <= loo["fixed bandwidth"]


def test_textbook(tmp_path, capsys):
    assert main(tmp_path, "--optimizer", "adam") == 0  # L-BFGS takes twice as long to compile
    config, rows, columns, pictures = read(tmp_path)
    assert config["experiment"] == "kernel-regression"
    assert config["options"]["kernel"] == "gaussian"
    assert pictures == {"fits", "weights", "training", "error_against_n"}
    assert_rows(rows, (20, 30), "test_error")
    assert list(columns) == ["n", "x", "y (truth)", *METHODS, "band low", "band high"]
    assert len(columns["n"]) == 2 * 50
    for row in rows:
        here = columns["n"] == row["n"]
        error = columns[row["method"]][here] - columns["y (truth)"][here]
        np.testing.assert_allclose(np.mean(error**2), row["test_error"], rtol=1e-9)
    assert np.all(columns["band low"] <= columns["searched bandwidth"])
    assert np.all(columns["searched bandwidth"] <= columns["band high"])
    printed = capsys.readouterr().out
    assert all(method in printed for method in METHODS)


def test_two_inputs_and_a_sample_of_left_out_rows(tmp_path, capsys):
    options = ("--data", "diabetes", "--x", "bmi", "s5", "--left-out-rows", 23)
    assert main(tmp_path, *options) == 0
    printed = capsys.readouterr().out
    assert "23 of 60 rows, a random sample, are left out one by one" in printed
    config, rows, columns, pictures = read(tmp_path)
    assert config["options"]["left_out_rows"] == 23
    assert config["options"]["curve"]["x"] == ["bmi", "s5"]
    assert pictures == {"fits_bmi_target", "fits_s5_target", "weights", "training"}
    assert_rows(rows, (60,), "r_squared")  # all of them are keys
    assert [np.shape(row["bandwidth"]) for row in rows[3:]] == [(2,)] * 4
    assert list(columns)[:3] == ["bmi", "s5", "target"]
    assert len(columns["bmi"]) == 23
    for row in rows:
        error = columns["target"] - columns[row["method"]]
        np.testing.assert_allclose(np.mean(error**2), row["loo_error"], rtol=1e-9)


# Large data


X = np.random.default_rng(1).normal(size=(19, 2)) + 7
Y = X @ np.array([[1.0, 0.3], [-2.0, 0.0]]) + np.random.default_rng(2).normal(size=(19, 2))
ROWS = np.array([3, 4, 11])


def flat(u):
    return 0 * u


@pytest.mark.parametrize("rows", [np.arange(19), ROWS], ids=["all", "some"])
def test_baselines_are_attention_by_a_flat_kernel(rows):
    for baseline, degree in [(baselines.average_pooling, 0), (baselines.linear_layer, 1)]:
        model = NadarayaWatson(kernel=flat, degree=degree)
        predict, left_out = baseline(X, Y, rows)
        assert_close(
            predict(X[:5] + 1), jax.jit(lambda query, model=model: model(query, X, Y))(X[:5] + 1)
        )
        assert_close(left_out, jax.jit(lambda model=model: model.leave_one_out(X, Y, rows=rows))())
    predict, left_out = baselines.max_pooling(X, Y, rows)
    assert_close(predict(X[:1]), Y.max(0)[None])
    for row, predicted in zip(rows, left_out, strict=True):
        assert_close(predicted, np.delete(Y, row, 0).max(0))


def test_linear_layer_without_the_only_row_that_gives_a_slope():
    x = np.column_stack([X[:, 0], np.arange(19) == 4])
    _, left_out = baselines.linear_layer(x, Y, ROWS)
    expected = baselines.linear_layer(np.delete(x[:, :1], 4, 0), np.delete(Y, 4, 0), ROWS)
    assert_close(left_out[1], expected[0](x[4:5, :1])[0])


def test_batches_of_left_out_rows_go_on_where_they_were():
    data = Curve("", X, Y, ("a", "b"), ("c", "d"), "")
    problem = Problem(data, None, 1.0, np.arange(0, 19, 2))
    batches = methods.batches(problem, on_batches=True, seed=3)
    given = [next(batches) for _ in range(3)]
    assert_close(given[2]["x"], X)
    assert {tuple(sorted(each["rows"])) for each in given} == {tuple(problem.rows)}
    again = iter(methods.batches(problem, on_batches=True, seed=3))
    again.set_state(json.loads(json.dumps(batches.get_state())))
    np.testing.assert_array_equal(next(again)["rows"], next(batches)["rows"])
    np.testing.assert_array_equal(next(iter(batches))["rows"], given[0]["rows"])
    whole = methods.batches(problem, on_batches=False, seed=3)
    np.testing.assert_array_equal(next(whole)["rows"], problem.rows)


def predict(model, query, x, y):
    return model(query, x, y), query[:, 0]


def test_a_function_in_parts_is_the_function(monkeypatch, capsys):
    monkeypatch.setattr(parts, "PAIRS", 4 * 19)
    monkeypatch.setattr(parts, "SECONDS", -1)  # whatever it takes shows its progress
    for bandwidth in (0.7, 1.1):
        model = NadarayaWatson(bandwidth)
        predicted, first = parts.in_parts(model, predict, X, Y)(X[:11] + 1)
        assert_close(predicted, model(X[:11] + 1, X, Y))
        np.testing.assert_array_equal(first, X[:11, 0] + 1)
        assert "step 3/3" in capsys.readouterr().out


# Interruptions


def once(function):
    """Call it the first time only."""
    results = []

    def call(*args, **options):
        if not results:
            results.append(function(*args, **options))
        return results[0]

    return call


@pytest.fixture
def table(tmp_path):
    """A person's file: 33 rows, three of them with a gap in a column that is used.

    30 are left, as many as the textbook's above: half of what these tests do is compiling.
    """
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 5, 33))
    columns = {"dose": x, "left": np.sin(x), "right": x**2 / 9, "unused": rng.normal(size=33)}
    cells = {name: [f"{v:.9g}" for v in column] for name, column in columns.items()}
    cells["dose"][3] = cells["left"][11] = cells["right"][17] = ""
    cells["unused"][23] = "NA"
    path = tmp_path / "mine.csv"
    lines = [",".join(cells), *(",".join(row) for row in zip(*cells.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_own_file_two_outputs_and_an_interruption(tmp_path, table, monkeypatch, capsys):
    """Rows with gaps are dropped; an interrupted run that goes on ends as if nothing had been."""
    options = ("--csv", table, "--x", "dose", "--y", "left", "right", "--optimizer", "adam")
    search = regression.search_bandwidth
    monkeypatch.setattr(regression, "search_bandwidth", once(search))  # the same in every run
    assert main(tmp_path, *options, "--name", "whole") == 0
    assert "3 of 33 rows dropped" in capsys.readouterr().out
    _, rows, columns, pictures = read(tmp_path, "whole")
    assert pictures == {"fits_dose_left", "fits_dose_right", "weights", "training"}
    assert_rows(rows, (30,), "r_squared")
    outputs = [
        [output, *(f"{output}: {each}" for each in (*METHODS, "band low", "band high"))]
        for output in ("left", "right")
    ]
    assert list(columns) == ["dose", *outputs[0], *outputs[1]]
    assert len(columns["dose"]) == 30
    for row in rows:
        errors = [columns[o] - columns[f"{o}: {row['method']}"] for o in ("left", "right")]
        np.testing.assert_allclose(np.mean(np.square(errors)), row["loo_error"], rtol=1e-9)

    # Ctrl-C at the second step of the second training
    fit, seen = training.fit, []

    def watch(row):
        seen.append(row["step"])
        if len(seen) == 7:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", lambda *args, **rest: fit(*args, on_row=watch, **rest))
        assert main(tmp_path, *options, "--name", "cut") == 130
    assert seen == [1, 2, 3, 4, 5, 1, 2]
    run = tmp_path / "kernel-regression" / "cut"
    assert not (run / "predictions.csv").exists()
    said = capsys.readouterr()
    assert "--resume" in said.out
    assert said.err.count("\n") == 1

    again = ("--name", "cut", "--resume")
    assert main(tmp_path, *options, *again, "--seed", 3) == 2
    assert "Changed: seed" in capsys.readouterr().err
    before = table.read_text("utf-8")
    table.write_text(before + "6,7,8,9\n", "utf-8")
    assert main(tmp_path, *options, *again) == 2
    assert "the data of the earlier run. Changed: data" in capsys.readouterr().err
    table.write_text(before, "utf-8")
    monkeypatch.setattr(figures, "draw", lambda results: ())
    monkeypatch.setattr(training, "fit", lambda *args, **rest: fit(*args, on_row=watch, **rest))
    seen.clear()
    assert main(tmp_path, *options, *again) == 0
    assert seen == [3, 4, 5]
    for name in ("metrics.json", "predictions.csv"):
        whole = tmp_path / "kernel-regression" / "whole" / name
        assert (run / name).read_text("utf-8") == whole.read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "engle"], "unknown data set 'engle'. Did you mean 'engel'?"),
        (["--data", "diabetes", "--x", "bmy"], "unknown column 'bmy'. Did you mean 'bmi'?"),
        (["--csv", "nowhere.csv", "--x", "a", "--y", "b"], "nowhere.csv"),
        (["--name", "a/b"], "--name must be 1 to 100"),
        (["--resume"], "--resume needs an earlier run."),
        (["--resume", "--name", "../b"], "--name must be 1 to 100"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_bad_options_are_said_in_one_line(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bandwidth", "0"], "--bandwidth must be positive and finite. Got 0.0."),
        (["--bandwidth", "nan"], "--bandwidth must be positive and finite. Got nan."),
        (["--steps", "1"], "--steps must be at least 2. Got 1."),
        (["--left-out-rows", "1"], "--left-out-rows must be at least 2. Got 1."),
        (["--learning-rate", "-1"], "--learning-rate must be positive and finite. Got -1.0."),
        (["--n", "1"], "--n must be at least 2. Got 1."),
        (["--seed", "-1"], "--seed must be at least 0 and finite. Got -1."),
        (["--kernel", "gausian"], "--kernel"),
        (["--degree", "2"], "--degree"),
        (["--steps", "x"], "--steps"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_bad_values_are_refused_at_once(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    error = " ".join(capsys.readouterr().err.split())  # the parser breaks lines
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_every_kernel_is_an_option():
    assert set(get_args(KernelName)) == set(kernels.BY_NAME)
