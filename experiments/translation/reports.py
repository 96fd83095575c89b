"""What translations are worth: score against length, the worst ones, alignments."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.translation.corpora import Corpus, Lines
from experiments.translation.fits import POSITIONS, Pairs
from experiments.translation.scoring import Scoring
from experiments.translation.translator import Translation
from experiments.translation.words import word_links

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


def forced_links(model: Any, lines: Lines, pairs: Pairs, vocabularies: tuple) -> list[set]:
    """Return links between the words of given pairs: the decoder is fed the target. (Forced.)"""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from attn_jax import text

    graphdef, state = nnx.split(model)

    @jax.jit
    def weights(state, source, length, target):
        merged = nnx.merge(graphdef, state)
        before = jnp.pad(target, [(0, 0), (1, 0)], constant_values=text.START)[:, :-1]
        return merged.decoder.weights(before, merged.encode(source, length))

    padded = text.padded_batches(*pairs, batch_positions=POSITIONS, buckets=8)
    found = text.in_order(
        padded,
        [
            np.asarray(
                weights(state, b.batch["source"], b.batch["source_length"], b.batch["target"])
            )
            for b in padded
        ],
    )
    links = []
    for table, source, target, ids, written in zip(
        found, *lines, pairs.sources, pairs.targets, strict=True
    ):
        words = vocabularies[0].words(source), vocabularies[1].words(target)
        links.append(word_links(table[: len(written), : len(ids)], *words))
    return links


def alignment_errors(model: Any, corpus: Corpus, pairs: Pairs, vocabularies: tuple) -> list[dict]:
    """Return AER, precision and recall of attention and of IBM model 1 on gold links."""
    from attn_jax import metrics
    from experiments import ibm_model_1

    predicted = {"attention": forced_links(model, corpus.train, pairs, vocabularies)}
    words = _word_ids(corpus.train)
    baseline = ibm_model_1.fit(words)
    predicted["IBM model 1"] = [baseline.align(pair) for pair in words]
    rows = []
    for name, links in predicted.items():
        score = metrics.alignment_score(links, corpus.gold)
        rows.append({"aligner": name, **score._asdict()})
    return rows


def _word_ids(lines: Lines) -> list[tuple[list[int], list[int]]]:
    """Return the words of each pair as numbers."""
    known: tuple[dict, dict] = ({}, {})
    return [
        tuple(
            [table.setdefault(word, len(table)) for word in line.split()]
            for table, line in zip(known, pair, strict=True)
        )
        for pair in zip(*lines, strict=True)
    ]
