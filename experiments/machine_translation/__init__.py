r"""Translate from one language into another with attention, trained on your own pairs of lines.

    python -m experiments machine-translation train --name mine \
        --train-source a.de --train-target a.en --dev-source b.de --dev-target b.en
    python -m experiments machine-translation evaluate --name mine \
        --test-source c.de --test-target c.en
    python -m experiments machine-translation translate --name mine < new.de > new.en

Files are UTF-8, one sentence a line, the same number of lines on both sides. Without files `train`
takes two Bibles; `--data greek-english` takes a New Testament with gold word alignments, and
reports the alignment error rate of attention beside IBM model 1's.

`train` writes vocabularies, checkpoints and a learning curve, and evaluates; `--twin` trains the
model without attention, of as many parameters, as well, and draws it beside. An interrupted run
goes on with `--resume`. What `evaluate` finds on other files than the training's is written to
evaluation/, beside the results of the training.
"""

import dataclasses
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments.data import lines
from experiments.data import parallel_text as corpora
from experiments.data.parallel_text import CorpusOptions
from experiments.harness import tables
from experiments.harness.actions import require_heeded
from experiments.harness.errors import UserError
from experiments.harness.runs import (
    Output,
    Run,
    checked_name,
    compile_quickly,
    plain,
    require_same,
    start,
)
from experiments.seq2seq import models, saved
from experiments.seq2seq import train as fits
from experiments.seq2seq.models import ModelOptions
from experiments.seq2seq.scoring import BleuTokenize, Scoring
from experiments.seq2seq.train import FitOptions
from experiments.seq2seq.translator import SearchOptions, Translation, Translator, cut

NAME = "machine-translation"
BLEU_TOKENIZE = "13a"
HEEDED = {
    "twin": ("train",),
    "resume": ("train",),
    "average": ("train", "evaluate", "translate"),
    "ensemble": ("train", "evaluate", "translate"),
    "backward": ("train", "evaluate"),
    "bleu_tokenize": ("train", "evaluate"),
    "alignments": ("translate",),
    "plot": ("translate",),
}


@dataclass(frozen=True)
class MachineTranslation:
    """Train an encoder-decoder with attention on pairs of lines, evaluate it, translate with it."""

    action: tyro.conf.Positional[Literal["train", "evaluate", "translate", "speed"]] = "train"
    """What to do; translate reads lines from the standard input; speed times training and greedy
    translation of an untrained model, beside PyTorch where it is installed."""
    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    model: ModelOptions = field(
        default_factory=lambda: ModelOptions(embedding=256, features=320, tied=True, dropout=0.35)
    )
    fit: FitOptions = field(
        default_factory=lambda: FitOptions(
            steps=3600, label_smoothing=0.1, evaluate_every=250, batch_size=128
        )
    )
    search: SearchOptions = field(default_factory=lambda: SearchOptions(beam=5, length_penalty=1.0))
    output: Output = field(default_factory=Output)
    twin: bool = False
    """Train the model without attention as well, of as many parameters."""
    average: int = 1
    """Translate with the mean of so many of the last checkpoints. 1: with the best checkpoint."""
    ensemble: tuple[str, ...] = ()
    """Names of further runs of the same vocabularies that vote."""
    backward: str | None = None
    """evaluate: the name of a run of the other direction, whose alignments are joined with those of
    this one where there are gold ones (--data greek-english and english-greek)."""
    bleu_tokenize: BleuTokenize | None = None
    """How BLEU parts a line into tokens: zh for Chinese, char for other languages without spaces.
    Default: that of the training, 13a there."""
    alignments: Path | None = None
    """translate: write word alignments, in Pharaoh's format (0-0 1-2), to a file, a line for each
    line of output. Words are what stands between spaces."""
    plot: Path | None = None
    """translate: draw the weights of the first line that has any to a file, a PNG by default."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds: a made-up language, a small model, few steps."""

    def __post_init__(self):
        if self.average < 1:
            raise UserError(f"--average must be at least 1. Got {self.average}.")
        require_heeded(self, HEEDED)


def run(options: MachineTranslation) -> None:
    """Train, evaluate or translate."""
    if options.smoke:
        compile_quickly()
        options = tiny(options)
    actions = {"train": train, "evaluate": evaluate, "translate": translate, "speed": speed}
    actions[options.action](options)


