"""Losses and scores of sequence models: cross-entropy, exact match, BLEU, chrF, alignment error.

`cross_entropy`, `mean_cross_entropy` and `linear_cross_entropy` are to be trained on: pure, jitted,
differentiable to any order; `doubly_stochastic` and `coverage` are penalties on weights.
`token_accuracy` and `exact_matches` count on arrays, inside `jax.jit` as well. The others take what
a person reads, strings and sets of links, or lists of arrays, and compute in Python.
"""

from attn_jax.metrics.accuracy import exact_match, exact_matches, token_accuracy
from attn_jax.metrics.alignments import (
    AlignmentScore,
    Links,
    alignment_error_rate,
    alignment_score,
    hard_alignment,
    merge_links,
    merge_weights,
)
from attn_jax.metrics.linear_losses import linear_cross_entropy
from attn_jax.metrics.losses import cross_entropy, mean_cross_entropy, perplexity
from attn_jax.metrics.penalties import coverage, doubly_stochastic
from attn_jax.metrics.pharaoh import Alignment, from_pharaoh, read_pharaoh, to_pharaoh
from attn_jax.metrics.pointing import Pointing, pointing
from attn_jax.metrics.symmetrization import symmetrize
from attn_jax.metrics.text import Score, bleu, chrf, token_bleu

__all__ = [
    "Alignment",
    "AlignmentScore",
    "Links",
    "Pointing",
    "Score",
    "alignment_error_rate",
    "alignment_score",
    "bleu",
    "chrf",
    "coverage",
    "cross_entropy",
    "doubly_stochastic",
    "exact_match",
    "exact_matches",
    "from_pharaoh",
    "hard_alignment",
    "linear_cross_entropy",
    "mean_cross_entropy",
    "merge_links",
    "merge_weights",
    "perplexity",
    "pointing",
    "read_pharaoh",
    "symmetrize",
    "to_pharaoh",
    "token_accuracy",
    "token_bleu",
]
