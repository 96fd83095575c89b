"""Sequences of a task to a trained model and what it is worth."""

import dataclasses

from experiments.data import integers
from experiments.harness.runs import Run, require_same
from experiments.seq2seq import train as engine
from experiments.sequence_tasks import Evaluate, Train
from experiments.sequence_tasks.report import report


def train(options: Train) -> None:
    """Train a model, and its twin with --twin; evaluate."""
    task = integers.task(options.task, smoke=options.smoke)
    options = dataclasses.replace(options, fit=options.fit.of(task))
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(options.experiment), options)
    both = [integers.vocabulary(task)] * 2
    data = integers.generate(task, seed=options.data_seed)
    pairs, dev = (part.encoded(*both) for part in (data.train, data.dev))
    learned = engine.Task(*both, engine.batches(pairs, options.fit), dev)
    output = engine.train(options.experiment, options, learned, twin=options.twin)
    report(output, options.task, options.beam)


def evaluate(options: Evaluate) -> None:
    """Evaluate a trained model on the sequences of its training's dev and test parts."""
    report(Run(options.output.directory(options.experiment)), options.task, options.beam)
