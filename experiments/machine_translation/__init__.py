r"""Translate from one language into another with attention, trained on your own pairs of lines.

    python -m experiments machine-translation train --name mine \
        --train-source a.de --train-target a.en --dev-source b.de --dev-target b.en
    python -m experiments machine-translation evaluate --name mine \
        --test-source c.de --test-target c.en
    python -m experiments machine-translation translate --name mine < new.de > new.en
    python -m experiments machine-translation speed

Files are UTF-8, one sentence a line, the same number of lines on both sides. Without files `train`
takes two Bibles; `--data greek-english` takes a New Testament with gold word alignments, and
reports the alignment error rate of attention beside IBM model 1's.

`train` writes vocabularies, checkpoints and a learning curve, and evaluates; `--twin` trains the
model without attention, of as many parameters, as well, and draws it beside. An interrupted run
goes on with `--resume`. What `evaluate` finds on other files than the training's is written to
evaluation/, beside the results of the training.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.data import lines, parallel_text
from experiments.data.parallel_text import Corpus, CorpusOptions, EvaluationFiles
from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.harness.runs import Run, plain, require_same, start
from experiments.harness.smoke import RunOptions, tiny
from experiments.seq2seq import saved
from experiments.seq2seq import train as engine
from experiments.seq2seq.evaluate import SystemOptions, systems
from experiments.seq2seq.models import ModelOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.scoring import BleuTokenize
from experiments.seq2seq.train import FitOptions, Task, TrainOptions
from experiments.seq2seq.translator import SearchOptions, Translator

NAME = "machine-translation"
BLEU_TOKENIZE = "13a"
CHUNK = 64  # lines translated together
MODEL = ModelOptions(embedding=256, features=320, tied=True, dropout=0.35)
FIT = FitOptions(steps=3600, label_smoothing=0.1, evaluate_every=250, batch_size=128)
SEARCH = SearchOptions(beam=5, length_penalty=1.0)


@dataclass(frozen=True)
class Translate(SystemOptions):
    """Translate the standard input, line by line and in order, to the standard output."""

    search: SearchOptions = SEARCH
    alignments: Path | None = None
    """Write word alignments, in Pharaoh's format (0-0 1-2), to a file, a line for each line of
    output. Words are what stands between spaces."""
    plot: Path | None = None
    """Draw the weights of the first line that has any to a file, a PNG by default."""


@dataclass(frozen=True)
class Evaluate(SystemOptions):
    """Evaluate a trained model on the test lines of its training, or on other ones."""

    search: SearchOptions = SEARCH
    corpus: EvaluationFiles = field(default_factory=EvaluationFiles)
    backward: str | None = None
    """The name of a run of the other direction, whose alignments are joined with those of this one
    where there are gold ones (--data greek-english and english-greek)."""
    bleu_tokenize: BleuTokenize | None = None
    """How BLEU parts a line into tokens: zh for Chinese, char for other languages without spaces.
    Default: that of the training, 13a there."""


@dataclass(frozen=True)
class Speed(RunOptions):
    """Time training and greedy translation of an untrained model, beside PyTorch if installed."""

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    model: ModelOptions = MODEL
    fit: FitOptions = FIT


@dataclass(frozen=True)
class Train(Speed, Evaluate, TrainOptions):
    """Train an encoder-decoder with attention on pairs of lines, and evaluate it."""

    twin: bool = False
    """Train the model without attention as well, of as many parameters."""

    def __post_init__(self):
        super().__post_init__()
        made = min(self.fit.keep, -(-self.fit.steps // self.fit.evaluate_every))
        if self.average > made:
            rule = f"must be at most {made}, the checkpoints that --keep and --evaluate-every leave"
            raise UserError(f"--average {rule}. Got {self.average}.")


def train(options: Train) -> None:
    """Train a model, and its twin with --twin; evaluate."""
    options = tiny(options)
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    corpus, task = loaded_task(options)
    others = options.load_others(NAME, (task.source, task.target))
    backward = opposite(options, (task.source, task.target), corpus)
    output = engine.train(NAME, options, task, twin=options.twin)
    write_report(options, corpus, options.load(NAME), others, backward, output)


def loaded_task(options: Speed) -> tuple[Corpus, Task]:
    """Return the pairs of lines, and what a model is trained on."""
    corpus = parallel_text.load(options.corpus)
    for note in corpus.notes:
        print(note)
    both = corpus.vocabularies(options.corpus)
    pairs, dev = (each.encoded(*both) for each in (corpus.train, corpus.dev))
    batches = engine.batches(pairs, options.fit, max_length=options.corpus.max_length)
    return corpus, Task(*both, batches, dev)


def evaluate(options: Evaluate) -> None:
    """Evaluate a trained model on the test lines of its training, or on other ones.

    The numbers of other lines go to evaluation/, those of the training's lines to metrics.json
    again, with how the translations were made.
    """
    options = tiny(options)
    loaded = options.load(NAME)
    before = loaded.options["corpus"]
    corpus = parallel_text.load_test(options.corpus, before)
    others = options.load_others(NAME, loaded.vocabularies)
    backward = opposite(options, loaded.vocabularies, corpus)
    output, now = Run(loaded.directory), plain(options.corpus.files("test"))
    if now not in ([None, None], [before["test_source"], before["test_target"]]):
        output = Run(loaded.directory / "evaluation")
        output.clear_figures()
        output.write_metrics({"test": now})
    write_report(options, corpus, loaded, others, backward, output)


def opposite(options: Evaluate, vocabularies: tuple[Any, Any], corpus: Corpus) -> Saved | None:
    """Return the run of the other direction, of the same tokens, if one is named."""
    if options.backward is None:
        return None
    if corpus.gold is None:
        raise UserError("--backward needs gold alignments: --data greek-english, or the other way.")
    loaded = options.load_other(NAME, options.backward)
    back = [each.checksum for each in loaded.vocabularies[::-1]]
    if [each.checksum for each in vocabularies] != back or not loaded.attends:
        what = f"{options.backward} has other vocabularies, the same direction or no attention"
        raise UserError(f"--backward needs a run of the other direction of this one's. {what}.")
    return loaded


def write_report(
    options: Evaluate,
    corpus: Corpus,
    loaded: Saved,
    others: Sequence[Saved],
    backward: Saved | None,
    output: Run,
) -> None:
    """Print, write and draw what the translations are worth, and write how they were made."""
    from experiments.machine_translation import report

    tokenize = options.bleu_tokenize or loaded.options.get("bleu_tokenize") or BLEU_TOKENIZE
    how = {name: getattr(options, name) for name in ("average", "ensemble", "backward", "search")}
    output.update_metrics({"how": how | {"bleu_tokenize": tokenize}})
    chosen = systems(loaded, others, average=options.average)
    report.report(corpus, loaded, chosen, options.search, tokenize, backward, output)


def translate(options: Translate) -> None:
    """Translate the standard input, line by line and in order, to the standard output."""
    from experiments.machine_translation import output

    options = tiny(options)
    links = output.writable(options.alignments, output.ALIGNMENTS)
    plot = output.picture(options.plot)
    loaded = options.load(NAME)
    runs = [loaded, *options.load_others(NAME, loaded.vocabularies)]
    aligned = links is not None or plot is not None
    if aligned and not any(each.attends for each in runs):
        raise UserError("--alignments and --plot need a model with attention. Got --score none.")
    members = [each.model for each in runs]
    align_up_to = math.inf if aligned else 0
    translator = Translator(members, loaded.target, options.search, align_up_to=align_up_to)
    lines.as_utf8(sys.stdout)
    with output.opened(links) as stream:
        chunks = lines.chunks(sys.stdin, CHUNK)
        for number, source, best in translator.stream(chunks, loaded.source.encode_batch):
            for each in best:  # several as Moses prints them
                scored = f"{number - 1} ||| {each.text} ||| {each.score:.4f}"
                print(scored if options.search.n_best > 1 else each.text, flush=True)
            if stream is not None:
                output.write_links(stream, source, best, loaded.vocabularies)
            if plot is not None and output.draw(plot, source, best[0], loaded.vocabularies):
                plot = None
    if plot is not None:
        print("--plot: no line had anything to draw", file=sys.stderr)


def speed(options: Speed) -> None:
    """Print how fast a model of these options trains and translates."""
    from experiments.benchmark.models import translation

    options = tiny(options)
    corpus, task = loaded_task(options)
    output = start(f"{NAME}-speed", options, options.output)
    rows = translation.compare(options.model, options.fit, task, corpus)
    output.write_metrics({"rows": rows})
    tables.print_table(rows)


COMMANDS = {"train": train, "evaluate": evaluate, "translate": translate, "speed": speed}
