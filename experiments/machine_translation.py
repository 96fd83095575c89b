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
goes on with `--resume`.
"""

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments import tables
from experiments.errors import UserError
from experiments.runs import Output, Run, checked_name, start, write
from experiments.translation import corpora, fits, lines, models, saved
from experiments.translation.corpora import CorpusOptions
from experiments.translation.fits import FitOptions
from experiments.translation.models import ModelOptions
from experiments.translation.translator import SearchOptions, Translation, Translator

NAME = "machine-translation"


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
    alignments: Path | None = None
    """translate: write each line's word alignment, in Pharaoh's format (0-0 1-2), to a file."""
    plot: Path | None = None
    """translate: draw the weights of the first line to a PNG file."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds: a made-up language, a small model, few steps."""

    def __post_init__(self):
        if self.average < 1:
            raise UserError(f"--average must be at least 1. Got {self.average}.")


def run(options: MachineTranslation) -> None:
    """Train, evaluate or translate."""
    if options.smoke:  # nearly all of its time is compiling
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        options = tiny(options)
    actions = {"train": train, "evaluate": evaluate, "translate": translate, "speed": speed}
    actions[options.action](options)


def tiny(options: MachineTranslation) -> MachineTranslation:
    """Return the options of a run that takes seconds."""
    return dataclasses.replace(
        options,
        model=dataclasses.replace(options.model, embedding=16, features=16, dropout=0.1),
        fit=dataclasses.replace(
            options.fit,
            steps=min(options.fit.steps, 20),
            evaluate_every=10,
            batch_size=16,
            buckets=2,
        ),
        corpus=dataclasses.replace(options.corpus, smoke=True),
        search=dataclasses.replace(options.search, beam=2, n_best=min(options.search.n_best, 2)),
    )


# Training


def train(options: MachineTranslation) -> None:
    """Train a model, and its twin if asked for; evaluate."""
    corpus = corpora.load(options.corpus)
    for note in corpus.notes:
        print(note)
    output = start(NAME, options, options.output, resume=options.resume)
    source, target = corpora.vocabularies(corpus, options.corpus)
    saved.write_vocabularies(output.directory, source, target)
    sizes = (len(source), len(target))
    pairs = [corpora.encoded(each, source, target) for each in (corpus.train, corpus.dev)]
    chosen = {"training": options.model}
    if options.twin:
        chosen[saved.TWIN] = models.twin(options.model, *sizes)
    for directory, each in chosen.items():
        count = models.parameters(each, *sizes)
        what = "no attention" if each.score == "none" else f"{each.score} × {each.normalizer}"
        what = f"Transformer, {each.normalizer}" if each.model == "transformer" else what
        print(f"{what}: {count:,} parameters, {sizes[0]:,} source and {sizes[1]:,} target tokens")
        model = models.build(each, *sizes, seed=options.fit.seed)
        fit = fits.train(
            model,
            *pairs,
            options.fit,
            output.directory / directory,
            max_length=options.corpus.max_length,
        )
        if fit.stopped == "interrupted":
            raise KeyboardInterrupt
    report(options, corpus, saved.load(output.directory, average=options.average), output)


# Evaluation


def evaluate(options: MachineTranslation) -> None:
    """Evaluate a trained model on the test lines, those of its training or other ones."""
    directory = run_directory(options, options.output.name)
    loaded = saved.load(directory, average=options.average)
    corpus = corpora.load(corpora.as_trained(options.corpus, loaded.options["corpus"]))
    report(options, corpus, loaded, Run(directory))


