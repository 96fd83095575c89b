"""The machine-translation experiment from the command line: train, resume, evaluate, translate."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_jax import metrics
from attn_jax.text import Vocabulary
from experiments import cli
from experiments.seq2seq import saved
from experiments.seq2seq import train as engine
from experiments.seq2seq.options import ModelOptions
from experiments.seq2seq.saved import Saved

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
    training = numbers["training"]
    assert training == {
        "pairs": 200,
        "without_target": 0,
        "too_long": 0,
        "real_fraction": pytest.approx(0.5, abs=0.2),
    }
    checksums = json.loads((run / "config.json").read_text())["checksums"]
    for side in ("source", "target"):
        vocabulary = Vocabulary.load(run / f"vocabulary.{side}.json")
        assert checksums[f"{side} vocabulary"] == vocabulary.checksum
    pictures = {path.stem for path in (run / "figures").iterdir()}
    assert pictures >= FIGURES
    *_, last = (run / "training" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["step"] == 20
    header, *lines = (run / "predictions.csv").read_text().splitlines()
    assert header == "source,reference,attention,no attention"
    assert len(lines) == 20


def test_evaluation_repeats_the_numbers(trained, capsys):
    before = json.loads((run_of(trained) / "metrics.json").read_text())
    stale = run_of(trained) / "figures" / "alignment_9.png"
    stale.touch()
    assert main(trained, "evaluate", "--smoke", "--average", 2, "--beam", 1) == 0
    assert not stale.exists()
    assert "BLEU" in capsys.readouterr().out
    averaged = json.loads((run_of(trained) / "metrics.json").read_text())
    assert [row["system"] for row in averaged["scores"]] == ["attention", "no attention"]
    assert averaged["scores"][0] != before["scores"][0]
    assert main(trained, "evaluate", "--smoke") == 0
    assert json.loads((run_of(trained) / "metrics.json").read_text()) == before


def test_other_lines_leave_the_results_of_the_training(trained, tmp_path, capsys):
    """Of one length all of them, and without spaces."""
    before = (run_of(trained) / "metrics.json").read_text()
    for side in ("source", "target"):
        (tmp_path / side).write_text("abd\nabe\n")
    files = ("--test-source", tmp_path / "source", "--test-target", tmp_path / "target")
    options = ("--bleu-tokenize", "char", "--max-source", 2)
    assert main(trained, "evaluate", "--smoke", "--beam", 1, *files, *options) == 0
    assert (run_of(trained) / "metrics.json").read_text() == before
    assert (run_of(trained) / "figures" / "learning_curve.png").exists()
    found = run_of(trained) / "evaluation"
    numbers = json.loads((found / "metrics.json").read_text())
    assert numbers["test"] == [str(tmp_path / "source"), str(tmp_path / "target")]
    assert [(row["tokens"], row["lines"]) for row in numbers["by_length"]] == [(3, 2)]
    assert all("tok:char" in row["bleu_signature"] for row in numbers["scores"])
    assert len((found / "predictions.csv").read_text().splitlines()) == 3
    said = capsys.readouterr()
    assert "in tokens" in said.out
    assert said.err.count("line 1 has 3 tokens, more than --max-source") == 1
    assert said.err.count("cut to the first 2\n") == 2  # each line once


def test_translate(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\nab onm\r\n" + "srod " * 12 + "\nŁ漢\n"))
    monkeypatch.setattr(saved, "load_twin", None)  # nobody asks for it
    files = ("--alignments", tmp_path / "links", "--plot", tmp_path / "heat")
    assert main(trained, "translate", "--smoke", *files, "--max-source", 20) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 4
    assert lines[0] == ""
    assert "line 3 has 60 tokens" in said.err
    written = (tmp_path / "links").read_text().splitlines()
    links = [metrics.from_pharaoh(line).sure for line in written]
    assert len(links) == 4
    assert not links[0]
    assert all(source < 5 for source, _ in links[2])
    for at, line in zip(links, lines, strict=True):
        assert all(target < len(line.split()) for _, target in at)
    assert (tmp_path / "heat.png").stat().st_size > 1000


def test_n_best_and_an_ensemble(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ab onm\nsrod"))
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", newline="\r\n")
    monkeypatch.setattr("sys.stdout", stream)
    options = ("--n-best", 2, "--beam", 2, "--ensemble", "default")
    files = ("--alignments", tmp_path / "links")
    assert main(trained, "translate", "--smoke", *options, *files) == 0
    assert stream.encoding == "utf-8"
    assert b"\r" not in written.getvalue()
    rows = [line.split(" ||| ") for line in written.getvalue().decode().splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1"]
    assert len((tmp_path / "links").read_text().splitlines()) == 4
    scores = np.array([float(row[2]) for row in rows]).reshape(2, 2)
    assert (scores[:, 0] >= scores[:, 1]).all()


def test_an_interrupted_training_goes_on(trained, tmp_path, monkeypatch):
    """Ctrl-C at an evaluation; the resumed run ends with the bits of the whole one."""
    evaluations = []

    def interrupting(dev, options, real=engine.dev_losses):
        evaluate = real(dev, options)

        def once(model):
            evaluations.append(1)
            if len(evaluations) == 1:
                raise KeyboardInterrupt
            return evaluate(model)

        return once

    options = ("train", "--smoke", "--tokens", "character", "--beam", 1)
    monkeypatch.setattr(engine, "dev_losses", interrupting)
    assert main(tmp_path, *options) == 130
    assert main(tmp_path, *options, "--resume") == 0
    resumed, whole = (
        json.loads((run_of(each) / "metrics.json").read_text()) for each in (tmp_path, trained)
    )
    assert resumed["scores"] == whole["scores"][:1]
    assert resumed["training"] == whole["training"]


def test_speed(tmp_path, capsys):
    assert main(tmp_path, "speed", "--smoke", "--score", "bilinear") == 0
    assert "target tokens/s" in capsys.readouterr().out
    path = tmp_path / "machine-translation-speed" / "default" / "metrics.json"
    (row,) = json.loads(path.read_text())["rows"]
    assert row["target tokens/s"] > 0
    assert row["greedy lines/s"] > 0


# Mistakes


def copied(trained, directory, **files):
    """A run of which some files are changed: name -> text -> text."""
    shutil.copytree(run_of(trained), run_of(directory))
    for name, change in files.items():
        path = run_of(directory) / f"{name}.json"
        path.write_text(change(path.read_text("utf-8")), "utf-8")
    return directory


def test_another_vocabulary_is_refused(trained, tmp_path, capsys):
    other = Vocabulary.train(["abc"], kind="character").to_json()
    run = run_of(copied(trained, tmp_path, **{"vocabulary.source": lambda text: other}))
    assert main(tmp_path, "translate", "--smoke") == 2
    assert "vocabulary.source.json must be what the model was trained" in capsys.readouterr().err
    assert (run / "vocabulary.source.json").read_text() == other


def test_other_data_are_not_resumed(trained, tmp_path, capsys):
    """The text files of a run may have changed since: nothing of it is overwritten."""
    marked = {"vocabulary.source": lambda text: text + "\n"}
    name = '"source vocabulary": "'
    copied(trained, tmp_path, config=lambda text: text.replace(name, f"{name}0"), **marked)
    options = ("train", "--smoke", "--twin", "--tokens", "character", "--resume")
    assert main(tmp_path, *options) == 2
    said = "--resume needs the data of the earlier run. Changed: source vocabulary."
    assert said in capsys.readouterr().err
    assert (run_of(tmp_path) / "vocabulary.source.json").read_text().endswith("\n")
    assert (run_of(tmp_path) / "metrics.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "config.json cannot be read"),
        (lambda text: "[]", "config.json is damaged"),
        (lambda text: text.replace("checksums", "sums"), "holds no checksums"),
        (lambda text: text.replace('"norm"', '"normal"'), "unexpected keyword argument 'normal'"),
    ],
)
def test_a_damaged_config_is_named(trained, tmp_path, capsys, change, message):
    copied(trained, tmp_path, config=change)
    assert main(tmp_path, "evaluate", "--smoke") == 2
    assert message in capsys.readouterr().err


def test_a_model_without_attention_has_no_alignments(trained, tmp_path, capsys, monkeypatch):
    """Refused before a file that is there loses what it holds."""
    (tmp_path / "links").write_text("0-0\n")
    plain = Saved(None, None, None, {}, tmp_path, ModelOptions(score="none"))
    monkeypatch.setattr(saved, "load", lambda *args, **options: plain)
    assert main(trained, "translate", "--alignments", tmp_path / "links") == 2
    assert "need a model with attention. Got --score none." in capsys.readouterr().err
    assert (tmp_path / "links").read_text() == "0-0\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--vocabulary", 4), "--vocabulary must be more than 4, the special tokens. Got 4."),
        (("--min-frequency", 0), "--min-frequency must be positive and finite. Got 0."),
        (("--max-length", 0), "--max-length must be positive and finite. Got 0."),
        (("--label-smoothing", 1), "--label-smoothing must be at least 0 and less than 1. Got 1.0"),
        (("--clip-norm", 0), "--clip-norm must be positive and finite. Got 0.0."),
        (("--warmup", -1), "--warmup must be at least 0 and finite. Got -1."),
        (("--batch-tokens", 0), "--batch-tokens must be positive and finite. Got 0."),
        (("--max-source", 0), "--max-source must be positive and finite. Got 0."),
        (("--plot", "it.png"), "--plot (applied to"),
        (
            ("--max-length", 1, "--tokens", "character"),
            "targets must leave at least one pair. Got 200",
        ),
        (("--min-frequency", 9999), "lines must hold text that is frequent enough"),
        (("--batch-tokens", 1), "batch_tokens must give 1 to 200 rows"),
        (("--model", "transformer", "--normalizer", "softmax", "--score", "none"), "--score none"),
        (("--model", "transformer", "--normalizer", "entmax"), "entmax15 has α = 1.5"),
        (("--ensemble", "other"), "other holds no run"),
        (("--backward", "other"), "--backward needs gold alignments"),
        (("--ensemble", "default"), "--ensemble needs runs with the same vocabularies"),
        (("--average", 3), "--average must be at most 2, the checkpoints that"),
        (("--resume",), "--resume needs the options of the earlier run"),
    ],
)
def test_an_earlier_run_outlives_what_is_refused(trained, capsys, options, message):
    before = (run_of(trained) / "metrics.json").read_text()
    assert main(trained, "train", "--smoke", *options) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert (run_of(trained) / "metrics.json").read_text() == before
    assert (run_of(trained) / "training" / "checkpoints").is_dir()


def test_a_transformer_trains_and_translates(tmp_path, monkeypatch, capsys):
    options = ("--smoke", "--tokens", "character", "--steps", 3, "--model", "transformer")
    options = (*options, "--features", 48, "--heads", 3, "--beam", 1)
    assert main(tmp_path, "train", *options) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("ab onm\n\nsrod"))
    files = ("--alignments", tmp_path / "links", "--plot", tmp_path / "heat.png")
    assert main(tmp_path, "translate", "--smoke", "--n-best", 2, *files) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" ||| ")[0] for row in rows] == ["0", "0", "1", "2", "2"]
    assert len((tmp_path / "links").read_text().splitlines()) == 5
    assert (tmp_path / "heat.png").stat().st_size > 5000


def test_translation_without_an_input_or_with_nowhere_to_write(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert main(trained, "translate", "--smoke") == 2
    assert "the standard input, which is closed" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("ab\n"))
    if Path("/dev/full").exists():
        assert main(trained, "translate", "--smoke", "--alignments", "/dev/full") == 2
        assert "cannot write /dev/full: No space left" in capsys.readouterr().err


def test_who_reads_the_output_may_leave(trained):
    """As `head` does: no traceback."""
    command = [sys.executable, "-m", "experiments", "machine-translation", "translate", "--smoke"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command, environment = [*command, "--output-dir", str(trained)], {"JAX_ENABLE_X64": "1"}
    environment["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as translating:
        translating.stdout.close()
        _, said = translating.communicate(b"ab\n" * 200)
    assert b"Traceback" not in said
    assert translating.returncode == 141, said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("translate", "--name", "none"), "holds no run. Train a model of this --name first."),
        (("train", "--beam", 0), "--beam must be positive and finite. Got 0."),
        (("translate", "--n-best", 9), "--n-best must be 1 to --beam, 5. Got 9."),
        (("train", "--dropout", 1), "--dropout must be at least 0 and less than 1."),
        (("train", "--train-source", "nowhere"), "go together. Missing: --train-target"),
        (("evaluate", "--average", 99), "--average must be at most 2, the checkpoints that"),
        (("translate", "--ensemble", "other"), "holds no run"),
        (("translate", "--twin"), "--twin (applied to"),
        (("evaluate", "--resume"), "--resume (applied to"),
        (("evaluate", "--steps", 3), "--steps (applied to"),
        (("speed", "--beam", 1), "--beam (applied to"),
        (("translate", "--backward", "other"), "--backward (applied to"),
        (("translate", "--plot", "it.doc"), "--plot needs a suffix of"),
        (("translate", "--alignments", "/none/it"), "in a directory that exists. Got /none/it."),
    ],
)
def test_mistakes_are_named(trained, capsys, options, message):
    assert main(trained, *options) == 2
    error = " ".join(capsys.readouterr().err.replace("│", "").split())  # the parser breaks lines
    assert message in error