def tiny(options: MachineTranslation) -> MachineTranslation:
    """Return the options of a run that takes seconds."""
    beam = min(options.search.beam, 2)
    search = {"beam": beam, "n_best": min(options.search.n_best, beam)}
    small = {"embedding": 16, "features": 4 * options.model.heads, "dropout": 0.1}
    return dataclasses.replace(
        options,
        model=dataclasses.replace(options.model, **small),
        fit=dataclasses.replace(
            options.fit,
            steps=min(options.fit.steps, 20),
            evaluate_every=10,
            batch_size=16,
            buckets=2,
        ),
        corpus=dataclasses.replace(options.corpus, smoke=True),
        search=dataclasses.replace(options.search, **search),
    )


# Training


def train(options: MachineTranslation) -> None:
    """Train a model, and its twin if asked for; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(run_directory(options, options.output.name), options)
    corpus = corpora.load(options.corpus)
    for note in corpus.notes:
        print(note)
    vocabularies = corpora.vocabularies(corpus, options.corpus)
    sizes = tuple(map(len, vocabularies))
    pairs, dev = (corpora.encoded(each, *vocabularies) for each in (corpus.train, corpus.dev))
    batches = fits.batches(pairs, options.fit, max_length=options.corpus.max_length)
    chosen = {saved.TRAINING: options.model}
    if options.twin:
        chosen[saved.TWIN] = models.twin(options.model, *sizes)
    names = {directory: described(each, sizes) for directory, each in chosen.items()}
    require_checkpoints(options)
    companions(options, vocabularies, corpus)
    # All that can be refused is refused by now: from here on an earlier run of the name is gone.
    checksums = saved.checksums(*vocabularies, batches)
    output = start(NAME, options, options.output, resume=options.resume, checksums=checksums)
    saved.write_vocabularies(output.directory, *vocabularies)
    output.update_metrics({"training": fits.facts(batches)})
    print(left_out(batches, options.corpus.max_length))
    for directory, each in chosen.items():
        print(names[directory])
        model = models.build(each, *sizes, seed=options.fit.seed)
        fits.train(model, batches, dev, options.fit, output.directory / directory)
    report(options, corpus, saved.load(output.directory, average=options.average), output)


def described(options: ModelOptions, sizes: tuple[int, int]) -> str:
    """Return what a model is, and how large."""
    what = "no attention" if options.score == "none" else f"{options.score} × {options.normalizer}"
    what = f"Transformer, {options.normalizer}" if options.model == "transformer" else what
    count = models.parameters(options, *sizes)
    return f"{what}: {count:,} parameters, {sizes[0]:,} source and {sizes[1]:,} target tokens"


def left_out(batches: Any, longest: int) -> str:
    """Return what is trained on, and what is not."""
    missing = f"{batches.without_target:,} have no target, {batches.too_long:,} are longer than"
    real = f"{batches.real_fraction:.0%} of the positions in batches are no padding"
    return f"{batches.size:,} pairs to train on ({missing} --max-length {longest}); {real}"


# Evaluation


def evaluate(options: MachineTranslation) -> None:
    """Evaluate a trained model on the test lines of its training, or on other ones.

    What other lines say goes to evaluation/; on those of the training metrics.json says anew what
    their translations are worth, and how they were made.
    """
    loaded = saved.load(run_directory(options, options.output.name), average=options.average)
    before = loaded.options["corpus"]
    corpus = corpora.to_judge(options.corpus, before)
    output = Run(loaded.directory)
    now = plain(corpora.files(options.corpus, "test"))
    if now != [None, None] and now != [before["test_source"], before["test_target"]]:
        output = Run(loaded.directory / "evaluation")
        output.clear_figures()
        output.write_metrics({"test": now})
    report(options, corpus, loaded, output)


def report(
    options: MachineTranslation, corpus: corpora.Corpus, loaded: saved.Saved, output: Run
) -> None:
    """Print, write and draw what the translations are worth."""
    from experiments.seq2seq import evaluate as evaluation
    from experiments.seq2seq import figures

    name = evaluation.ATTENTION if loaded.attends else evaluation.TWIN
    voters, backward = companions(options, loaded.vocabularies, corpus)
    systems = {name: [each.model for each in (loaded, *voters)]}
    if loaded.attends and (twin := saved.load_twin(loaded, average=options.average)):
        systems[evaluation.TWIN] = [twin]
    tokenize = options.bleu_tokenize or loaded.options.get("bleu_tokenize") or BLEU_TOKENIZE
    scoring = Scoring(loaded.target, tokenize)
    judged = evaluation.judge(systems, loaded, corpus, options.search, scoring, backward)
    how = {name: getattr(options, name) for name in ("average", "ensemble", "backward", "search")}
    output.update_metrics(judged.metrics | {"how": how | {"bleu_tokenize": tokenize}})
    columns = {"source": judged.lines.source, "reference": judged.lines.target}
    output.write_predictions(columns | judged.texts)
    evaluation.show(judged)
    output.clear_figures()
    found, lengths = judged.translations[name], judged.metrics["by_length"]
    for drawn, figure in figures.draw(loaded, judged.lines, found, lengths, corpus.names):
        output.write_figure(drawn, figure)
    if output.directory == loaded.directory and (curve := figures.learning(loaded.directory)):
        output.write_figure("learning_curve", curve)
    output.say_where()


def companions(
    options: MachineTranslation,
    vocabularies: tuple[Any, Any],
    corpus: corpora.Corpus | None = None,
) -> tuple[list[saved.Saved], saved.Saved | None]:
    """Return the runs that vote beside the first one, and that of the other direction."""
    voters, backward = [], None
    if options.backward is not None and (corpus is None or corpus.gold is None):
        raise UserError("--backward needs gold alignments: --data greek-english, or the other way.")
    for name in options.ensemble:
        voters.append(saved.load(run_directory(options, name), average=options.average))
        saved.require_same_vocabulary(vocabularies, voters[-1], name)
    if options.backward is not None:
        backward = saved.load(run_directory(options, options.backward), average=options.average)
        saved.require_opposite(vocabularies, backward, options.backward)
    return voters, backward


def require_checkpoints(options: MachineTranslation) -> None:
    """Refuse to average more checkpoints than the training will leave."""
    fit = options.fit
    made = min(fit.keep, -(-fit.steps // fit.evaluate_every))
    if options.average > made:
        rule = f"must be at most {made}, the checkpoints that --keep and --evaluate-every leave"
        raise UserError(f"--average {rule}. Got {options.average}.")


def run_directory(options: MachineTranslation, name: str) -> Path:
    """Return the directory of a run."""
    return options.output.output_dir / NAME / checked_name(name)


def speed(options: MachineTranslation) -> None:
    """Print how fast a model of these options trains and translates."""
    from experiments.benchmark.models import translation as speed

    corpus = corpora.load(options.corpus)
    vocabularies = corpora.vocabularies(corpus, options.corpus)
    pairs = corpora.encoded(corpus.train, *vocabularies)
    batches = fits.batches(pairs, options.fit, max_length=options.corpus.max_length)
    output = start(f"{NAME}-speed", options, options.output)
    rows = speed.compare(options.model, options.fit, corpus, vocabularies, batches)
    output.write_metrics({"rows": rows})
    tables.print_table(rows)


# Translation


def translate(options: MachineTranslation) -> None:
    """Translate the standard input, line by line and in order, to the standard output."""
    from experiments.machine_translation import output as asked

    links, plot = asked.writable(options.alignments, asked.ALIGNMENTS), asked.picture(options.plot)
    loaded = saved.load(run_directory(options, options.output.name), average=options.average)
    voters = [loaded, *companions(options, loaded.vocabularies)[0]]
    aligned = links is not None or plot is not None
    if aligned and not any(each.attends for each in voters):
        raise UserError("--alignments and --plot need a model with attention. Got --score none.")
    translator = Translator(
        [each.model for each in voters],
        loaded.target,
        options.search,
        batch_size=64,
        align_up_to=math.inf if aligned else 0,
    )
    vocabularies, number = (loaded.source, loaded.target), 0
    lines.as_utf8(sys.stdout)
    with asked.opened(links) as stream:
        for chunk in lines.chunks(sys.stdin, translator.batch_size):
            encoded = loaded.source.encode_batch(chunk)
            found = translator(cut(encoded, translator.most_source, first=number + 1))
            for source, best in zip(chunk, found, strict=True):
                show(number, best, several=options.search.n_best > 1)
                if stream is not None:
                    asked.write_links(stream, source, best, vocabularies)
                if plot is not None and asked.draw(plot, source, best[0], vocabularies):
                    plot = None
                number += 1
    if plot is not None:
        print("--plot: no line had anything to draw", file=sys.stderr)


def show(number: int, best: list[Translation], *, several: bool) -> None:
    """Print the translation of a line, or its n best as Moses does: number ||| text ||| score."""
    if not several:
        print(best[0].text, flush=True)
        return
    for each in best:
        print(f"{number} ||| {each.text} ||| {each.score:.4f}", flush=True)


COMMANDS = {"run": run}
