import csv
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from attn_jax.training.interrupt import Interrupt
from attn_jax.training.lock import Lock
from experiments import cli
from experiments.harness import files, runs, tables
from experiments.harness.commands import Command, RunOptions
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive, Rate, Share, at_least
from experiments.harness.runs import Output


@dataclass(frozen=True)
class Doubling(RunOptions):
    """Double a number."""

    number: NonNegative[float] = 1.0
    """The number."""
    fail: str = ""
    """How to fail."""


def run_doubling(options: Doubling):
    if options.fail == "bug":
        raise ValueError("a bug")
    if options.fail == "user":
        raise UserError("asked for too much")
    run = runs.start("doubling", options, options.output)
    if options.fail == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "figures/loss.png")
    if options.fail == "terminated":
        signal.raise_signal(signal.SIGTERM)
    if options.fail == "terminated in a training":
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            assert interrupt.requested
    run.write_metrics({"double": 2 * options.number})


@pytest.fixture
def doubling(monkeypatch):
    """An experiment of one file and one row."""
    module = type(sys)("experiments.doubling")
    module.COMMANDS = {"run": Command(Doubling, "doubling.double")}
    module.double = run_doubling
    monkeypatch.setitem(sys.modules, "experiments.doubling", module)
    row = cli.Experiment("doubling", "Double a number.")
    monkeypatch.setattr(cli, "EXPERIMENTS", (*cli.EXPERIMENTS, row))


# The command line


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_lists_experiments(argv, capsys):
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert all(each.name in out and each.summary in out for each in cli.EXPERIMENTS)


@pytest.mark.parametrize("experiment", cli.EXPERIMENTS, ids=lambda each: each.name)
def test_every_experiment_has_help(experiment, capsys):
    assert cli.main([experiment.name, "--help"]) == 0
    assert f"python -m experiments {experiment.name}" in capsys.readouterr().out


def test_unknown_experiment(capsys):
    assert cli.main(["kernel-regresion"]) == 2
    error = capsys.readouterr().err
    assert "unknown experiment 'kernel-regresion'. Did you mean 'kernel-regression'?" in error
    assert error.count("\n") == 1


def test_runs_an_experiment(doubling, tmp_path):
    assert (
        cli.main(["doubling", "--number", "4", "--output-dir", str(tmp_path), "--name", "a"]) == 0
    )
    directory = tmp_path / "doubling" / "a"
    assert json.loads((directory / "metrics.json").read_text()) == {"double": 8}
    config = json.loads((directory / "config.json").read_text())
    assert config["options"]["number"] == 4
    assert config["options"]["output"] == {"name": "a", "output_dir": str(tmp_path)}
    assert set(config["versions"]) == {"python", "attn_jax", "jax", "flax", "numpy"}
    assert config["devices"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nmber", "3"], "--nmber"),
        (["--number", "three"], "three"),
        (["--number", "-1"], "--number must be at least 0 and finite. Got -1.0."),
        (["--fail", "user"], "error: asked for too much"),
        (["--name", "a/b"], "--name must be"),
    ],
)
def test_mistakes_are_said_without_a_traceback(options, message, doubling, capsys):
    assert cli.main(["doubling", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("how", ["terminated", "terminated in a training"])
def test_sigterm_is_said_by_the_exit_code(how, doubling, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["doubling", "--fail", how, "--output-dir", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "terminated: what is done is kept\n"
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "doubling" / "default" / "metrics.json").exists()


def test_a_full_disk_is_said_in_one_line(doubling, tmp_path, capsys):
    assert cli.main(["doubling", "--fail", "disk", "--output-dir", str(tmp_path)]) == 2
    told = "error: cannot write figures/loss.png: No space left on device.\n"
    assert capsys.readouterr().err == told


def test_a_second_run_of_a_name_under_way_is_refused_and_the_first_left_alone(
    doubling, tmp_path, capsys
):
    argv = ["doubling", "--output-dir", str(tmp_path)]
    assert cli.main(argv) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert len(before) == 2
    with Lock(tmp_path / "doubling" / ".default.lock"):
        assert cli.main([*argv, "--number", "3"]) == 2
        error = capsys.readouterr().err
        assert f"is being written by another run: process {os.getpid()} on" in error
        assert error.count("\n") == 1
        assert cli.main([*argv, "--name", "other"]) == 0
        assert all(path.read_bytes() == content for path, content in before.items())
    assert cli.main([*argv, "--number", "3"]) == 0
    assert sorted(os.listdir(tmp_path / "doubling")) == ["default", "other"]


def test_bugs_keep_their_traceback(doubling):
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["doubling", "--fail", "bug"])


def test_listing_and_help_load_nothing_heavy():
    heavy = {"jax", "matplotlib", "pandas", "sklearn", "statsmodels"}
    code = (
        "import sys; from experiments.cli import main\n"
        "main([]); main(['kernel-regression', '--help']); main(['nothing'])\n"
        f"sys.exit(bool({heavy!r} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_module_runs():
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "nothing"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown experiment 'nothing'")


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
def test_streams_that_are_closed_or_full_are_no_traceback():
    """A file that is opened must not get the number of a closed stream, and what is printed."""
    code = (
        "import runpy, sys; sys.argv[1:] = ['--help']\n"
        "try: runpy.run_module('experiments', run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print('nowhere', flush=True); sys.stdin.read()\n"
        "sys.exit(41 if open('pyproject.toml').fileno() > 2 else 1)"
    )
    closed = [sys.executable, "-c", code]
    shell = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *closed]
    assert subprocess.run(shell, cwd=ROOT).returncode == 41
    if Path("/dev/full").exists():
        shell = ["sh", "-c", '"$@" > /dev/full', "sh", sys.executable, "-m", "experiments"]
        done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (2, f"error: cannot write: {NO_SPACE}.\n")


NO_SPACE = os.strerror(errno.ENOSPC)
ROOT = Path(__file__).parent.parent


# A run's directory


@pytest.fixture
def run(tmp_path):
    return runs.start("doubling", Doubling(), Output("it", tmp_path))


def test_json_is_valid_without_finite_numbers(run):
    metrics = {"a": float("nan"), "b": [np.inf, -np.inf], "c": jnp.float32(0.5), "d": {"e": None}}
    text = run.write_metrics(metrics | {"f": np.array([1, 2])}).read_text()
    read = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert read == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": 0.5,
        "d": {"e": None},
        "f": [1, 2],
    }
    assert float(read["b"][1]) == -np.inf


def test_json_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="no JSON for set"):
        files.to_json({"a": {1}})


