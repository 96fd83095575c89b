"""Answers: a run end to end, the chat, what they are worth, the turns of conversations."""

import csv
import io
import json
import math
import zipfile

import numpy as np
import pytest

from experiments import cli
from experiments.data import conversations
from experiments.dialogue import report
from experiments.seq2seq.options import SamplingOptions


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    argv = ["dialogue", "--smoke", "--steps", "2", "--output-dir", str(directory)]
    assert cli.main(argv) == 0
    return directory


def chat(directory, monkeypatch, capsys, lines, *options):
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    argv = ["dialogue", "chat", *map(str, options), "--output-dir", str(directory)]
    return cli.main(argv), capsys.readouterr()


def test_training_reports_perplexity_beside_the_twins(trained):
    run = trained / "dialogue" / "default"
    metrics = json.loads((run / "metrics.json").read_text())
    assert all(
        1 < metrics[each] < 100 for each in ("perplexity", "twin_perplexity", "unigram_perplexity")
    )
    rows = {(row["system"], row["answers"]): row for row in metrics["answers"]}
    systems = ("attention", "no attention")
    assert set(rows) == {(s, a) for s in systems for a in ("drawn at 0.7", "greedy")} | {
        ("reference", "-")
    }
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as file:
        predicted = list(csv.DictReader(file))
    assert len(predicted) == 20
    drawn = [each["attention, drawn at 0.7"] for each in predicted]
    words = rows["attention", "drawn at 0.7"]["words"]
    assert words == pytest.approx(np.mean([len(each.split()) for each in drawn]))
    assert (run / "figures" / "learning_curve.png").exists()


def test_chat_answers_each_line_and_draws_it(trained, tmp_path, monkeypatch, capsys):
    how = ("--plot", tmp_path / "a.png")
    code, first = chat(trained, monkeypatch, capsys, "hello\n\nhow are you?\n", *how)
    assert code == 0
    assert len(first.out.splitlines()) == 2
    assert all((tmp_path / f"a_{n}.png").read_bytes()[:4] == b"\x89PNG" for n in (1, 2))
    again = chat(trained, monkeypatch, capsys, "hello\n\nhow are you?\n")[1].out
    other = chat(trained, monkeypatch, capsys, "hello\nhow are you?\n", "--draw-seed", 7)[1].out
    assert again == first.out != other
    greedy = [
        chat(trained, monkeypatch, capsys, "hello\n", "--temperature", 0, "--draw-seed", n)[1].out
        for n in (1, 2)
    ]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["chat", "--name", "none"], "holds no run"),
        (["chat", "--top-p", "0"], "--top-p must be greater than 0 and at most 1"),
        (["--context", "0"], "--context must be positive"),
        (["chat", "--beam", "5"], "--beam 5 needs --temperature 0"),
        (["--smoke", "--average", "9"], "--average must be at most"),
        (["--smoke", "--ensemble", "none"], "holds no run"),
    ],
)
def test_mistakes(options, message, tmp_path, capsys):
    assert cli.main(["dialogue", *options, "--output-dir", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_model_without_attention_is_its_own_twin(tmp_path):
    argv = ["dialogue", "--smoke", "--steps", "2", "--score", "none", "--temperature", "0"]
    assert cli.main([*argv, "--output-dir", str(tmp_path)]) == 0
    run = tmp_path / "dialogue" / "default"
    rows = json.loads((run / "metrics.json").read_text())["answers"]
    assert [row["system"] for row in rows] == ["no attention", "reference"]
    assert not (run / "training" / "twin").exists()


def test_a_unigram_counts_each_token_and_the_end():
    targets = [[5, 6], [5]]
    counts = report.unigram(targets, 7)
    assert counts[5:] == [2, 1]
    assert sum(counts) == 5
    shares = [(count + 1) / 12 for count in (2, 1, 2, 2, 2)]  # 5, 6, end, 5, end
    expected = math.exp(-np.mean(np.log(shares)))
    assert report.unigram_perplexity(counts, targets) == pytest.approx(expected)


def test_conversations_are_divided_and_long_turns_left_out(tmp_path, monkeypatch):
    def turn(*texts):
        return [{"text": text} for text in texts]

    said = [turn("a", "b"), turn("c  d"), turn("e " * 21), turn("f"), turn("g")]
    data = {f"{n:02}": {"messages": said} for n in range(40)}
    path = tmp_path / "chitchat.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(conversations.FILE, json.dumps(data))
    monkeypatch.setattr(conversations, "obtain", lambda wheel, data_dir: path)
    train, dev, test = conversations.load()
    assert dev == test == ((["a b", "f"] * 2), (["c d", "g"] * 2))
    assert len(train.source) == 36 * 2
    assert conversations.load(turns=2)[1].source == ["a b"] * 2
    assert conversations.load(turns=3, most_words=21)[1].source[:3] == [
        "a b",
        "a b / c d",
        f"a b / c d / {' '.join('e' * 21)}",
    ]


def test_a_search_has_a_name():
    assert SamplingOptions().name == "drawn at 0.7"
    assert SamplingOptions(temperature=0).name == "greedy"
    assert SamplingOptions(temperature=0, beam=3).name == "beam 3"
