"""What is told of translations: scores, by length, the worst, pictures, files beside."""

from pathlib import Path

import numpy as np
import pytest

from attn_jax import text
from experiments.data.pairs import Pairs
from experiments.harness import glyphs
from experiments.harness.errors import UserError
from experiments.machine_translation import report as reports
from experiments.seq2seq import figures, output
from experiments.seq2seq.scoring import Scoring
from experiments.seq2seq.translator import Translation

PLAIN = Scoring(text.Vocabulary.train(["a"]))
WITHOUT_CAPITALS = Scoring(text.Vocabulary.train(["a"], lowercase=True))

# Scores


def test_score_by_length_counts_each_line_once():
    sources = ["a " * n for n in (1, 2, 2, 3, 5, 8, 9, 20)]
    systems = {"copy": sources, "nothing": [""] * 8, "capitals": [s.upper() for s in sources]}
    lengths = reports.lengths_of(sources, sources)
    rows = reports.by_length(lengths, systems, sources, WITHOUT_CAPITALS)
    assert sum(row["lines"] for row in rows) == 8
    assert [row["words"] for row in rows] == sorted(row["words"] for row in rows)
    assert len(rows) > 4
    assert all(row["nothing"] == 0 for row in rows)
    assert all(row["copy"] == row["capitals"] for row in rows)


def test_lines_of_one_length_are_one_group():
    lines = ["a b c d", "e f g h"]
    (row,) = reports.by_length(reports.lengths_of(lines, [[]] * 2), {"it": lines}, lines, PLAIN)
    assert row == {"words": 4, "lines": 2, "it": pytest.approx(100)}


def test_lines_without_spaces_are_as_long_as_their_tokens():
    lines = ["一二三", "一", "二", "三 四", "四五"]
    unit, counts = reports.lengths_of(lines, [[5] * len(line) for line in lines])
    assert (unit, counts.tolist()) == ("tokens", [3, 1, 1, 3, 2])
    assert reports.lengths_of(["a b", "c d e", "f"], [[]] * 3)[1].tolist() == [2, 3, 1]


def test_scores_compare_in_the_vocabularys_form():
    """A decomposed reference, with capitals, is what a model can only write otherwise."""
    line, reference = "été à la plage", "E\u0301te\u0301 À LA PLAGE"
    numbers = WITHOUT_CAPITALS.scores([line], [reference])
    assert numbers["exact_match"] == 1
    assert (numbers["bleu"], numbers["chrf"]) == (pytest.approx(100), pytest.approx(100))
    assert "case:lc" in numbers["bleu_signature"]
    assert PLAIN.scores([line], [reference])["exact_match"] == 0
    assert PLAIN.scores(["É"], ["E\u0301"])["exact_match"] == 1


def test_bleu_parts_lines_by_its_option():
    lines = ["一二三四五"], ["一二三四六"]
    by_character = Scoring(PLAIN.vocabulary, "char").scores(*lines)
    assert "tok:char" in by_character["bleu_signature"]
    assert by_character["bleu"] > 40 > PLAIN.scores(*lines)["bleu"]


def test_worst_lines_come_first():
    lines = Pairs(["x", "y", "z"], ["one two", "three four", "five six"])
    bad = reports.worst(lines, ["one two", "###", "five sox"], PLAIN, count=2)
    assert [each["line"] for each in bad] == [2, 3]
    assert bad[0] | {"chrf": 0} == {
        "line": 2,
        "chrf": 0,
        "source": "y",
        "translation": "###",
        "reference": "three four",
    }


def test_nothing_is_better_than_what_is_the_same():
    """Not even an empty line, which has no n-grams to count."""
    bad = reports.worst(Pairs(["", "y"], ["", "abc"]), ["", "abx"], PLAIN)
    assert [(each["line"], each["chrf"] == 100) for each in bad] == [(2, False), (1, True)]


# Pictures


def test_characters_without_a_font_show_their_codes(monkeypatch, capsys):
    monkeypatch.setattr(glyphs, "drawable", lambda: frozenset("abc▁<end>"))
    vocabularies = [text.Vocabulary.train(["ab 漢字"], kind="bpe", min_frequency=2) for _ in "st"]
    ids = vocabularies[1].encode("ab")
    weights = np.ones((len(ids) + 1, 4)) / 4
    found = Translation("ab", ids, 0.0, True, weights)
    figure = figures.heat_map("漢字 ab", found, vocabularies, ("source", "target"))
    shown = [each.get_text() for each in figure.axes[0].get_xticklabels()]
    assert shown[:3] == ["▁", "6F22", "5B57"]
    assert len(shown) == 4  # the source was cut
    glyphs.say_missing(["漢字", "a漢", "b\u200f"])
    assert capsys.readouterr().err.count("\n") == 1


# Files beside the output


def test_files_are_checked_beforehand(tmp_path):
    assert output.picture(tmp_path / "it") == tmp_path / "it.png"
    assert output.picture(tmp_path / "it.SVG") == tmp_path / "it.SVG"
    assert output.picture(None) is output.writable(None, "--alignments") is None
    for wrong, got in ((tmp_path / "it.doc", r"'\.doc'"), (Path(), "''")):
        with pytest.raises(UserError, match=rf"--plot needs a suffix of .*png.* Got {got}"):
            output.picture(wrong)
    with pytest.raises(UserError, match=r"--alignments needs a file\. Got the directory"):
        output.writable(tmp_path, "--alignments")
    with pytest.raises(UserError, match="in a directory that exists"):
        output.picture(tmp_path / "none" / "it.png")
    assert not list(tmp_path.iterdir())


def test_links_are_there_as_soon_as_they_are_found(tmp_path):
    vocabularies = [text.Vocabulary.train(["a b"])] * 2
    nothing = Translation("", [], 0.0, True, None)
    with output.opened(tmp_path / "links") as stream:
        output.write_links(stream, "a", [nothing, nothing], vocabularies)
        assert (tmp_path / "links").read_bytes() == b"\n\n"
    with output.opened(None) as stream:
        assert stream is None
