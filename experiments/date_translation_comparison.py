"""Scores, normalizers and the model without attention, at equal parameters and equal training."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.translation import models
from experiments.translation.models import ModelOptions

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


class Compared(NamedTuple):
    """A row of the table, and its training."""

    name: str
    numbers: dict[str, Any]
    history: list[dict[str, Any]]


def compare(
    chosen: ModelOptions,
    sizes: tuple[int, int],
    train: Callable[[ModelOptions, str], Any],
    exact_match: Callable[[Any], float],
) -> list[Compared]:
    """Train each row, with the features that give it as many parameters as the chosen model."""
    goal = models.parameters(chosen, *sizes)
    compared = []
    for score, normalizer in ROWS:
        options = dataclasses.replace(chosen, score=score, normalizer=normalizer)
        options = models.of_size(options, goal, *sizes)
        fit = train(options, f"{score}-{normalizer}")
        numbers = {
            "score": score,
            "normalizer": None if score == "none" else normalizer,
            "alpha": alpha_of(fit.model, normalizer),
            "features": options.features,
            "parameters": models.parameters(options, *sizes),
            "loss": fit.history[-1]["loss"],
            "exact_match": exact_match(fit.model),
            "seconds": fit.history[-1]["seconds"],
        }
        compared.append(Compared(name_of(options), numbers, fit.history))
    return compared


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    context = row["score"] == "none"
    return {
        "score": "none (fixed context)" if context else row["score"],
        "normalizer": row["normalizer"] or "",
        "α": row["alpha"],
        "features": row["features"],
        "parameters": row["parameters"],
        "training loss": row["loss"],
        "exact match, %": 100 * row["exact_match"],
        "seconds": row["seconds"],
    }


def name_of(options: ModelOptions) -> str:
    """Return what tells a model from the others."""
    if options.score == "none":
        return "fixed context"
    return f"{options.score} × {options.normalizer}"


def alpha_of(model: Any, normalizer: str) -> float | None:
    """Return the α that was learned."""
    attention = model.decoder.attention
    learned = normalizer == "entmax" and attention is not None
    return float(attention.normalizer.alpha) if learned else None
