"""Alignments of given pairs, in one direction and in both, against gold links."""

from pathlib import Path

import numpy as np
import pytest

from attn_jax import metrics, text
from experiments.data.pairs import NOTHING, Pairs
from experiments.data.parallel_text import Corpus
from experiments.harness.errors import UserError
from experiments.machine_translation.options import Evaluate
from experiments.machine_translation.report import load_others
from experiments.seq2seq import alignments, saved
from experiments.seq2seq.models import build
from experiments.seq2seq.options import ModelOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation

LINES = Pairs(["αβ γ", "γ", ""], ["c a", "a b c", "b"])
GOLD = (frozenset({(0, 1), (1, 0)}), frozenset({(0, 0)}), frozenset())
CORPUS = Corpus(LINES, NOTHING, NOTHING, ("Greek", "English"), (), GOLD)


def model_of(lines, seed):
    vocabularies = [text.Vocabulary.train(each, kind="character") for each in lines]
    options = ModelOptions(embedding=3, features=5)
    model = build(options, *map(len, vocabularies), seed=seed)
    return Saved(model, *vocabularies, {}, Path(), options)


FORWARD, BACKWARD = model_of(LINES, 0), model_of(LINES.swapped(), 1)
RUNS = {"back": BACKWARD, "again": FORWARD}


def test_weights_of_words():
    """Rows sum to what the source's words get; a line without words has no column."""
    tables = alignments.forced(FORWARD, LINES)
    assert [table.shape for table in tables] == [(2, 2), (3, 1), (1, 0)]
    assert all((table > 0).all() for table in tables)
    assert all((table.sum(1) <= 1 + 1e-6).all() for table in tables)


def test_both_directions_are_multiplied():
    rows = {row["aligner"]: row for row in alignments.errors(FORWARD, LINES, GOLD, BACKWARD)}
    forward = alignments.forced(FORWARD, LINES)
    backward = alignments.forced(BACKWARD, LINES.swapped())
    both = [metrics.hard_alignment(a * b.T) for a, b in zip(forward, backward, strict=True)]
    expected = metrics.alignment_score(both, GOLD)
    assert rows["both directions"]["error_rate"] == expected.error_rate
    alone = metrics.alignment_score(list(map(metrics.hard_alignment, forward)), GOLD)
    assert rows["attention"]["error_rate"] == alone.error_rate
    assert list(rows) == ["attention", "attention, backward", "both directions", "IBM model 1"]
    assert len(alignments.errors(FORWARD, LINES, GOLD)) == 2


def test_a_corpus_of_the_other_direction_has_its_links_swapped():
    swapped = CORPUS.swapped()
    assert swapped.train == Pairs(LINES.target, LINES.source)
    assert swapped.gold[0] == {(1, 0), (0, 1)}
    assert swapped.gold[1] == {(0, 0)}
    assert (swapped.names, swapped.swapped()) == (("English", "Greek"), CORPUS)


def test_only_the_other_direction_is_taken_for_it(monkeypatch):
    monkeypatch.setattr(saved, "load", lambda directory, **_: RUNS[directory.name])
    options = Evaluate(backward="back")
    assert load_others(options, FORWARD.vocabularies, CORPUS).backward is BACKWARD
    options = Evaluate(backward="again")
    with pytest.raises(UserError, match=r"--backward needs a run of the other direction.*again"):
        load_others(options, FORWARD.vocabularies, CORPUS)


def test_links_of_a_translation_are_between_words():
    """The source was cut, and capitals lost; the end's row is nobody's."""
    source = text.Vocabulary.train(["a b cd"], kind="character", lowercase=True)
    target = text.Vocabulary.train(["xy, z"])
    ids = target.encode("xy, z")
    weights = np.eye(4, 5)[[0, 0, 2, 1]]
    translation = Translation("xy, z", ids, 0.0, True, weights)
    links = alignments.links("A B CD", translation, (source, target))
    assert links == {(0, 0), (1, 1)}
    assert alignments.links("  ", translation, (source, target)) == set()
