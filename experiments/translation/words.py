"""Which word of a line each of its tokens belongs to: alignments are read in words."""

from collections.abc import Sequence

import numpy as np

Links = set[tuple[int, int]]


def words_of(pieces: Sequence[str], line: str) -> list[int]:
    """Return the place of the word, parted by white space, that each piece stands in.

    A piece is looked for from where the one before it ends up to the next word's beginning; one
    that is not there as it is written (an unknown one) stands in the word that goes on there.

    >>> words_of(["▁don", "'", "t", "▁go", "!"], "don't go!")
    [0, 0, 0, 1, 1]
    """
    starts = np.array([i for i, c in enumerate(line) if not c.isspace() and _begins(line, i)])
    words, here = [], 0
    for piece in pieces:
        surface = piece.strip("▁␣") or piece
        while here < len(line) and line[here].isspace():
            here += 1
        found = line.find(surface, here)
        after = starts[starts > here]
        near = found if 0 <= found <= (after[0] if len(after) else len(line)) else here
        words.append(max(int(np.searchsorted(starts, near, "right")) - 1, 0))
        here = near + len(surface)
    return words


def _begins(line: str, place: int) -> bool:
    return place == 0 or line[place - 1].isspace()


def word_links(weights: np.ndarray, source: Sequence[int], target: Sequence[int]) -> Links:
    """Return links between words: each target word with the source word it attends to most.

    Weights of a word's tokens add up on the source's side, and are averaged on the target's.

    Args:
      weights: [target tokens, source tokens].
      source: the word of each source token.
      target: the word of each target token.
    """
    from attn_jax import metrics

    if not len(source) or not len(target):
        return set()
    columns = np.zeros((weights.shape[0], max(source) + 1))
    np.add.at(columns.T, np.asarray(source), weights.T)
    table = np.zeros((max(target) + 1, columns.shape[1]))
    np.add.at(table, np.asarray(target), columns)
    table /= np.maximum(np.bincount(target, minlength=len(table)), 1)[:, None]
    return metrics.hard_alignment(table)
