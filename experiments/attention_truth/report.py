"""Each model of a task trained, its weights compared with the gold regions; the table of all."""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attn_jax import metrics
from experiments.attention_truth import Compare, Grid, figures
from experiments.attention_truth.tasks import TASKS, Truth
from experiments.harness import tables
from experiments.harness.runs import Run, require_same, start
from experiments.seq2seq import models
from experiments.seq2seq import train as engine
from experiments.seq2seq.alignments import forced_weights
from experiments.seq2seq.options import ModelOptions
from experiments.seq2seq.translator import Translator

NAME = "attention-truth"
TWIN = "no attention"
PERCENT = ("hit", "mass", "chance", "zeros")


def compare(options: Compare) -> None:
    """Train and measure every model; what is done stays, whatever comes."""
    grid = options.grid
    rows = []
    if options.resume:  # what cannot be is refused at once
        directory = options.output.directory(NAME)
        require_same(directory, options)
        rows = Run(directory).read_metrics().get("rows", [])
    truths = {name: TASKS[name](grid, small=options.smoke) for name in grid.tasks}
    checksums = {name: truth.task.checksums for name, truth in truths.items()}
    output = start(NAME, options, options.output, resume=options.resume, checksums=checksums)
    output.update_metrics({"rows": rows})
    done = {(row["task"], row["model"], row["seed"]) for row in rows}
    work = [each for each in planned(truths, grid) if key(*each) not in done]
    began = time.perf_counter()
    for number, (name, model, seed) in enumerate(work):
        left = (time.perf_counter() - began) / number * (len(work) - number) if number else None
        told = "" if left is None else f", about {left / 60:.0f} minutes left"
        print(f"\n{name}, seed {seed}: model {number + 1} of {len(work)}{told}")
        directory = (
            output.directory / "training" / name / f"{model.name}-{seed}".replace(" × ", "-")
        )
        rows.append(measured(name, truths[name], grid, model, seed, directory))
        output.update_metrics({"rows": rows})
    table = summary(rows, list(truths))
    output.update_metrics({"table": table})
    for name, truth in truths.items():
        of_task = [row for row in table if row["task"] == name]
        unseen = f"{len(truth.test.source):,} unseen examples"
        print(f"\n{name}: {truth.unit}; {unseen}, {grid.seeds} seeds")
        tables.print_table(list(map(readable, of_task)))
    output.clear_figures()
    units = {name: truth.unit for name, truth in truths.items()}
    output.write_figure("attention_truth", figures.of_tasks(table, units))
    output.say_where()


def planned(truths: dict[str, Truth], grid: Grid) -> Iterator[tuple[str, ModelOptions, int]]:
    """Yield task, model and seed: one seed of everything before the next one."""
    for seed, (name, truth) in itertools.product(range(grid.seeds), truths.items()):
        chosen = [
            dataclasses.replace(truth.model, score=score, normalizer=normalizer)
            for score, normalizer in itertools.product(grid.scores, grid.normalizers)
        ]
        for model in [*chosen, models.twin(truth.model, *truth.task.sizes)]:
            yield name, model, seed


def key(name: str, model: ModelOptions, seed: int) -> tuple[str, str, int]:
    """What tells a row from others."""
    return name, model.name, seed


def measured(
    name: str, truth: Truth, grid: Grid, model: ModelOptions, seed: int, directory: Path
) -> dict[str, Any]:
    """Return one row: a model is trained, translates the test, and is fed its targets."""
    fit = dataclasses.replace(truth.fit, seed=seed, steps=grid.steps or truth.fit.steps)
    trained = engine.fit(model, fit, truth.task, directory)
    translator = Translator([trained.model], truth.task.target, truth.search, align_up_to=0)
    found = [best for best, *_ in translator(truth.test.source)]
    row = {"task": name, "model": model.name, "seed": seed, "score": truth.score(found)}
    if model.score != "none":
        weights = forced_weights(trained.model, truth.test)
        row |= metrics.pointing(weights, truth.gold(trained.model))._asdict()
        if truth.error is not None:
            row["alignment_error_rate"] = truth.error(weights)
    return row | {"seconds": trained.history[-1]["seconds"]}


def summary(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each task and model: means over seeds, and the spread of two of them."""
    table = []
    for name, model in dict.fromkeys((row["task"], row["model"]) for row in rows):
        of_both = [row for row in rows if (row["task"], row["model"]) == (name, model)]
        numbers = [each for each in of_both[0] if each not in ("task", "model", "seed", "steps")]
        means = {each: statistics.fmean(row[each] for row in of_both) for each in numbers}
        spread = {
            f"{each}_deviation": statistics.pstdev(row[each] for row in of_both)
            for each in ("score", "hit")
            if each in means
        }
        table.append({"task": name, "model": model, "seeds": len(of_both)} | means | spread)
    return sorted(table, key=lambda row: names.index(row["task"]))


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    shares = {name: None if name not in row else 100 * row[name] for name in PERCENT}

    def with_spread(value: float | None, deviation: float | None) -> str | None:
        return None if value is None else f"{value:.1f} ± {deviation or 0:.1f}"

    hit = with_spread(shares["hit"], 100 * row.get("hit_deviation", 0))
    return {
        "score × normalizer": row["model"],
        "task": with_spread(row["score"], row["score_deviation"]),
        "largest in\nregion, %": hit,
        "weight in\nregion, %": shares["mass"],
        "chance,\n%": shares["chance"],
        "entropy,\nnats": row.get("entropy"),
        "zeros,\n%": shares["zeros"],
    } | ({"AER": row["alignment_error_rate"]} if "alignment_error_rate" in row else {})
