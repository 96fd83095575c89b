"""BLEU and chrF by sacrebleu, on detokenized text, with the signature that makes them comparable.

Both are of a whole corpus, 0 to 100. Quote the signature beside the score: scores with other
signatures do not compare. (Post 2018.)
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from attn_jax.checks import require

TOKENIZERS = ("13a", "intl", "char", "zh", "none")
"""Those of sacrebleu's tokenizers that need no download."""

Lines = Sequence[str]
References = Sequence[str] | Sequence[Sequence[str]]


class Score(NamedTuple):
    """A score of a corpus, sacrebleu's signature of how it was computed, and its line of text."""

    score: float
    signature: str
    text: str


def bleu(
    hypotheses: Lines, references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> Score:
    """BLEU of detokenized lines. (Papineni et al. 2002; Post 2018.)

    Args:
        hypotheses: One line each.
        references: One line for each hypothesis, or a list of several lines for each.
        tokenize: "13a" (the WMT standard), "intl", "char", "zh" (Chinese), or "none" for lines
            whose tokens are separated by spaces already.
        lowercase: Compare without case.

    >>> score = bleu(["the cat sat on the mat."], ["the cat sat on the mat."])
    >>> round(score.score, 1), score.signature.split("|")[3]
    (100.0, 'tok:13a')
    """
    known = f"be one of {', '.join(TOKENIZERS)}"
    require(tokenize in TOKENIZERS, "tokenize", known, repr(tokenize))
    from sacrebleu.metrics import BLEU  # only who scores text needs it

    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    return _score(metric, hypotheses, references)


def chrf(
    hypotheses: Lines, references: References, *, word_order: int = 0, lowercase: bool = False
) -> Score:
    """F score of character n-grams up to 6; `word_order=2` is chrF++. (Popović 2015, 2017.)

    >>> round(chrf(["the cat"], ["the cat"]).score, 1)
    100.0
    """
    require(word_order >= 0, "word_order", "not be negative", word_order)
    from sacrebleu.metrics import CHRF

    return _score(CHRF(word_order=word_order, lowercase=lowercase), hypotheses, references)


def token_bleu(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]
) -> Score:
    """BLEU of sequences of tokens (integers or strings), which are compared as they are.

    >>> round(token_bleu([[7, 3, 3, 5, 1]], [[7, 3, 3, 5, 1]]).score, 1)
    100.0
    """
    return bleu(_joined(hypotheses), _joined(references), tokenize="none")


def _joined(sequences: Sequence[Sequence[Hashable]]) -> list[str]:
    lines = []
    for sequence in sequences:
        tokens = [str(token) for token in sequence]
        spaced = [token for token in tokens if len(token.split()) != 1]
        require(not spaced, "tokens", "not be empty or hold spaces", repr(spaced[:1]))
        lines.append(" ".join(tokens))
    return lines


def _score(metric: Any, hypotheses: Lines, references: References) -> Score:
    _require_lines(hypotheses, "hypotheses")
    require(not isinstance(references, str), "references", "be a list", repr(references))
    got = f"{len(hypotheses)} hypotheses, {len(references)} references"
    rule = "be one for each hypothesis (a line, or a list of lines)"
    require(len(references) == len(hypotheses), "references", rule, got)
    several = [[lines] if isinstance(lines, str) else list(lines) for lines in references]
    for lines in several:
        _require_lines(lines, "references")
    most = max(len(lines) for lines in several)
    # sacrebleu wants the first reference of all, then the second, …; None where one has fewer
    streams = [[lines[i] if i < len(lines) else None for lines in several] for i in range(most)]
    result = metric.corpus_score(list(hypotheses), streams)
    return Score(float(result.score), metric.get_signature().format(), str(result))


def _require_lines(lines: Lines, argument: str) -> None:
    proper = not isinstance(lines, str) and all(isinstance(line, str) for line in lines)
    require(proper, argument, "be a list of strings", repr(lines)[:60])
    require(len(lines) > 0, argument, "not be empty", "0 lines")
