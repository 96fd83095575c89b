"""Summaries: a run end to end, own files, copying, ROUGE, docstrings."""

import csv
import io
import json

import numpy as np
import pytest

from experiments import cli
from experiments.data import docstrings
from experiments.summarization import Texts, data, rouge


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    argv = ["summarization", "--smoke", "--steps", "2", "--coverage", "--coverage-loss", "0.1"]
    assert cli.main([*argv, "--output-dir", str(directory)]) == 0
    return directory


def test_training_reports_rouge_beside_both_baselines(trained):
    run = trained / "summarization" / "default"
    metrics = json.loads((run / "metrics.json").read_text())
    assert [row["system"] for row in metrics["systems"]] == ["first words", "copying", "no copying"]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert metrics[name] == metrics["systems"][1][name]
        assert metrics[f"lead_{name}"] == metrics["systems"][0][name]
        assert 0 <= metrics[name] <= 100
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    for row in rows:  # what an untrained model copies are words of the text
        assert len(row["first words"].split()) == len(row["reference"].split())
    assert len(list((run / "figures").glob("summary_*.png"))) == 4
    assert (run / "training" / "twin" / "checkpoints").is_dir()


def test_lines_are_summarized_one_by_one_and_drawn(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("zzz qqq\n\ntnt ls\n"))
    where = ["--output-dir", str(trained), "--plot", str(tmp_path / "first.html")]
    assert cli.main(["summarization", "summarize", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "first.html").read_text().startswith("<!")


def test_evaluation_of_other_texts_stands_apart(trained, tmp_path):
    (tmp_path / "a").write_text("ab cd ef gh\nxy zw\n")
    (tmp_path / "b").write_text("cd\nzw\n")
    files = ["--test-source", str(tmp_path / "a"), "--test-target", str(tmp_path / "b")]
    argv = ["summarization", "evaluate", *files, "--output-dir", str(trained)]
    assert cli.main(argv) == 0
    found = trained / "summarization" / "default" / "evaluation" / "metrics.json"
    assert json.loads(found.read_text())["systems"][1]["unknown_words"] == 2


def test_tables_of_ones_own(tmp_path):
    (tmp_path / "a.csv").write_text('title;body\nA cat;"The cat\nsat"\nB;c d e\n')
    (tmp_path / "a.jsonl").write_text(
        '{"body": "The cat\\nsat", "title": "A cat"}\n{"body": "c d e", "title": "B"}\n'
    )
    for name in ("a.csv", "a.jsonl"):
        options = Texts(table=tmp_path / name, source_column="body", target_column="title")
        corpus = data.load(options)
        assert corpus.train.source == ["The cat sat", "c d e"]
        assert corpus.train.target == ["A cat", "B"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", "title,body\nA,b\n", "--source-column: unknown column 'text'"),
        ("a.jsonl", '{"text": "a"}\n', "line 1 of .* must be an object with 'text' and 'summary'"),
        ("a.jsonl", '{"text": "a", "summary": 3}\n', "line 1 of .* must hold text"),
        ("a.jsonl", "nothing\n", "line 1 of .* must be an object"),
        ("a.csv", "", "is empty"),
    ],
)
def test_mistakes_in_a_table_are_one_line(name, content, told, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    argv = ["summarization", "--table", str(tmp_path / name), "--output-dir", str(tmp_path / "r")]
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert __import__("re").search(told, error)
    assert not (tmp_path / "r").exists()


def test_options_that_need_attention_are_refused_without(tmp_path, capsys):
    for options in (["--copy"], ["--no-copy", "--coverage-loss", "1"], ["--coverage"]):
        given = ["--score", "none", *[each for each in options if each != "--copy"]]
        assert cli.main(["summarization", *given, "--output-dir", str(tmp_path)]) == 2
        assert "needs --model recurrent" in capsys.readouterr().err


def test_rouge_is_what_the_words_say():
    found = rouge.rouge(["the cat sat down"], ["the cat lay down"])
    assert found["rouge1"] == pytest.approx(75)
    assert found["rouge2"] == pytest.approx(100 / 3)
    assert found["rougeL"] == pytest.approx(75)
    assert np.isfinite(list(rouge.rouge([""], ["a"]).values())).all()


def test_docstrings_are_split_by_body(tmp_path, monkeypatch):
    def module(summary, body):
        return repr(f"{summary}\n\n{body}\n\nArgs:\n    x: one").encode()

    bodies = [f"The number {n} is added to all of the other numbers." for n in range(60)]
    pairs = [pair for body in bodies for pair in docstrings.pairs_of(module("Add a number.", body))]
    assert pairs == [(body, "Add a number.") for body in bodies]
    monkeypatch.setattr(docstrings, "_read", lambda: iter([*pairs, *pairs]))
    parts = docstrings.load(tmp_path)
    found = [body for part in parts for body in part.source]
    assert sorted(found) == sorted(bodies)
    assert all(part.source for part in parts)
    monkeypatch.setattr(docstrings, "_read", None)  # the cache serves
    assert docstrings.load(tmp_path) == parts
