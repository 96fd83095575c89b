"""The machine-translation experiment from the command line: train, resume, evaluate, translate."""

import io
import json

import numpy as np
import pytest

from attn_jax import metrics
from experiments import cli

FIGURES = {"bleu_by_length", "learning_curve"}


def main(directory, *options):
    return cli.main(["machine-translation", *map(str, options), "--output-dir", str(directory)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run with a twin: (its directory, what it said)."""
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, "train", "--smoke", "--twin", "--tokens", "character") == 0
    return directory


def run_of(directory):
    return directory / "machine-translation" / "default"


def test_training_writes_what_it_promises(trained):
    run = run_of(trained)
    numbers = json.loads((run / "metrics.json").read_text())
    assert [(row["system"], row["search"]) for row in numbers["scores"]] == [
        ("attention", "greedy"),
        ("attention", "beam 2"),
        ("no attention", "greedy"),
        ("no attention", "beam 2"),
    ]
    assert all("version:" in row["bleu_signature"] for row in numbers["scores"])
    assert sum(row["lines"] for row in numbers["by_length"]) == 20
    pictures = {path.stem for path in (run / "figures").iterdir()}
    assert pictures >= FIGURES
    *_, last = (run / "training" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["step"] == 20
    header, *lines = (run / "predictions.csv").read_text().splitlines()
    assert header == "source,reference,attention,no attention"
    assert len(lines) == 20


def test_evaluation_repeats_the_numbers(trained, capsys):
    before = json.loads((run_of(trained) / "metrics.json").read_text())
    assert main(trained, "evaluate", "--smoke", "--average", 2) == 0
    assert "BLEU" in capsys.readouterr().out
    averaged = json.loads((run_of(trained) / "metrics.json").read_text())
    assert averaged["scores"] != before["scores"]
    assert main(trained, "evaluate", "--smoke") == 0
    assert json.loads((run_of(trained) / "metrics.json").read_text()) == before


def test_translate(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ab onm\r\n\n" + "srod " * 12 + "\nŁ漢\n"))
    files = ("--alignments", tmp_path / "links", "--plot", tmp_path / "heat.png")
    assert main(trained, "translate", "--smoke", *files) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1] == ""
    written = (tmp_path / "links").read_text().splitlines()
    links = [metrics.from_pharaoh(line).sure for line in written]
    assert len(links) == 4
    assert not links[1]
    assert all(source < 12 for source, _ in links[2])
    assert (tmp_path / "heat.png").stat().st_size > 1000


def test_n_best_and_an_ensemble(trained, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ab onm\nsrod"))
    options = ("--n-best", 2, "--beam", 2, "--ensemble", "default")
    assert main(trained, "translate", "--smoke", *options) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1"]
    scores = np.array([float(row[2]) for row in rows]).reshape(2, 2)
    assert (scores[:, 0] >= scores[:, 1]).all()


def test_an_interrupted_training_goes_on(trained, tmp_path, monkeypatch, capsys):
    """Ctrl-C at an evaluation; the resumed run ends with the bits of the whole one."""
    from experiments.translation import fits

    evaluations = []

    def interrupting(dev, options, real=fits.dev_losses):
        evaluate = real(dev, options)

        def once(model):
            evaluations.append(1)
            if len(evaluations) == 1:
                raise KeyboardInterrupt
            return evaluate(model)

        return once

    options = ("train", "--smoke", "--twin", "--tokens", "character")
    monkeypatch.setattr(fits, "dev_losses", interrupting)
    assert main(tmp_path, *options) == 130
    assert main(tmp_path, *options, "--resume") == 0
    numbers = [
        json.loads((run_of(each) / "metrics.json").read_text()) for each in (tmp_path, trained)
    ]
    assert numbers[0] == numbers[1]


def test_speed(tmp_path, capsys):
    assert main(tmp_path, "speed", "--smoke", "--score", "bilinear") == 0
    assert "target tokens/s" in capsys.readouterr().out
    path = tmp_path / "machine-translation-speed" / "default" / "metrics.json"
    (row,) = json.loads(path.read_text())["rows"]
    assert row["target tokens/s"] > 0
    assert row["greedy lines/s"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("translate", "--name", "none"), "holds no run. Train a model of this --name first."),
        (("train", "--beam", 0), "--beam must be at least 1. Got 0."),
        (("train", "--n-best", 9), "--n-best must be 1 to --beam, 5. Got 9."),
        (("train", "--dropout", 1), "--dropout must be at least 0 and below 1."),
        (("train", "--train-source", "nowhere"), "go together. Missing: --train-target"),
        (("evaluate", "--average", 99), "be at most 2, the checkpoints that"),
        (("translate", "--ensemble", "other"), "holds no run"),
    ],
)
def test_mistakes_are_named(trained, capsys, options, message):
    assert main(trained, *options) == 2
    assert message in capsys.readouterr().err
