"""Word alignments that attention finds in given pairs of lines, held against gold links."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.data.parallel_text import Corpus, Lines, encoded
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.train import POSITIONS
from experiments.seq2seq.words import word_weights


def errors(loaded: Saved, corpus: Corpus, backward: Saved | None = None) -> list[dict[str, Any]]:
    """Return AER, precision and recall on gold links: of attention, and of IBM model 1.

    `backward` is a model of the other direction. Its weights times the forward ones are where both
    agree. (Liang et al. 2006, "Alignment by agreement", multiply posteriors so.)
    """
    from attn_jax import metrics
    from experiments.seq2seq import ibm_model_1

    tables = {"attention": forced(loaded, corpus.train)}
    if backward is not None:
        turned = Lines(corpus.train.target, corpus.train.source)
        tables["attention, backward"] = [each.T for each in forced(backward, turned)]
        pairs = zip(*tables.values(), strict=True)
        tables["both directions"] = [one * other for one, other in pairs]
    predicted = {name: list(map(metrics.hard_alignment, of)) for name, of in tables.items()}
    words = _word_ids(corpus.train)
    baseline = ibm_model_1.fit(words)
    predicted["IBM model 1"] = [baseline.align(pair) for pair in words]
    scores = {name: metrics.alignment_score(of, corpus.gold) for name, of in predicted.items()}
    return [{"aligner": name, **score._asdict()} for name, score in scores.items()]


def forced(loaded: Saved, lines: Lines) -> list[np.ndarray]:
    """Return the weights [target words, source words] where the decoder is fed the target."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from attn_jax import text

    graphdef, state = nnx.split(loaded.model)
    pairs = encoded(lines, loaded.source, loaded.target)

    @jax.jit
    def weights(state, source, length, target):
        merged = nnx.merge(graphdef, state)
        before = jnp.pad(target, [(0, 0), (1, 0)], constant_values=text.START)[:, :-1]
        return merged.decoder.weights(before, merged.encode(source, length))

    padded = text.padded_batches(*pairs, batch_positions=POSITIONS, buckets=8)
    names = ("source", "source_length", "target")
    found = [np.asarray(weights(state, *(each.batch[name] for name in names))) for each in padded]
    tables = []
    for table, source, target, ids, written in zip(
        text.in_order(padded, found), *lines, pairs.sources, pairs.targets, strict=True
    ):
        words = loaded.source.words(source), loaded.target.words(target)
        tables.append(word_weights(table[: len(written), : len(ids)], *words))
    return tables


def _word_ids(lines: Lines) -> Sequence[tuple[list[int], list[int]]]:
    """Return the words of each pair as numbers."""
    known: tuple[dict, dict] = ({}, {})
    return [
        tuple(
            [table.setdefault(word, len(table)) for word in line.split()]
            for table, line in zip(known, pair, strict=True)
        )
        for pair in zip(*lines, strict=True)
    ]
