"""Dates as ids, and models trained on them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data import dates
from experiments.data.dates import Written
from experiments.seq2seq import models
from experiments.seq2seq import train as fits
from experiments.seq2seq.models import ModelOptions
from experiments.seq2seq.train import FitOptions, Pairs

LOG_EVERY = 20  # steps between rows of a learning curve


class Task(NamedTuple):
    """The dates as ids."""

    source: Any  # Vocabulary
    target: Any
    batches: Any  # of the dates to train on
    dev: Pairs

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of both vocabularies."""
        return len(self.source), len(self.target)


def encoded(
    training: Sequence[Written],
    dev: Sequence[Written],
    languages: Sequence[str],
    options: FitOptions,
) -> Task:
    """Return the dates in the vocabularies of those to train on."""
    source, target = dates.vocabularies(training, languages)
    pairs, unseen = (dates.pairs(each, source, target) for each in (training, dev))
    return Task(source, target, fits.batches(pairs, options), unseen)


def fitted(
    model: ModelOptions,
    options: FitOptions,
    task: Task,
    directory: Path,
    *,
    watched: Mapping[str, Callable[[Any], float]] | None = None,
) -> Any:
    """Train a model; with numbers to watch on the dev dates the best one is kept, else the last."""
    count = models.parameters(model, *task.sizes)
    print(f"{name_of(model)}: {count:,} parameters, {options.steps} steps")
    return fits.train(
        models.build(model, *task.sizes, seed=options.seed),
        task.batches,
        None if watched is None else task.dev,
        options,
        directory,
        evaluate=watched and (lambda model: {name: f(model) for name, f in watched.items()}),
        log_every=LOG_EVERY,
    )


def name_of(options: ModelOptions) -> str:
    """Return what tells a model from the others."""
    if options.score == "none":
        return "fixed context"
    scores = "transformer" if options.model == "transformer" else options.score
    return f"{scores} × {options.normalizer}"
