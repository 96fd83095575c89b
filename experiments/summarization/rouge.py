"""ROUGE of summaries (Lin 2004), what was copied, and the baseline of the first words."""

from collections.abc import Sequence

import numpy as np

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeL"}


def rouge(summaries: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L, in per cent, of `rouge-score`.

    >>> rouge(["the cat sat"], ["the cat sat"])["rougeL"]
    100.0
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(NAMES), use_stemmer=True)
    found = [scorer.score(r, s) for s, r in zip(summaries, references, strict=True)]
    return {name: 100 * float(np.mean([each[name].fmeasure for each in found])) for name in NAMES}


def first_words(texts: Sequence[str], references: Sequence[str]) -> list[str]:
    """Return as many first words of each text as its reference has: the baseline.

    >>> first_words(["a b c d"], ["x y"])
    ['a b']
    """
    pairs = zip(texts, references, strict=True)
    return [" ".join(text.split()[: len(reference.split())]) for text, reference in pairs]


def in_text(summaries: Sequence[str], texts: Sequence[str]) -> float:
    """Return the share of the summaries' words that their texts hold.

    >>> in_text(["a b", "c"], ["a", "c d"])
    0.6666666666666666
    """
    held = [
        word in set(text.split())
        for summary, text in zip(summaries, texts, strict=True)
        for word in summary.split()
    ]
    return float(np.mean(held)) if held else 0.0


def unknown_words(
    summaries: Sequence[str], references: Sequence[str], lacking: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Return how many words of the references the vocabulary lacks and the text has.

    And how many of these the summaries hold.

    >>> unknown_words(["the zebra"], ["a zebra and a gnu"], [["zebra", "gnu"]])
    {'unknown_words': 2, 'unknown_words_right': 1}
    """
    wanted = right = 0
    for summary, reference, pieces in zip(summaries, references, lacking, strict=True):
        there = set(pieces) & set(reference.split())
        wanted += len(there)
        right += len(there & set(summary.split()))
    return {"unknown_words": wanted, "unknown_words_right": right}
