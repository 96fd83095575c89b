"""From the weights of tokens to the weights of words, which is what people read and mark."""

from collections.abc import Sequence

import numpy as np


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
