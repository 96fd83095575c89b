"""Scores, normalizers and the model without attention, at equal parameters and equal training."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.date_translation.report import ExactMatch
from experiments.date_translation.train import Task, fitted, name_of
from experiments.seq2seq import models
from experiments.seq2seq.models import ModelOptions, NormalizerName, ScoreName
from experiments.seq2seq.train import FitOptions
from experiments.seq2seq.translator import SearchOptions

# score, normalizer; "none" is the fixed context
ROWS = (
    ("additive", "softmax"),
    ("bilinear", "softmax"),
    ("scaled_dot", "softmax"),
    ("cosine", "softmax"),
    ("additive", "sparsemax"),
    ("additive", "entmax"),
    ("none", "softmax"),
)
FEW_ROWS = ROWS[-2:]  # of a tiny run


class Compared(NamedTuple):
    """A row of the table, and its training."""

    numbers: dict[str, Any]
    history: list[dict[str, Any]]


def compare(
    rows: Sequence[tuple[ScoreName, NormalizerName]],
    chosen: ModelOptions,
    fit: FitOptions,
    task: Task,
    search: SearchOptions,
    directory: Path,
) -> list[Compared]:
    """Train each row, with the features that give it as many parameters as the chosen model."""
    goal = models.parameters(chosen, *task.sizes)
    compared = []
    for score, normalizer in rows:
        slots = {"model": "recurrent", "score": score, "normalizer": normalizer}
        options = models.of_size(dataclasses.replace(chosen, **slots), goal, *task.sizes)
        trained = fitted(options, fit, task, directory / f"{score}-{normalizer}")
        numbers = {
            "name": name_of(options),
            "score": score,
            "normalizer": None if score == "none" else normalizer,
            "alpha": alpha_of(trained.model, normalizer),
            "features": options.features,
            "parameters": models.parameters(options, *task.sizes),
            "loss": trained.history[-1]["loss"],
            "exact_match": ExactMatch(task.dev, task.target, search)(trained.model),
            "seconds": trained.history[-1]["seconds"],
        }
        compared.append(Compared(numbers, trained.history))
    return compared


def alpha_of(model: Any, normalizer: str) -> float | None:
    """Return the α that was learned."""
    attention = model.decoder.attention
    learned = normalizer == "entmax" and attention is not None
    return float(attention.normalizer.alpha) if learned else None


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    return {
        "score × normalizer": row["name"],
        "α": row["alpha"],
        "features": row["features"],
        "parameters": row["parameters"],
        "training\nloss": row["loss"],
        "exact\nmatch, %": 100 * row["exact_match"],
        "seconds": row["seconds"],
    }
