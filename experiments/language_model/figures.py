"""Pictures of a language model: every head's map of a sentence, entropies, the learning curve."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax import plots
from experiments.data import long_text as texts
from experiments.harness.glyphs import label, say_missing
from experiments.language_model import report as measures

MOST_TOKENS = 40  # of the sentence that is drawn


def of_sentence(model: Any, vocabulary: Any, sentence: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure): each layer's maps, and each head's entropy; say what is left out."""
    most = min(MOST_TOKENS, model.embedding.most_positions)
    whole = texts.encode(vocabulary, sentence)
    if len(whole) > most:
        print(f"--sentence has {len(whole)} tokens: the first {most} are drawn")
    ids = whole[:most]
    tokens = [vocabulary.token(i) for i in ids.tolist()]
    say_missing(tokens)
    names = list(map(label, tokens))
    maps = measures.attention_maps(model, ids[None])
    for layer, heads in enumerate(np.asarray(maps[:, 0])):
        yield (
            f"attention_layer_{layer + 1}",
            plots.attention_heatmaps(
                list(heads),
                titles=[f"head {head + 1}" for head in range(len(heads))],
                query_labels=names,
                key_labels=names,
                query_axis="position that asks",
                key_axis="position that answers",
                columns=2,
            ),
        )
    entropy = np.asarray(measures.entropies(maps[:, 0])).mean(axis=-1)
    figure = plots.attention_heatmap(
        entropy,
        query_labels=[str(i + 1) for i in range(len(entropy))],
        key_labels=[str(i + 1) for i in range(entropy.shape[1])],
        query_axis="layer",
        key_axis="head",
        title="entropy of the weights",
    )
    figure.axes[-1].set_ylabel("nats")  # the colour bar
    yield "entropy", figure


def learning(directory: Path) -> Any:
    """Return the learning curves of a run, one for each model of a comparison."""
    losses: dict[str, tuple[list, list]] = {}
    for path in sorted((directory / "training").rglob("metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        known = [row for row in rows if "evaluation" in row]
        name = path.parent.name if path.parent.name != "training" else "held out"
        if known:
            steps = [row["step"] for row in known]
            losses[name] = (steps, [row["evaluation"]["bits_per_character"] for row in known])
    if not losses:
        return None
    steps = max((steps for steps, _ in losses.values()), key=len)
    return plots.learning_curve(steps, losses, loss_axis="bits per character")