def test_predictions_keep_every_bit(run):
    y = np.random.default_rng(0).normal(size=5)
    columns = {
        "name, with comma": ["a", "b", "ü", "d", 'e"'],
        "y": y,
        "low": jnp.ones(5, jnp.bfloat16),
    }
    path = run.write_predictions(columns)
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(columns)
    assert [row[0] for row in rows] == columns["name, with comma"]
    np.testing.assert_array_equal([float(row[1]) for row in rows], y)


@pytest.mark.parametrize("columns", [{"a": [1], "b": [1, 2]}, {"a": [[1, 2]]}, {"a": 1}])
def test_predictions_refuse_uneven_columns(columns):
    with pytest.raises(ValueError, match="columns must be one-dimensional and equally long"):
        files.to_csv(columns)


def test_figures(run):
    from attn_jax import plots

    path = run.write_figure("loss", plots.learning_curve([0, 1], {"loss": [2, 1]}))
    assert path == run.directory / "figures" / "loss.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_second_run_of_the_name_replaces_the_first(run, tmp_path):
    run.write_metrics({})
    run.write_predictions({"x": [1]})
    for old in ("figures/old.png", "training/twin/1", "evaluation/metrics.json", "notes.txt"):
        (run.directory / old).parent.mkdir(parents=True, exist_ok=True)
        (run.directory / old).touch()
    runs.start("doubling", Doubling(), Output("it", tmp_path))
    left = {path.name for path in run.directory.rglob("*") if path.is_file()}
    assert left == {"config.json", "notes.txt"}


