"""From the weights of tokens to links between words, which is what people read and mark."""

from collections.abc import Sequence

import numpy as np

Links = set[tuple[int, int]]


def word_links(weights: np.ndarray, source: Sequence[int], target: Sequence[int]) -> Links:
    """Return links between words: each target word with the source word it attends to most.

    The arguments are those of `word_weights`.
    """
    from attn_jax import metrics

    if not len(source) or not len(target):
        return set()
    return metrics.hard_alignment(word_weights(weights, source, target))


def word_weights(weights: np.ndarray, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Return the weights of words [target words, source words].

    Weights of a word's tokens add up on the source's side, and are averaged on the target's.

    Args:
      weights: [target tokens, source tokens].
      source: the word of each source token.
      target: the word of each target token.
    """
    from attn_jax import metrics

    return metrics.merge_weights(weights, source_words=source, target_words=target)
