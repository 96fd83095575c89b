"""Scores, normalizers and the model without attention, at equal parameters and equal training."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from experiments.date_translation import figures
from experiments.date_translation.report import ExactMatch
from experiments.harness import tables
from experiments.harness.runs import Run
from experiments.seq2seq import models, saved
from experiments.seq2seq import train as engine
from experiments.seq2seq.options import (
    FitOptions,
    ModelOptions,
    NormalizerName,
    ScoreName,
    SearchOptions,
)
from experiments.seq2seq.train import Task

# score, normalizer; "none" is the model without attention
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


def compare(
    rows: Sequence[tuple[ScoreName, NormalizerName]],
    model: ModelOptions,
    fit: FitOptions,
    search: SearchOptions,
    task: Task,
    output: Run,
) -> None:
    """Train each row, as large as the model; print, write and draw the table."""
    goal = models.parameters(model, *task.sizes)
    alone = dataclasses.replace(task, dev=None)  # the last model is compared, not the best one
    table, histories = [], {}
    for score, normalizer in rows:
        slots = {"model": "recurrent", "score": score, "normalizer": normalizer}
        chosen = models.of_size(dataclasses.replace(model, **slots), goal, *task.sizes)
        directory = output.directory / saved.TRAINING / "comparison" / f"{score}-{normalizer}"
        trained = engine.fit(chosen, fit, alone, directory)
        histories[chosen.name] = trained.history
        table.append(
            {
                "name": chosen.name,
                "score": score,
                "normalizer": None if score == "none" else normalizer,
                "alpha": alpha_of(trained.model, normalizer),
                "features": chosen.features,
                "parameters": models.parameters(chosen, *task.sizes),
                "loss": trained.history[-1]["loss"],
                "exact_match": ExactMatch(task.dev, task.target, search)(trained.model),
                "seconds": trained.history[-1]["seconds"],
            }
        )
    output.update_metrics({"comparison": table})
    print(f"\n{len(task.dev.source):,} unseen dates after {fit.steps} steps each")
    tables.print_table([readable(row) for row in table])
    shares = {row["name"]: 100 * row["exact_match"] for row in table}
    for name, figure in figures.of_comparison(shares, histories):
        output.write_figure(name, figure)


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
