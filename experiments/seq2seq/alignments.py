"""Word alignments by attention: of a translation, and of given pairs, compared with gold links."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import metrics, text
from experiments.data.pairs import Pairs
from experiments.seq2seq import ibm_model_1
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.train import POSITIONS
from experiments.seq2seq.translator import Translation

Links = frozenset[tuple[int, int]]


def links(source: str, translation: Translation, vocabularies: tuple[Any, Any]) -> set:
    """Return links between the words of a line and of its translation."""
    if translation.weights is None or not (source.split() and translation.text.split()):
        return set()
    words = {
        "source_words": vocabularies[0].words(source)[: translation.weights.shape[1]],
        "target_words": vocabularies[1].words_of(translation.ids),
    }
    weights = translation.weights[: len(words["target_words"])]
    return metrics.hard_alignment(metrics.merge_weights(weights, **words))


def errors(
    loaded: Saved, lines: Pairs, gold: Sequence[Links], backward: Saved | None = None
) -> list[dict[str, Any]]:
    """Return AER, precision and recall on gold links: of attention, and of IBM model 1.

    `backward` is a model of the other direction. Its weights times the forward ones are large where
    both agree. (Liang et al. 2006, "Alignment by agreement", multiply posteriors so.)
    """
    tables = {"attention": forced(loaded, lines)}
    if backward is not None:
        tables["attention, backward"] = [each.T for each in forced(backward, lines.swapped())]
        pairs = zip(*tables.values(), strict=True)
        tables["both directions"] = [one * other for one, other in pairs]
    predicted = {name: list(map(metrics.hard_alignment, of)) for name, of in tables.items()}
    words = list(zip(*map(_word_ids, lines), strict=True))
    baseline = ibm_model_1.fit(words)
    predicted["IBM model 1"] = [baseline.align(pair) for pair in words]
    scores = {name: metrics.alignment_score(of, gold) for name, of in predicted.items()}
    return [{"aligner": name, **score._asdict()} for name, score in scores.items()]


def forced(loaded: Saved, lines: Pairs) -> list[np.ndarray]:
    """Return the weights [target words, source words] where the decoder is fed the target."""
    found = forced_weights(loaded.model, lines.encoded(*loaded.vocabularies))
    return merged(found, lines, loaded.vocabularies)


def merged(
    weights: Sequence[np.ndarray], lines: Pairs, vocabularies: Sequence[text.Vocabulary]
) -> list[np.ndarray]:
    """Return the weights [target words, source words] of weights [target ids, source ids]."""
    source, target = (
        [vocabulary.words(line) for line in side]
        for vocabulary, side in zip(vocabularies, lines, strict=True)
    )
    return [
        metrics.merge_weights(table, source_words=columns, target_words=rows)
        for table, columns, rows in zip(weights, source, target, strict=True)
    ]


def forced_weights(model: nnx.Module, pairs: Pairs) -> list[np.ndarray]:
    """Return the weights [target ids, memory] of encoded pairs; the decoder is fed the target."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def weights(state, source, source_length, target, target_length):
        merged = nnx.merge(graphdef, state)
        before = jnp.pad(target, [(0, 0), (1, 0)], constant_values=text.START)[:, :-1]
        return merged.decoder.weights(before, merged.encode(source, source_length))

    padded = text.padded_batches(*pairs, batch_positions=POSITIONS, buckets=8)
    found = text.in_order(padded, [np.asarray(weights(state, **each.batch)) for each in padded])
    return [
        table[: len(target), : model.memory_length(len(source))].copy()
        for table, source, target in zip(found, *pairs, strict=True)
    ]


def _word_ids(lines: Sequence[str]) -> list[list[int]]:
    """The words of each line as numbers."""
    known: dict[str, int] = {}
    return [[known.setdefault(word, len(known)) for word in line.split()] for line in lines]
