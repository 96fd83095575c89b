"""Dates in many languages to a trained model and what it is worth."""

import dataclasses

from experiments.data import dates
from experiments.data.dates import FORMATS
from experiments.date_translation import NAME, Evaluate, Train, comparison, report
from experiments.harness.runs import Run, require_same
from experiments.seq2seq import train as engine


def train(options: Train) -> None:
    """Train and evaluate the model, then those that it is compared with."""
    if options.smoke:
        options = dataclasses.replace(options, compare_steps=3)
    languages = dates.chosen(options.data.languages)
    report.given(options.dates, languages)  # refused before the long computation
    if options.resume:
        require_same(options.output.directory(NAME), options)
    training, dev = (dates.written(part, options.data) for part in ("training", "dev"))
    print(f"{len(training):,} dates in {len(languages)} languages and {len(FORMATS)} formats")
    both = dates.vocabularies(training, languages)
    pairs, unseen = (dates.pairs(each, *both) for each in (training, dev))
    task = engine.Task(*both, engine.batches(pairs, options.fit), unseen)
    exact = report.ExactMatch(unseen, task.target, options.search)
    output = engine.train(NAME, options, task, evaluate=lambda model: {"dev_exact": exact(model)})
    report.report(output, options.dates, options.search)
    if options.compare_steps:
        rows = comparison.FEW_ROWS if options.smoke else comparison.ROWS
        fewer = dataclasses.replace(options.fit, steps=options.compare_steps)
        comparison.compare(rows, options.model, fewer, options.search, task, output)
    output.say_where()


def evaluate(options: Evaluate) -> None:
    """Evaluate a trained model on the dates that its training left out."""
    output = Run(options.output.directory(NAME))
    report.report(output, options.dates, options.search)
    output.say_where()
