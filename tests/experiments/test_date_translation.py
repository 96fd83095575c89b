"""The date-translation experiment from the command line: train, resume, evaluate, translate."""

import csv
import io
import json
import signal

import numpy as np
import pytest

from attn_jax import text, training
from experiments import cli
from experiments.data import dates
from experiments.data.dates import Written
from experiments.data.pairs import Pairs
from experiments.date_translation import figures, report
from experiments.date_translation.comparison import FEW_ROWS, ROWS
from experiments.harness import glyphs
from experiments.seq2seq import models
from experiments.seq2seq.options import ModelOptions, SearchOptions

LANGUAGES = ("--languages", "de", "ar", "ru")
FEW = ["-".join(row) for row in FEW_ROWS]
PICTURES = {
    "exact_match_by_language",
    "learning_curve",
    "scores",
    "scores_training",
}


def main(directory, *options):
    arguments = ["date-translation", *map(str, options), "--output-dir", str(directory)]
    return cli.main(arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run."""
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, "train", "--smoke", *LANGUAGES) == 0
    return directory


def run_of(directory, name="default"):
    return directory / "date-translation" / name


def metrics_of(directory, name="default"):
    return json.loads((run_of(directory, name) / "metrics.json").read_text("utf-8"))


def predictions_of(directory, name="default"):
    with (run_of(directory, name) / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_training_writes_what_it_promises(trained):
    numbers, rows = metrics_of(trained), predictions_of(trained)
    assert len(rows) == numbers["dates"] == 3 * 4 * 2
    assert {row["language"] for row in rows} == {"de", "ar", "ru"}
    for row in rows:
        day = dates.datetime.date.fromisoformat(row["truth"])
        assert row["source"] == dates.write(day, row["language"], row["format"]).text
        assert row["right"] == str(row["prediction"] == row["truth"])
    for by in ("language", "format"):
        shares = {
            name: np.mean([row["right"] == "True" for row in rows if row[by] == name])
            for name in numbers[f"by_{by}"]
        }
        assert shares == numbers[f"by_{by}"]
    pictures = {path.stem for path in (run_of(trained) / "figures").iterdir()}
    assert pictures == PICTURES | {"alignment_1_ru", "alignment_2_ar", "alignment_3_de"}
    *_, last = (run_of(trained) / "training" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["evaluation"].keys() > {"dev_loss", "dev_exact"}


def test_models_are_compared_at_equal_parameters(trained):
    rows = metrics_of(trained)["comparison"]
    assert [(row["score"], row["normalizer"] or "softmax") for row in rows] == list(FEW_ROWS)
    assert set(FEW_ROWS) < set(ROWS)
    entmax, context = rows
    assert abs(context["parameters"] / entmax["parameters"] - 1) < 0.2  # one feature more or less
    assert entmax["name"] == "additive × entmax"
    assert ModelOptions(model="transformer").name == "transformer × softmax"
    assert entmax["alpha"] > 1
    assert context["alpha"] is None


def test_evaluation_repeats_the_numbers(trained, capsys):
    before = metrics_of(trained)
    rows = predictions_of(trained)
    options = ("--dates", "de: 17. Mai 2024", "ru:17 мая 2024\u202fг.")
    assert main(trained, "evaluate", *options) == 0
    assert "German" in capsys.readouterr().out
    assert metrics_of(trained) == before
    assert predictions_of(trained) == rows
    names = {path.stem for path in (run_of(trained) / "figures").iterdir()}
    assert {"alignment_1_de", "alignment_2_ru"} <= names


def test_translate(trained, capsys, monkeypatch):
    given = ["17. Mai 2024", "", "Ü!", "x" * 99]
    assert main(trained, "translate", "--language", "de", *given) == 0
    said = capsys.readouterr()
    greedy = said.out.splitlines()
    assert len(greedy) == 4
    assert len(greedy[0]) <= 6 + 10
    assert greedy[1] == ""
    assert "line 3: never seen in training: Ü!" in said.err
    typed = "\r\n".join(given) + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed, newline=""))
    assert main(trained, "translate", "--language", "de") == 0
    assert capsys.readouterr().out.splitlines() == greedy
    monkeypatch.setattr("sys.stdin", io.StringIO(typed, newline=""))
    assert main(trained, "translate", "--language", "de", "--beam", 2, "--n-best", 2) == 0
    best = capsys.readouterr().out.splitlines()
    assert [line.count("\t") for line in best] == [1, 0, 1, 1]


def test_resume_after_an_interruption(trained, tmp_path, monkeypatch, capsys):
    """Ctrl-C in the comparison: what is trained is not trained again, and the end is the same."""
    fit, begun = training.fit, []

    def stopping(*args, directory, **options):
        begun.append(directory.name)
        if directory.name == FEW[1]:
            options["on_row"] = lambda row: signal.raise_signal(signal.SIGINT)
        return fit(*args, directory=directory, **options)

    monkeypatch.setattr(training, "fit", stopping)
    monkeypatch.setattr(figures, "draw", lambda *args: ())
    monkeypatch.setattr(figures, "of_comparison", lambda *compared: ())
    options = ("--smoke", *LANGUAGES, "--name", "cut")
    assert main(tmp_path, *options) == 130
    said = capsys.readouterr()
    assert "--resume" in said.out
    assert said.err.count("\n") == 1
    assert begun == ["training", *FEW]
    assert "comparison" not in metrics_of(tmp_path, "cut")

    assert main(tmp_path, *options, "--resume", "--steps", 3) == 2
    assert "Changed: fit" in capsys.readouterr().err
    steps = []
    monkeypatch.setattr(
        training, "fit", lambda *args, **rest: fit(*args, **rest | {"on_row": steps.append})
    )
    assert main(tmp_path, *options, "--resume") == 0
    assert [row["step"] for row in steps] == [2, 3]
    ours, theirs = metrics_of(tmp_path, "cut"), metrics_of(trained)
    for row in (*ours["comparison"], *theirs["comparison"]):
        row.pop("seconds")
    assert ours == theirs
    assert predictions_of(tmp_path, "cut") == predictions_of(trained)


# Scores and pictures


def test_exact_match_by_language_and_format():
    truth = [
        Written("", language, form, iso)
        for language, form, iso in [
            ("de", "short", "2024-05-17"),
            ("de", "full", "2024-05-18"),
            ("en", "short", "2024-05-19"),
            ("en", "full", "2024-05-20"),
        ]
    ]
    scores = report.exact_match(["2024-05-17", "2024-05-18", "2024-05-19", ""], truth)
    assert scores["exact_match"] == 0.75
    assert list(scores["by_language"].items()) == [("en", 0.5), ("de", 1.0)]
    assert scores["by_format"] == {"full": 0.5, "short": 1.0}
    assert scores["by_language_and_format"]["en full"] == 0


def test_exact_match_is_that_of_the_model_given():
    """Models of one kind share what is compiled, and nothing else."""
    target = text.Vocabulary.train(["2024-05-17"], kind="character")
    sources = [[4, 5, 6], [7, 4]]
    first, second = (
        models.build(ModelOptions(embedding=5, features=7), 8, len(target), seed=seed)
        for seed in (0, 1)
    )
    said = report.translator(second, target, SearchOptions(longest=0.5))(sources)
    pairs = Pairs(sources, [best.ids for (best,) in said])
    exact = report.ExactMatch(pairs, target, SearchOptions(longest=0.5))
    assert [exact(model) for model in (first, second, first)] == [0, 1, 0]


def test_labels_show_what_is_not_to_be_seen(monkeypatch):
    monkeypatch.setattr(glyphs, "drawable", lambda: frozenset("aé\u0301\u202f\x07"))
    shown = [glyphs.visible(each) for each in "aé \u202f\u200f\u0301\x07年"]
    assert shown == ["a", "é", "␣", "⍽", "←", "◌\u0301", "0007", "5E74"]
    assert glyphs.readable("a年") == "a□"


def test_dates_worth_drawing_are_of_several_scripts(monkeypatch):
    monkeypatch.setattr(figures, "drawable", lambda: frozenset("123 ma/年月日мая\u202fг."))
    given = [
        Written("1 ma 3", "en", "long", ""),
        Written("1/2", "en", "short", ""),
        Written("1年2月3日", "ja", "full", ""),
        Written("1 мая 23", "ru", "full", ""),
        Written("2 мая 23\u202fг.", "ru", "long", ""),
        Written("1 ma 2", "de", "full", ""),
    ]
    chosen = figures.worth_drawing(given)
    assert [each.language for each in chosen] == ["ru", "de", "ja"]
    assert "\u202f" in chosen[0].text


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--languages", "de", "xyz"], "unknown language 'xyz'"),
        (["--dates", "17. Mai 2024"], "--dates needs a language and a date"),
        (["--dates", "xx: 1.1.2000"], "unknown language 'xx'"),
        (["--resume"], "--resume needs an earlier run."),
        (["evaluate"], "Train a model of this --name first."),
        (["translate", "--language", "de", "1"], "Train a model of this --name first."),
        (["evaluate", "--name", "a/b"], "--name must be"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_mistakes_are_said_in_one_line(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train", "--language", "de"], "--language (applied to"),
        (["evaluate", "--languages", "de"], "--languages (applied to"),
        (["evaluate", "1.1.2000"], "Unrecognized options: 1.1.2000"),
        (["--compare-steps", "-1"], "--compare-steps must be at least 0 and finite. Got -1."),
        (["--examples", "0"], "--examples must be positive and finite. Got 0."),
        (["--steps", "0"], "--steps must be positive and finite. Got 0."),
        (["--beam", "0"], "--beam must be positive and finite. Got 0."),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_bad_values_are_refused_at_once(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    error = " ".join(capsys.readouterr().err.replace("│", "").split())  # the parser breaks lines
    assert message in error
    assert not list(tmp_path.iterdir())


def test_translate_needs_a_language_of_the_run(trained, capsys):
    for options, message in [
        ([], "translate needs --language. Known: de, ar, ru."),
        (["--language", "en"], "unknown language 'en'"),
    ]:
        assert main(trained, "translate", "1.1.2000", *options) == 2
        assert message in capsys.readouterr().err
