"""Pictures of a translator: alignments, BLEU against the source's length, the learning curve."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax import plots
from experiments.data.parallel_text import Lines
from experiments.harness.glyphs import label, say_missing
from experiments.seq2seq.translator import Translation

HEAT_MAPS, WORDS = 4, (6, 16)  # how many, and of how many source tokens


def draw(
    loaded: Any,
    test: Lines,
    translations: Sequence[Translation],
    lengths: Sequence[Mapping[str, Any]],
    names: tuple[str, str],
) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure)."""
    vocabularies = (loaded.source, loaded.target)
    fitting = [
        i
        for i, each in enumerate(translations)
        if each.weights is not None and WORDS[0] <= each.weights.shape[1] <= WORDS[1]
    ]
    chosen = fitting[:: max(len(fitting) // HEAT_MAPS, 1)][:HEAT_MAPS]
    say_missing(text for i in chosen for text in (test.source[i], translations[i].text))
    for number, i in enumerate(chosen):
        figure = heat_map(test.source[i], translations[i], vocabularies, names)
        if figure is not None:
            yield f"alignment_{number + 1}", figure
    if len(lengths) > 1:
        yield "bleu_by_length", bleu_by_length(lengths)


def heat_map(
    source: str, translation: Translation, vocabularies: tuple[Any, Any], names: tuple[str, str]
) -> Any:
    """Return the weights of a translation as a picture, its tokens down, the source's across."""
    if translation.weights is None or 0 in translation.weights.shape:
        return None
    written = [vocabularies[1].token(i) for i in translation.ids]
    written += ["<end>"] * (len(translation.weights) - len(written))
    read = vocabularies[0].tokens(source)[: translation.weights.shape[1]]
    return plots.attention_heatmap(
        translation.weights,
        query_labels=list(map(label, written)),
        key_labels=list(map(label, read)),
        query_axis=names[1],
        key_axis=names[0],
    )


def bleu_by_length(lengths: Sequence[Mapping[str, Any]]) -> Any:
    """Return BLEU against the source's length, a line for each system."""
    unit, _, *systems = lengths[0]
    return plots.learning_curve(
        [row[unit] for row in lengths],
        {name: [row[name] for row in lengths] for name in systems},
        step_axis=f"source length, {unit}",
        loss_axis="BLEU",
    )


def learning(directory: Path, *, log: bool = False, shares: Mapping[str, str] | None = None) -> Any:
    """Return the learning curve of a run, None where it has no rows.

    Below it are `shares`, label → name of a number that each evaluation has, in per cent.
    """
    path = directory / "training" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if not rows:
        return None
    losses: dict[str, Any] = {"training": [row["loss"] for row in rows]}
    losses |= _evaluated(rows, {"dev": "dev_loss"})
    return plots.learning_curve(
        [row["step"] for row in rows],
        losses,
        beside=_evaluated(rows, shares or {}, times=100) or None,
        loss_axis="loss per token, nats",
        log=log,
    )


def _evaluated(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str], *, times: float = 1
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Label → the steps that were evaluated, and a number of each evaluation."""
    found = {}
    for shown, name in names.items():
        known = [row for row in rows if name in row.get("evaluation", {})]
        values = np.array([row["evaluation"][name] for row in known], float)
        if known:
            found[shown] = np.array([row["step"] for row in known]), times * values
    return found
