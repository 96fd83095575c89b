"""Where attention looks: gold regions of dates and of linked words, the table of a tiny run."""

import datetime
import json
import unicodedata

import numpy as np
import pytest

from attn_jax import text
from experiments import cli
from experiments.attention_truth import Grid, report, tasks
from experiments.data import bible_alignments, dates
from experiments.seq2seq import models
from experiments.seq2seq.translator import Translation
from experiments.speech_recognition import data as sound


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    argv = ["attention-truth", "--smoke", "--steps", "2", "--output-dir", str(directory)]
    assert cli.main(argv) == 0
    return directory / "attention-truth" / "default"


def test_fields_of_a_date_are_what_changes_with_it():
    """In every language and format: numbers of the field, or the month's name, stand there."""
    day = datetime.date(1987, 11, 26)
    for language in dates.LANGUAGES:
        for form in dates.FORMATS:
            written = unicodedata.normalize("NFC", dates.write(day, language, form).text)
            found = dates.fields(day, language, form)
            assert set(found) == {"year", "month", "day"}
            (start, end) = found["day"]
            assert unicodedata.decimal(written[start]) == 2, (language, form, written)
            assert end - start == 2
            for name, other in (("year", {"year": 1992}), ("month", {"month": 3})):
                changed = dates.fields(day.replace(**other), language, form)[name]
                again = unicodedata.normalize(
                    "NFC", dates.write(day.replace(**other), language, form).text
                )
                start, end = found[name]
                assert written[start:end] != again[slice(*changed)]
                assert written[:start].split(" ")[-1:] == again[: changed[0]].split(" ")[-1:]


def test_digits_look_at_their_field_behind_the_language():
    each = dates.write(datetime.date(2024, 5, 17), "en", "short")  # 5/17/24
    regions = tasks.date_regions(each, 8)
    for rows, columns in (((0, 1, 2, 3), (6, 7)), ((5, 6), (1,)), ((8, 9), (3, 4))):
        for row in rows:
            assert np.flatnonzero(regions[row]).tolist() == list(columns)
    assert not regions[[4, 7]].any()


def test_pieces_look_at_the_pieces_of_linked_words():
    both = [text.Vocabulary.train([line], kind="character") for line in ("ab c", "d ef")]
    regions = tasks.word_regions(both, "ab c", "d ef", frozenset({(0, 1)}))  # "ab" and "ef"
    source, target = (np.array(v.words(s)) for v, s in zip(both, ("ab c", "d ef"), strict=True))
    np.testing.assert_array_equal(regions, (target == 1)[:, None] & (source == 0)[None])


def test_a_run_compares_each_model_with_its_twin(ran, capsys):
    metrics = json.loads((ran / "metrics.json").read_text())
    table = {row["model"]: row for row in metrics["table"]}
    assert list(table) == ["additive × softmax", "additive × sparsemax", "no attention"]
    assert "hit" not in table["no attention"]
    for row in list(table.values())[:2]:
        assert 0 < row["chance"] < 0.5
        assert all(0 <= row[name] <= 1 for name in ("hit", "mass", "zeros"))
    assert table["additive × softmax"]["zeros"] == 0 < table["additive × sparsemax"]["zeros"]
    assert (ran / "figures" / "attention_truth.png").stat().st_size > 10_000


def test_what_is_done_is_not_done_again(ran, capsys):
    before = json.loads((ran / "metrics.json").read_text())["rows"]
    argv = ["attention-truth", "--smoke", "--steps", "2", "--output-dir", str(ran.parent.parent)]
    assert cli.main([*argv, "--resume"]) == 0
    assert "model 1 of" not in capsys.readouterr().out
    assert json.loads((ran / "metrics.json").read_text())["rows"] == before


def test_letters_of_a_sound_look_at_its_time():
    truth = tasks.of_sounds(sound.beeps(), small=True)

    class Model:
        @staticmethod
        def memory_length(length):
            return -(-length // 4)

    for region, source, target in zip(truth.gold(Model), *truth.test, strict=True):
        assert region.shape == (len(target), -(-len(source) // 4))
        assert region.any()
    assert truth.score([Translation(u, [], 0.0, True, None) for u in ["a"] * 4]) > 0


def test_means_and_spread_over_seeds():
    rows = [
        {"task": "t", "model": "m", "seed": seed, "score": score, "hit": hit, "steps": 9}
        for seed, (score, hit) in enumerate([(1.0, 0.5), (3.0, 0.7)])
    ]
    (row,) = report.summary(rows, ["t"])
    assert (row["score"], row["score_deviation"], row["seeds"]) == (2.0, 1.0, 2)
    assert row["hit"] == pytest.approx(0.6)


def test_greek_words_are_cut_to_what_is_linked(monkeypatch):
    """Tiny verses: regions have the shape of the encoded pairs, and all links a place."""
    verses = [
        bible_alignments.Verse(("λόγος", "θεός"), ("The", "word", "God"), frozenset({(0, 1)}))
        for _ in range(40)
    ]
    monkeypatch.setattr(bible_alignments, "load", lambda _: verses)
    truth = tasks.of_greek(tasks.Grid(), small=True)
    gold = truth.gold(None)
    for region, source, target in zip(gold, *truth.test, strict=True):
        assert region.shape == (len(target), len(source))
        assert region.any()
    right = [region.astype(float) for region in gold]
    assert truth.error(right) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--scores", "dot", "dot"), "--scores needs one or several, each once"),
        (("--tasks", "digits"), "--tasks digits needs --recordings"),
        (("--recordings", "x"), "--recordings that task"),
    ],
)
def test_mistakes_are_one_line(options, told, tmp_path, capsys):
    assert cli.main(["attention-truth", *options, "--output-dir", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_in_a_caption_look_at_their_boxes():
    truth = tasks.of_captions(Grid(), small=True)
    model = models.build(truth.model, *truth.task.sizes)
    gold = truth.gold(model)
    assert [each.shape for each in gold] == [(len(ids), 256) for ids in truth.test.target]
    named = [each.any(axis=1).sum() for each in gold]
    assert all(2 <= count <= 12 for count in named)
    texts = list(map(truth.task.target.decode, truth.test.target))
    known = 100 * np.mean(["⁇" not in each for each in texts])  # words that the training has
    assert truth.score([Translation(each, [], 0.0, True, None) for each in texts]) == known