def test_a_resumed_run_has_the_same_options_and_data(tmp_path):
    output = Output("it", tmp_path)
    first = runs.start("doubling", Doubling(), output, checksums={"text": 7})
    (first.directory / "training").mkdir()
    runs.start("doubling", Doubling(), output, resume=True, checksums={"text": 7})
    for options, checksum, changed in ((Doubling(fail="bug"), 7, "fail"), (Doubling(), 8, "text")):
        with pytest.raises(UserError, match=f"of the earlier run. Changed: {changed}"):
            runs.start("doubling", options, output, resume=True, checksums={"text": checksum})
    assert (first.directory / "training").is_dir()
    (first.directory / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json cannot be read"):
        runs.start("doubling", Doubling(), output, resume=True)


def test_numbers_are_written_beside_others(run):
    run.update_metrics({"a": 1, "b": 2})
    run.update_metrics({"b": 3})
    assert json.loads((run.directory / "metrics.json").read_text()) == {"a": 1, "b": 3}


def test_an_interrupted_write_leaves_the_file_as_it_was(run):
    path = run.write_metrics({"loss": 1})

    def fail(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_with(path, fail)
    assert json.loads(path.read_text()) == {"loss": 1}
    assert sorted(each.name for each in run.directory.iterdir()) == [
        "config.json",
        "figures",
        "metrics.json",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", ".hidden", "a b", "a\n", "x" * 101])
def test_bad_names_are_refused(name, tmp_path):
    with pytest.raises(UserError, match="--name must be"):
        runs.start("doubling", Doubling(), Output(name, tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["runs [1]", "a\nb", "*", os.fsdecode(b"\xff")], ids=range(4))
def test_any_output_directory_that_the_file_system_takes(name, tmp_path):
    run = runs.start("doubling", Doubling(), Output("it", tmp_path / name))
    run.write_metrics({"double": 2})
    named = Doubling(output=Output("it", tmp_path / name))
    runs.start("doubling", named, Output("it", tmp_path), checksums={"text": 7})
    runs.end()
    assert runs.read_config(tmp_path / "doubling" / "it")["options"]["output"] == {
        "name": "it",
        "output_dir": str(tmp_path / name),
    }


def test_checkpoints_that_cannot_be_deleted_are_not_trained_on(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run.directory / "training").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write"):
        runs.start("doubling", Doubling(), Output("it", tmp_path))


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .* Choose another --output-dir"):
        runs.start("doubling", Doubling(), Output("it", tmp_path / "file"))


# Tables


def printed(rows, width=None, monkeypatch=None, **options):
    file = io.StringIO()
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    tables.print_table(rows, file=file, **options)
    return [text.rstrip() for text in file.getvalue().splitlines()]


def test_table_aligns_numbers():
    rows = [
        {"kernel": "gaussian", "n": 50, "mse": 0.123456, "note": "[bold] :smile:"},
        {"kernel": "boxcar", "n": 1600, "mse": np.float32(1.5)},
        {"kernel": "none", "n": None, "mse": float("nan")},
    ]
    lines = printed(rows, title="results")
    assert lines[0] == "results"
    body = [each for each in lines if each.startswith(("gaussian", "boxcar", "none"))]
    assert [each.split() for each in body] == [
        ["gaussian", "50", "0.1235", "[bold]", ":smile:"],
        ["boxcar", "1600", "1.5000", "-"],
        ["none", "-", "nan", "-"],
    ]
    ends = [each.index(text) + len(text) for each, text in zip(body, ["50", "1600"], strict=False)]
    assert len(set(ends)) == 1


def test_no_rows_are_no_table():
    assert printed([], title="results") == []


def test_table_wider_than_the_terminal_continues_below(monkeypatch):
    row = {"method": "learned"} | {f"column{i}": 1.2345678 for i in range(12)}
    lines = printed([row], 60, monkeypatch, title="wide")
    assert max(map(len, lines)) <= 60
    assert "\n".join(lines).count("1.235") == 12
    assert "wide (continued)" in lines


def test_table_without_terminal_is_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    row = {f"column{i}": 1.0 for i in range(12)}
    assert max(map(len, printed([row]))) <= 80


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, 20], ["1", "20"]),
        ([0.5, 12.25], ["0.5000", "12.2500"]),
        ([0.0, 123456.7], ["0", "123457"]),
        ([1e-12, 3.0], ["1.000e-12", "3.000"]),
        ([1e7, -2e7], ["1.000e+07", "-2.000e+07"]),
        ([True, "text"], ["True", "text"]),
        ([jnp.float32(2.0), np.int64(3)], ["2.000", "3"]),
    ],
)
def test_column_text(values, texts):
    assert tables.column_text(values) == texts


# Options


@dataclass(frozen=True)
class Ranges(Options):
    steps: Positive[int] = 1
    rate: Positive[float] | None = None
    dropout: Rate = 0.0
    top_p: Share | None = None
    rows: Annotated[int, at_least(2)] = 2
    lengths: tuple[Positive[int], ...] = ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"steps": 0}, "--steps must be positive and finite. Got 0."),
        ({"rate": float("inf")}, "--rate must be positive and finite. Got inf."),
        ({"dropout": 1.0}, "--dropout must be at least 0 and less than 1. Got 1.0."),
        ({"top_p": 0.0}, "--top-p must be greater than 0 and at most 1. Got 0.0."),
        ({"rows": 1}, "--rows must be at least 2. Got 1."),
        ({"lengths": (3, -1)}, "--lengths must be positive and finite. Got -1."),
        ({"rate": float("nan")}, "--rate must be positive and finite. Got nan."),
    ],
)
def test_options_have_ranges(given, told):
    with pytest.raises(UserError, match=re.escape(told)):
        Ranges(**given)
    Ranges(rate=0.5, dropout=0.0, top_p=1.0, lengths=(1, 2))
    assert tyro.cli(Ranges, args=["--lengths", "3", "4", "--rate", "2"]).lengths == (3, 4)


def test_an_experiment_has_commands(doubling, tmp_path, monkeypatch, capsys):
    """The first is the default; --help lists them."""

    @dataclass(frozen=True)
    class Halving(RunOptions):
        """Halve a number."""

        number: float = 1.0
        """The number to halve."""

    def halve(options: Halving) -> None:
        print(options.number / 2)

    commands = {
        "double": Command(Doubling, "doubling.double"),
        "halve": Command(Halving, "doubling.halve"),
    }
    monkeypatch.setattr(sys.modules["experiments.doubling"], "COMMANDS", commands)
    monkeypatch.setattr(sys.modules["experiments.doubling"], "halve", halve, raising=False)
    assert cli.main(["doubling", "halve", "--number", "3"]) == 0
    assert capsys.readouterr().out == "1.5\n"
    assert cli.main(["doubling", "--number", "3", "--output-dir", str(tmp_path)]) == 0
    assert cli.main(["doubling", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(each in told for each in ("double", "halve", "Without a command: double ("))
    assert cli.main(["doubling", "halve", "--help"]) == 0
    assert "The number to halve." in capsys.readouterr().out
    assert cli.main(["doubling", "halve", "--fail", "user"]) == 2
