"""Word alignments as sets of links, and how far they are from what people marked.

A link is (source position, target position), both from 0. A person marks sure links S, and possible
ones P where the choice is open; S ⊆ P.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from attn_jax.checks import require

Links = AbstractSet[tuple[int, int]]


class AlignmentScore(NamedTuple):
    """Alignment error rate, precision and recall of a corpus's links, 0 to 1."""

    error_rate: float
    precision: float
    recall: float


def alignment_error_rate(
    predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> float:
    """AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|), over a corpus. (Och & Ney 2003, eq. 36.)

    >>> round(alignment_error_rate([{(0, 0), (1, 2)}], [{(0, 0)}], [{(1, 1)}]), 6)
    0.333333
    """
    return alignment_score(predicted, sure, possible).error_rate


def alignment_score(
    predicted: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None
) -> AlignmentScore:
    """Error rate, precision |A ∩ P| / |A|, recall |A ∩ S| / |S|. (Och & Ney 2003, section 6.1.)

    Sure links are possible, whether `possible` repeats them or not; None means that there are no
    others. Where nothing was predicted, or nothing was to be found, nothing is wrong: 0/0 is 1.

    >>> alignment_score([{(0, 0), (1, 2)}], [{(0, 0)}])
    AlignmentScore(error_rate=0.33333333333333337, precision=0.5, recall=1.0)
    """
    possible = [frozenset()] * len(sure) if possible is None else possible
    sizes = [len(predicted), len(sure), len(possible)]
    rule = "have one set of links for each sentence, as sure and possible have"
    require(len(set(sizes)) == 1, "predicted", rule, f"{sizes} sentences")
    found_sure = found_possible = links = expected = 0
    for a, s, p in zip(predicted, sure, possible, strict=True):
        found_sure += len(a & s)
        found_possible += len(a & (s | p))
        links, expected = links + len(a), expected + len(s)
    agreement = _share(found_sure + found_possible, links + expected)
    return AlignmentScore(
        1 - agreement, _share(found_possible, links), _share(found_sure, expected)
    )


def hard_alignment(
    weights: Float[ArrayLike, "t s"], *, threshold: float | None = None
) -> set[tuple[int, int]]:
    """The links of attention weights: each target token with the source token it attends to most.

    With a threshold instead: every link of at least this weight. A target token without weight (an
    empty row) has no link. Cut padding and end marks off before.

    >>> sorted(hard_alignment(np.array([[0.9, 0.1], [0.4, 0.6], [0.0, 0.0]])))
    [(0, 0), (1, 1)]
    >>> sorted(hard_alignment(np.array([[0.9, 0.1], [0.4, 0.6]]), threshold=0.4))
    [(0, 0), (0, 1), (1, 1)]
    """
    weights = np.asarray(weights)
    require(weights.ndim == 2, "weights", "have shape [t, s], of one sentence", weights)
    usable = bool(np.all(np.isfinite(weights)) and np.all(weights >= 0))
    require(usable, "weights", "be finite and not negative", weights)
    if threshold is None:
        best = weights == weights.max(axis=1, keepdims=True, initial=0)
        linked = best & (np.cumsum(best, axis=1) == 1) & (weights > 0)
    else:
        require(threshold > 0, "threshold", "be positive", threshold)
        linked = weights >= threshold
    return {(int(source), int(target)) for target, source in np.argwhere(linked)}


def merge_links(
    links: Iterable[tuple[int, int]],
    *,
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> set[tuple[int, int]]:
    """Links between words, where any of their tokens (subwords, characters) are linked.

    Args:
        links: Links between tokens.
        source_words: The word of each source token; None for what belongs to no word.
        target_words: The word of each target token.

    >>> merge_links({(0, 0), (1, 0), (2, 1)}, source_words=[0, 0, 1], target_words=[0, None])
    {(0, 0)}
    """
    merged = set()
    for link in links:
        inside = 0 <= link[0] < len(source_words) and 0 <= link[1] < len(target_words)
        rule = f"lie within {len(source_words)} source and {len(target_words)} target tokens"
        require(inside, "links", rule, repr(link))
        source, target = source_words[link[0]], target_words[link[1]]
        if source is not None and target is not None:
            merged.add((source, target))
    return merged


def merge_weights(
    weights: Float[ArrayLike, "t s"],
    *,
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> Float[np.ndarray, "target_words source_words"]:
    """Attention weights between words, from those of their tokens (subwords, characters).

    What a target token attends to in the tokens of a source word adds up; over the tokens of a
    target word it is averaged, so that rows that sum to one still do.

    Args:
        weights: The weights of the source tokens for each target token.
        source_words: The word of each source token, from 0; None for what belongs to no word.
        target_words: The word of each target token.

    >>> weights = np.array([[0.25, 0.25, 0.5], [0.75, 0.0, 0.25]])
    >>> merge_weights(weights, source_words=[0, 0, 1], target_words=[0, 0]).tolist()
    [[0.625, 0.375]]
    """
    weights = np.asarray(weights)
    shape = len(target_words), len(source_words)
    rule = f"have shape [t, s], here {list(shape)}, one row or column for each word of a token"
    require(weights.shape == shape, "weights", rule, weights)
    source, target = _membership(source_words), _membership(target_words)
    tokens = np.maximum(target.sum(axis=0), 1)
    return target.T @ weights @ source / tokens[:, None]


def _membership(words: Sequence[int | None]) -> Float[np.ndarray, "tokens words"]:
    """1 where a token belongs to a word."""
    numbers = np.array([-1 if word is None else word for word in words], int)
    return np.equal.outer(numbers, np.arange(numbers.max(initial=-1) + 1)).astype(float)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
