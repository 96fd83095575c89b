"""Pictures of a language model: every head's map of a sentence, entropies, the learning curve."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax import plots
from experiments import language_model_training as lm

MOST_TOKENS = 40  # of the sentence that is drawn


def draw(model: Any, vocabulary: Any, sentence: str, directory: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure)."""
    ids = vocabulary.encode(sentence)[:MOST_TOKENS]
    names = [vocabulary.token(i) for i in ids]
    maps = np.asarray(lm.attention_maps(model, np.asarray(ids)[None]))[:, 0]
    for layer, heads in enumerate(maps):
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
    safe = np.where(maps > 0, maps, 1.0)
    entropy = -(maps * np.log(safe)).sum(-1).mean(-1)
    yield (
        "entropy",
        plots.attention_heatmap(
            entropy,
            query_labels=[f"layer {i + 1}" for i in range(len(entropy))],
            key_labels=[f"head {i + 1}" for i in range(entropy.shape[1])],
            query_axis="",
            key_axis="",
            title="entropy of the weights, nats",
        ),
    )
    curve = learning(directory)
    if curve is not None:
        yield "learning_curve", curve


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
    return plots.learning_curve(
        steps,
        {name: np.interp(steps, *curve) for name, curve in losses.items()},
        loss_axis="bits per character",
    )
