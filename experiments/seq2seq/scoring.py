"""Translations compared with their references: in one Unicode form, with one BLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_jax import metrics, text

PERFECT = 100.0


@dataclass(frozen=True)
class Scoring:
    """Scores of lines in the form of the vocabulary that wrote one side of them.

    A reference may be in another Unicode form, or have capitals that the vocabulary has not.
    """

    vocabulary: text.Vocabulary
    tokenize: str = "13a"

    def bleu(self, hypotheses: Sequence[str], references: Sequence[str]) -> Any:
        how = {"tokenize": self.tokenize, "lowercase": self.vocabulary.lowercase}
        return metrics.bleu(*self._normal(hypotheses, references), **how)

    def chrf(self, hypotheses: Sequence[str], references: Sequence[str]) -> Any:
        lines = self._normal(hypotheses, references)
        return metrics.chrf(*lines, lowercase=self.vocabulary.lowercase)

    def chrf_of_line(self, hypothesis: str, reference: str) -> float:
        """Return chrF of one line; nothing is nearer than what is the same, an empty line too."""
        if self.exact_match([hypothesis], [reference]):
            return PERFECT
        return self.chrf([hypothesis], [reference]).score

    def exact_match(self, hypotheses: Sequence[str], references: Sequence[str]) -> float:
        """Return the share of hypotheses that are their references."""
        return metrics.exact_match(*self._normal(hypotheses, references))

    def scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        """Return BLEU and chrF with their signatures, and exact match."""
        bleu, chrf = (score(hypotheses, references) for score in (self.bleu, self.chrf))
        return {
            "bleu": bleu.score,
            "chrf": chrf.score,
            "exact_match": self.exact_match(hypotheses, references),
            "bleu_signature": bleu.signature,
            "chrf_signature": chrf.signature,
        }

    def _normal(self, *sides: Sequence[str]) -> list[list[str]]:
        return [[self.vocabulary.normal(line) for line in side] for side in sides]