def report(
    options: MachineTranslation, corpus: corpora.Corpus, loaded: saved.Saved, output: Run
) -> None:
    """Print, write and draw what the translations are worth."""
    from experiments.translation import figures, reports

    part, test = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    voters = [loaded.model, *others(options, loaded)]
    systems = {"attention": voters} | ({"no attention": [loaded.twin]} if loaded.twin else {})
    if loaded.options["model"]["score"] == "none":
        systems = {"no attention": voters}
    lowercase = loaded.options["corpus"]["lowercase"]
    rows, translations = [], {}
    for system, members in systems.items():
        for beam in sorted({1, options.search.beam}):
            search = dataclasses.replace(options.search, beam=beam, n_best=1)
            translator = Translator(members, loaded.target, search)
            found = translated(translator, loaded, test.source)
            texts = [each.text for each in found]
            row = {"system": system, "search": "greedy" if beam == 1 else f"beam {beam}"}
            rows.append(row | reports.scores(texts, test.target, lowercase=lowercase))
            translations[system] = found
    print(f"\n{part}: {len(test.source):,} lines")
    tables.print_table([readable(row) for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}\nchrF {rows[0]['chrf_signature']}")
    texts = {name: [each.text for each in found] for name, found in translations.items()}
    first = next(iter(texts))
    lengths = reports.by_length(test.source, texts, test.target, lowercase=lowercase)
    bad = reports.worst(test, texts[first], lowercase=lowercase)
    metrics: dict[str, Any] = {"part": part, "scores": rows, "by_length": lengths, "worst": bad}
    print("\nBLEU by the source's length, in words")
    tables.print_table(lengths)
    print("\nthe worst translations, by chrF")
    for each in bad[:3]:
        for name in ("source", "translation", "reference"):
            print(f"  {name:12}{each[name]}")
        print()
    if corpus.gold is not None and loaded.options["model"]["score"] != "none":
        pairs = corpora.encoded(corpus.train, loaded.source, loaded.target)
        vocabularies = (loaded.source, loaded.target)
        metrics["alignment"] = reports.alignment_errors(loaded.model, corpus, pairs, vocabularies)
        print("alignment error rate on the gold links")
        tables.print_table(metrics["alignment"])
    output.write_metrics(metrics)
    columns = {"source": test.source, "reference": test.target}
    output.write_predictions({**columns, **texts})
    drawn = (output.directory, loaded, test, translations[first], lengths, corpus.names)
    for name, figure in figures.draw(*drawn):
        output.write_figure(name, figure)
    print(f"results in  {output.directory}/")
    print(f"pictures in {output.directory / 'figures'}/")


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    names = {"system": "system", "search": "search", "bleu": "BLEU", "chrf": "chrF"}
    return {shown: row[name] for name, shown in names.items()}


def translated(
    translator: Translator, loaded: saved.Saved, sources: list[str]
) -> list[Translation]:
    """Return the best translation of each line."""
    return [best for best, *_ in translator(loaded.source.encode_batch(sources))]


def others(options: MachineTranslation, first: saved.Saved) -> list[Any]:
    """Return the models that vote beside the first one."""
    voters = []
    for name in options.ensemble:
        loaded = saved.load(run_directory(options, name), average=options.average)
        saved.require_same_vocabulary(first, loaded, name)
        voters.append(loaded.model)
    return voters


def run_directory(options: MachineTranslation, name: str) -> Path:
    """Return the directory of a run."""
    return options.output.output_dir / NAME / checked_name(name)


def speed(options: MachineTranslation) -> None:
    """Print how fast a model of these options trains and translates."""
    from experiments.translation import speed

    corpus = corpora.load(options.corpus)
    vocabularies = corpora.vocabularies(corpus, options.corpus)
    pairs = corpora.encoded(corpus.train, *vocabularies)
    given = (options.model, options.fit, corpus, vocabularies, pairs, options.corpus.max_length)
    rows = speed.compare(*given)
    tables.print_table(rows)
    output = start(f"{NAME}-speed", options, options.output)
    output.write_metrics({"rows": rows})


# Translation


def translate(options: MachineTranslation) -> None:
    """Translate the standard input, line by line and in order, to the standard output."""
    from experiments.translation import figures, reports

    loaded = saved.load(run_directory(options, options.output.name), average=options.average)
    models_ = [loaded.model, *others(options, loaded)]
    translator = Translator(models_, loaded.target, options.search, batch_size=64)
    vocabularies = (loaded.source, loaded.target)
    links: list[str] = []
    try:
        for chunk in lines.chunks(sys.stdin, translator.batch_size):
            found = translator(loaded.source.encode_batch(chunk))
            for source, best in zip(chunk, found, strict=True):
                if options.plot is not None and not links:
                    figure = figures.heat_map(source, best[0], vocabularies, ("source", "target"))
                    figures.save(figure, options.plot)
                links.append(pharaoh(reports.translation_links(source, best[0], vocabularies)))
                show(len(links) - 1, best, several=options.search.n_best > 1)
    finally:
        if options.alignments is not None:
            write(options.alignments, "".join(f"{line}\n" for line in links))


def pharaoh(links: set[tuple[int, int]]) -> str:
    """Return links as a line of Pharaoh's format."""
    from attn_jax import metrics

    return metrics.to_pharaoh(links)


def show(number: int, best: list[Translation], *, several: bool) -> None:
    """Print the translation of a line, or its n best as Moses does: number ||| text ||| score."""
    if not several:
        print(best[0].text, flush=True)
        return
    for each in best:
        print(f"{number} ||| {each.text} ||| {each.score:.4f}", flush=True)
