"""A text against its summary: the weights, and how much of each word was copied."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.figure import Figure

from attn_jax import plots, text
from attn_jax.matmul import affine
from attn_jax.plots.explore import Page
from experiments.harness.glyphs import label, say_missing
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation

MOST = 45  # words of a text that is drawn


def draw(
    loaded: Saved, texts: Sequence[str], found: Sequence[Translation], most: int
) -> Iterator[Figure]:
    """Yield the pictures of some summaries, those that copy what the vocabulary lacks first."""
    size = len(loaded.target)
    pairs = [
        each
        for each in zip(texts, found, strict=True)
        if each[1].weights is not None and 2 < each[1].weights.shape[1] <= MOST and each[1].ids
    ]
    pairs.sort(key=lambda pair: -sum(i >= size for i in pair[1].ids))
    say_missing([each for line, best in pairs[:most] for each in (line, best.text)])
    for line, best in pairs[:most]:
        yield summary(loaded, line, best)


def summary(loaded: Saved, line: str, best: Translation) -> Figure:
    """Draw the weights of each word of a summary (down) over those of its text (across).

    A word is marked with the share of its probability that is copying's, from a half on: ●.
    """
    words, keys = words_of(loaded, line, best)
    return plots.attention_heatmap(
        best.weights,
        query_labels=list(map(label, words)),
        key_labels=list(map(label, keys)),
        query_axis="summary (● copied)" if loaded.model_options.copy else "summary",
        key_axis="text",
    )


def page(loaded: Saved, line: str, best: Translation) -> Page:
    """Return a page to explore the weights of a summary, its words marked as in the picture."""
    return plots.explore(best.weights, *words_of(loaded, line, best), title=best.text)


def words_of(loaded: Saved, line: str, best: Translation) -> tuple[list[str], list[str]]:
    """Return the words of a summary, copied ones marked, and of its text, as the weights are."""
    source = text.encode_copyable(loaded.source, line)
    vocabulary, size = loaded.target, len(loaded.target)
    words = [vocabulary.token(i) if i < size else source.unknown[i - size] for i in best.ids]
    if loaded.model_options.copy:
        shares = copied(loaded.model, source.ids, best.ids)
        words = [
            f"{word}●" if share >= 0.5 else word for word, share in zip(words, shares, strict=True)
        ]
    rows, columns = best.weights.shape
    return [*words, "<end>"][:rows], loaded.source.tokens(line)[:columns]


def copied(model: nnx.Module, source: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """Return the share of each token's probability that comes from copying."""
    arrays = np.array([source]), np.array([[text.START, *ids[:-1]]]), np.array([ids])
    return np.asarray(_copied(*nnx.split(model), *arrays))


@partial(jax.jit, static_argnums=0)
def _copied(graphdef: Any, state: Any, source: Any, before: Any, ids: Any) -> jax.Array:
    model = nnx.merge(graphdef, state)
    decoder = model.decoder
    encoded = model.encode(source, jnp.full(1, source.shape[1]))
    times = decoder.over_times(before, encoded)
    weights = decoder.weights_of(times, encoded)[0]
    readout = times.readout[:, 0]
    logits = affine(readout, *decoder.output_layer())
    generated, copying = decoder.copying.parts(readout, logits, weights)
    size = generated.shape[1]
    of_copying = jnp.sum(jnp.where(source == ids[0][:, None], copying, 0), axis=1)
    own = jnp.take_along_axis(generated, jnp.minimum(ids[0], size - 1)[:, None], axis=1)[:, 0]
    of_vocabulary = jnp.where(ids[0] < size, own, 0)
    return of_copying / jnp.maximum(of_copying + of_vocabulary, jnp.finfo(own.dtype).tiny)
