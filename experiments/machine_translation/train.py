"""Training on pairs of lines, and how fast it is."""

from experiments.benchmark.models import translation
from experiments.data import parallel_text
from experiments.data.parallel_text import Corpus
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
    corpus, task = loaded_task(options)
    others = load_others(options, (task.source, task.target), corpus)
    output = engine.train(NAME, options, task, twin=options.twin)
    report(options, corpus, load(NAME, options), others, output)


def loaded_task(options: Speed) -> tuple[Corpus, engine.Task]:
    """Return the pairs of lines, and what a model is trained on."""
    corpus = parallel_text.load(options.corpus)
    for note in corpus.notes:
        print(note)
    both = corpus.vocabularies(options.corpus)
    pairs, dev = (each.encoded(*both) for each in (corpus.train, corpus.dev))
    batches = engine.batches(pairs, options.fit, max_length=options.corpus.max_length)
    return corpus, engine.Task(*both, batches, dev)


def speed(options: Speed) -> None:
    """Print how fast a model of these options trains and translates."""
    corpus, task = loaded_task(options)
    output = start(f"{NAME}-speed", options, options.output)
    rows = translation.compare(options.model, options.fit, task, corpus)
    output.write_metrics({"rows": rows})
    tables.print_table(rows)
