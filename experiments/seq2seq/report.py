"""What translations are worth: score against length, the worst ones, links."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.data.parallel_text import Lines
from experiments.seq2seq.scoring import Scoring
from experiments.seq2seq.translator import Translation
from experiments.seq2seq.words import word_links

MOST_LENGTHS = 8  # groups of source lengths, of about equally many lines


class Lengths(NamedTuple):
    """How long each source line is."""

    unit: str
    counts: np.ndarray


def lengths_of(sources: Sequence[str], ids: Sequence[Sequence[int]]) -> Lengths:
    """Return lengths in words, or in tokens where most lines have no space to part words by.

    >>> lengths_of(["一二", "三"], [[5, 6], [7]]).unit
    'tokens'
    """
    words = np.array([len(line.split()) for line in sources])
    if np.median(words) > 1:
        return Lengths("words", words)
    return Lengths("tokens", np.array([len(each) for each in ids]))


def by_length(
    lengths: Lengths,
    hypotheses: Mapping[str, Sequence[str]],
    references: Sequence[str],
    scoring: Scoring,
) -> list[dict[str, Any]]:
    """Return each system's BLEU of lines of about one length. (Bahdanau et al. 2014, figure 2.)"""
    unit, counts = lengths
    edges = np.unique(np.quantile(counts, np.linspace(0, 1, MOST_LENGTHS + 1)).round().astype(int))
    groups = np.searchsorted(edges[1:-1], counts, "right")
    rows = []
    for group in np.unique(groups):
        chosen = np.flatnonzero(groups == group)
        row = {unit: float(counts[chosen].mean()), "lines": len(chosen)}
        for name, lines in hypotheses.items():
            pair = [lines[i] for i in chosen], [references[i] for i in chosen]
            row[name] = scoring.bleu(*pair).score
        rows.append(row)
    return rows


def worst(
    lines: Lines, hypotheses: Sequence[str], scoring: Scoring, *, count: int = 10
) -> list[dict[str, Any]]:
    """Return the lines of the lowest chrF, the worst first."""
    each = list(map(scoring.chrf_of_line, hypotheses, lines.target))
    return [
        {
            "line": int(i) + 1,
            "chrf": each[i],
            "source": lines.source[i],
            "translation": hypotheses[i],
            "reference": lines.target[i],
        }
        for i in np.argsort(each, kind="stable")[:count]
    ]


def translation_links(source: str, translation: Translation, vocabularies: tuple) -> set:
    """Return links between the words of a line and of its translation."""
    if translation.weights is None or not (source.split() and translation.text.split()):
        return set()
    target_words = vocabularies[1].words_of(translation.ids)
    source_words = vocabularies[0].words(source)[: translation.weights.shape[1]]
    return word_links(translation.weights[: len(target_words)], source_words, target_words)
