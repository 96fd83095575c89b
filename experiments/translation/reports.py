"""What translations are worth: scores, score against length, the worst ones, alignments."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.translation.corpora import Corpus, Lines
from experiments.translation.fits import Pairs
from experiments.translation.translator import Translation
from experiments.translation.words import word_links, words_of

MOST_LENGTHS = 8  # groups of source lengths, of about equally many lines


def scores(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> dict:
    """Return BLEU and chrF with their signatures, and exact match."""
    from attn_jax import metrics

    bleu = metrics.bleu(hypotheses, references, lowercase=lowercase)
    chrf = metrics.chrf(hypotheses, references, lowercase=lowercase)
    return {
        "bleu": bleu.score,
        "chrf": chrf.score,
        "exact_match": metrics.exact_match(list(hypotheses), list(references)),
        "bleu_signature": bleu.signature,
        "chrf_signature": chrf.signature,
    }


def by_length(
    sources: Sequence[str],
    hypotheses: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    lowercase: bool,
) -> list[dict[str, Any]]:
    """Return each system's BLEU of lines of about one length. (Bahdanau et al. 2014, figure 2.)"""
    from attn_jax import metrics

    words = np.array([len(line.split()) for line in sources])
    edges = np.unique(np.quantile(words, np.linspace(0, 1, MOST_LENGTHS + 1)).round().astype(int))
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (words >= low) & (words < high) if high < edges[-1] else words >= low
        chosen = np.flatnonzero(inside)
        if not len(chosen):
            continue
        row = {"words": float(words[chosen].mean()), "lines": len(chosen)}
        for name, lines in hypotheses.items():
            pair = [lines[i] for i in chosen], [references[i] for i in chosen]
            row[name] = metrics.bleu(*pair, lowercase=lowercase).score
        rows.append(row)
    return rows


def worst(
    lines: Lines, hypotheses: Sequence[str], *, lowercase: bool, count: int = 10
) -> list[dict[str, Any]]:
    """Return the lines of the lowest chrF, the worst first."""
    from attn_jax import metrics

    each = [
        metrics.chrf([hypothesis], [reference], lowercase=lowercase).score
        for hypothesis, reference in zip(hypotheses, lines.target, strict=True)
    ]
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
    if translation.weights is None:
        return set()
    pieces = [vocabularies[1].token(i) for i in translation.ids]
    target = words_of(pieces, translation.text)
    source_words = words_of(vocabularies[0].tokens(source), source)
    return word_links(translation.weights[: len(target)], source_words, target)


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

    padded = text.padded_batches(pairs.sources, pairs.targets, buckets=8)
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
        source_words = words_of(vocabularies[0].tokens(source), source)
        target_words = words_of(vocabularies[1].tokens(target), target)
        links.append(word_links(table[: len(written), : len(ids)], source_words, target_words))
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
