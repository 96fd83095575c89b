"""The sequence-tasks experiment from the command line: generated sequences, train, evaluate."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest

from experiments import cli, sequence_tasks
from experiments.data import integers as generated
from experiments.data.integers import TASKS, Part
from experiments.seq2seq import models
from experiments.sequence_tasks.report import in_fives

# What JoeyNMT's and Sockeye's own scripts generate: (count, longest, of them empty).
DEFINED = {
    "reverse": (50, (50_000, 25, 0), (1_000, 30, 0), (1_000, 30, 0)),
    "copy": (10, (10_000, 10, 0), (100, 10, 0), (110, 11, 10)),
    "sort": (10, (10_000, 10, 0), (100, 10, 0), (110, 11, 10)),
}


def main(directory, *options):
    return cli.main(["sequence-tasks", *map(str, options), "--output-dir", str(directory)])


def integers(lines):
    return [[int(each) for each in line.split()] for line in lines]


def changed(name, sequence):
    if name == "reverse":
        return [sequence[-1 - i] for i in range(len(sequence))]
    if name == "sort":
        return [symbol for symbol in range(10) for _ in range(sequence.count(symbol))]
    return sequence


# Sequences


@pytest.mark.parametrize("name", TASKS)
def test_the_parts_are_as_defined(name):
    symbols, *parts = DEFINED[name]
    parts_made = generated.generate(TASKS[name], seed=42)
    seen = set()
    for lines, (count, longest, empty) in zip(parts_made, parts, strict=True):
        sources, targets = integers(lines.source), integers(lines.target)
        lengths = np.array([len(each) for each in sources])
        assert len(sources) == count
        assert (lengths == 0).sum() == empty
        assert set(lengths) - {0} == set(range(1, longest + 1))
        assert targets == [changed(name, each) for each in sources]
        seen |= {symbol for each in sources for symbol in each}
    assert seen == set(range(symbols))


def test_a_part_depends_on_the_seed_and_its_own_definition():
    task = dataclasses.replace(TASKS["sort"], train=Part(13, 5))
    first, again, other = (generated.generate(task, seed=seed) for seed in (3, 3, 4))
    assert first == again
    larger = generated.generate(dataclasses.replace(task, train=Part(17, 5)), seed=3)
    assert larger.test == first.test
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert len({part.source[0] for part in first}) == 3


def test_the_vocabulary_holds_every_integer():
    task = TASKS["reverse"]
    vocabulary = generated.vocabulary(task)
    assert len(vocabulary) == 50 + 4
    lines = generated.generate(dataclasses.replace(task, train=Part(7, 11)), seed=1).train
    for line, ids in zip(lines.source, vocabulary.encode_batch(lines.source), strict=True):
        assert vocabulary.decode(ids) == line
        assert len(ids) == len(line.split())


def test_lengths_are_printed_in_fives():
    lengths = [{"length": n, "sequences": n + 1, "it": n / 13} for n in (0, 1, 5, 6, 11, 12)]
    rows = in_fives(lengths)
    assert [row["lengths"] for row in rows] == ["0-5", "6", "11-12"]
    assert [row["sequences"] for row in rows] == [9, 7, 25]
    assert rows[0]["it"] == pytest.approx((2 * 1 + 6 * 5) / 13 / 9)


# The command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run with a twin."""
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, "sort", "--smoke", "--twin", "--beam", 2) == 0
    return directory


def run_of(directory, task="sort"):
    return directory / "sequence-tasks" / task / "default"


def metrics_of(directory):
    metrics = json.loads((run_of(directory) / "metrics.json").read_text())
    for row in metrics["scores"]:
        assert row.pop("sentences_per_second") > 0
    return metrics


def greedy(metrics):
    return [row for row in metrics["scores"] if row["search"] == "greedy"]


def test_training_writes_what_it_promises(trained):
    run, metrics = run_of(trained), metrics_of(trained)
    rows = {(row["system"], row["part"], row["search"]): row for row in metrics["scores"]}
    assert set(rows) == {
        (system, part, search)
        for system in ("attention", "no attention")
        for part in ("dev", "test")
        for search in ("greedy", "beam 2")
    }
    with (run / "predictions.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == 20
    for system in ("attention", "no attention"):
        right = [line["target"] == line[system] for line in table]
        assert rows[system, "test", "greedy"]["exact_match"] == np.mean(right)
    dev, test, *_ = greedy(metrics)
    by_length = metrics["by_length"]
    assert sum(each["sequences"] for each in by_length) == 50
    right = sum(each["sequences"] * each["attention"] for each in by_length)
    assert right == pytest.approx(30 * dev["exact_match"] + 20 * test["exact_match"])
    assert (run / "training" / "twin" / "checkpoints").is_dir()  # gone with a later training
    pictures = {path.stem for path in (run / "figures").iterdir()}
    lines = {"exact_match_by_length", "learning_curve"}
    assert pictures == lines | {"alignment", "alignment_longest"}


def test_evaluation_repeats_the_numbers(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    assert main(tmp_path, "evaluate", "sort", "--beam", 1) == 0
    assert "sentences/s" in capsys.readouterr().out
    before, after = metrics_of(trained), metrics_of(tmp_path)
    assert after["scores"] == greedy(before)
    assert after["by_length"] == before["by_length"]


def test_the_model_is_no_larger_than_joeynmts():
    options = sequence_tasks.Train()
    assert models.parameters(options.model, 54, 54) <= 105_088
    assert options.fit.of(TASKS["reverse"]).steps == 8_000
    assert options.fit.of(TASKS["sort"]).steps == 7_000
    assert sequence_tasks.FitOptions(steps=5).of(TASKS["copy"]).steps == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("shuffle",), "invalid choice"),
        (("evaluate", "copy"), "holds no run. Train a model of this --name first."),
        (("sort", "--resume", "--name", "none"), "--resume needs an earlier run."),
        (("evaluate", "sort", "--twin"), "--twin (applied to"),
        (("evaluate", "sort", "--data-seed", 1), "--data-seed (applied to"),
        (("sort", "--beam", 0), "--beam must be positive and finite. Got 0."),
        (("sort", "--data-seed", -1), "--data-seed must be at least 0 and finite. Got -1."),
        (("sort", "--steps", 0), "--steps must be positive and finite. Got 0."),
        (("evaluate", "sort", "--name", "a/b"), "--name must be"),
    ],
)
def test_mistakes_are_named(trained, capsys, options, message):
    assert main(trained, *options) == 2
    error = " ".join(capsys.readouterr().err.replace("│", "").split())  # the parser breaks lines
    assert message in error
