"""Pictures of a language model: every head's map of a sentence, entropies, the learning curve."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.nn import LanguageModel
from attn_jax.plots.explore import Page
from attn_jax.text import Vocabulary
from attn_jax.training import read_history
from experiments.harness.glyphs import label, say_missing
from experiments.language_model import data, report

MOST_TOKENS = 40  # of the sentence that is drawn


def of_sentence(
    model: LanguageModel, vocabulary: Vocabulary, sentence: str
) -> Iterator[tuple[str, Figure | Page]]:
    """Yield (name, figure): each layer's maps, and each head's entropy; say what is left out."""
    most = min(MOST_TOKENS, model.embedding.most_positions)
    ids = data.encode(vocabulary, sentence)
    if len(ids) > most:
        print(f"--sentence has {len(ids)} tokens: the first {most} are drawn")
    tokens = [vocabulary.token(i) for i in ids[:most].tolist()]
    yield from of_tokens(report.attention_maps(model, ids[None, :most])[:, 0], tokens, sentence)


def of_tokens(
    maps: ArrayLike, tokens: list[str], title: str
) -> Iterator[tuple[str, Figure | Page]]:
    """Yield (name, figure) of weights [layers, heads, t, t] on these tokens, and a page."""
    say_missing(tokens)
    yield "attention", plots.explore(maps, tokens, title=title)
    names = list(map(label, tokens))
    for layer, heads in enumerate(np.asarray(maps), start=1):
        figure = plots.attention_heatmaps(
            heads,
            titles=[f"head {head + 1}" for head in range(len(heads))],
            query_labels=names,
            key_labels=names,
            query_axis="query position",
            key_axis="key position",
            columns=2,
        )
        yield f"attention_layer_{layer}", figure
    entropy = np.asarray(report.entropies(maps)).mean(axis=-1)
    layers, heads = ([str(i + 1) for i in range(size)] for size in entropy.shape)
    figure = plots.attention_heatmap(
        entropy,
        query_labels=layers,
        key_labels=heads,
        query_axis="layer",
        key_axis="head",
        title="entropy of the weights",
    )
    figure.axes[-1].set_ylabel("nats")  # the colour bar
    yield "entropy", figure


def learning(training: Path) -> Figure | None:
    """Return the learning curves of a run, one for each model of a comparison."""
    curves: dict[str, tuple[list, list]] = {}
    for path in sorted(training.rglob("metrics.jsonl")):
        known = [row for row in read_history(path.parent) if "evaluation" in row]
        if known:
            name = "held out" if path.parent == training else path.parent.name
            bits = [row["evaluation"]["bits_per_character"] for row in known]
            curves[name] = ([row["step"] for row in known], bits)
    if not curves:
        return None
    steps = max((steps for steps, _ in curves.values()), key=len)
    return plots.learning_curve(steps, curves, loss_axis="bits per character")
