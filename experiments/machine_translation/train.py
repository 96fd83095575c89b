"""Training on pairs of lines, and how fast it is."""

from experiments.benchmark.models import translation
from experiments.harness import tables
from experiments.harness.runs import require_same, start
from experiments.machine_translation.options import Speed, Train
from experiments.machine_translation.report import NAME, load_others, report
from experiments.seq2seq import train as engine
from experiments.seq2seq.evaluate import load


def train(options: Train) -> None:
    """Train a model, and its twin with --twin; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    corpus, task = engine.text_task(options.corpus, options.fit)
    others = load_others(options, (task.source, task.target), corpus)
    output = engine.train(NAME, options, task, twin=options.twin)
    report(options, corpus, load(NAME, options), others, output)


def speed(options: Speed) -> None:
    """Print how fast a model of these options trains and translates."""
    corpus, task = engine.text_task(options.corpus, options.fit)
    output = start(f"{NAME}-speed", options, options.output)
    rows = translation.compare(options.model, options.fit, task, corpus)
    output.write_metrics({"rows": rows})
    tables.print_table(rows)
