"""Alignments of given pairs, in one direction and in both, against gold links."""

from pathlib import Path

import numpy as np
import pytest

from attn_jax import metrics, text
from experiments.data import parallel_text as corpora
from experiments.data.parallel_text import NOTHING, Corpus, Lines
from experiments.harness.errors import UserError
from experiments.seq2seq import alignments, saved
from experiments.seq2seq.models import ModelOptions, build
from experiments.seq2seq.saved import Saved

LINES = Lines(["αβ γ", "γ", ""], ["c a", "a b c", "b"])
GOLD = (frozenset({(0, 1), (1, 0)}), frozenset({(0, 0)}), frozenset())
CORPUS = Corpus(LINES, NOTHING, NOTHING, ("Greek", "English"), (), GOLD)


def model_of(lines, seed):
    vocabularies = [text.Vocabulary.train(each, kind="character") for each in lines]
    options = ModelOptions(embedding=3, features=5)
    model = build(options, *map(len, vocabularies), seed=seed)
    return Saved(model, *vocabularies, {"model": {"score": "additive"}}, Path())


FORWARD, BACKWARD = model_of(LINES, 0), model_of((LINES.target, LINES.source), 1)


def test_weights_of_words():
    """Rows sum to what the source's words get; a line without words has no column."""
    tables = alignments.forced(FORWARD, LINES)
    assert [table.shape for table in tables] == [(2, 2), (3, 1), (1, 0)]
    assert all((table > 0).all() for table in tables)
    assert all((table.sum(1) <= 1 + 1e-6).all() for table in tables)


def test_both_directions_are_multiplied():
    rows = {row["aligner"]: row for row in alignments.errors(FORWARD, CORPUS, BACKWARD)}
    turned = Lines(LINES.target, LINES.source)
    forward, backward = alignments.forced(FORWARD, LINES), alignments.forced(BACKWARD, turned)
    both = [metrics.hard_alignment(a * b.T) for a, b in zip(forward, backward, strict=True)]
    expected = metrics.alignment_score(both, GOLD)
    assert rows["both directions"]["error_rate"] == expected.error_rate
    alone = metrics.alignment_score(list(map(metrics.hard_alignment, forward)), GOLD)
    assert rows["attention"]["error_rate"] == alone.error_rate
    assert list(rows) == ["attention", "attention, backward", "both directions", "IBM model 1"]
    assert len(alignments.errors(FORWARD, CORPUS)) == 2


def test_a_corpus_turned_has_its_links_turned():
    turned = corpora.turned(CORPUS)
    assert turned.train == Lines(LINES.target, LINES.source)
    assert turned.gold[0] == {(1, 0), (0, 1)}
    assert turned.gold[1] == {(0, 0)}
    assert (turned.names, corpora.turned(turned)) == (("English", "Greek"), CORPUS)


def test_only_the_other_direction_is_taken_for_it():
    saved.require_opposite(FORWARD.vocabularies, BACKWARD, "back")
    with pytest.raises(UserError, match=r"--backward needs a run of the other direction.*again"):
        saved.require_opposite(FORWARD.vocabularies, FORWARD, "again")


def test_weights_of_a_words_tokens():
    from experiments.seq2seq.words import word_weights

    weights = np.array([[0.2, 0.3, 0.5], [0.6, 0.0, 0.4]])
    table = word_weights(weights, [0, 0, 1], [0, 0])
    np.testing.assert_allclose(table, [[0.55, 0.45]])
