"""Translate lines of one language into another with attention, trained on your own text.

    python -m experiments machine-translation train --train-source a.de --train-target a.en \
        --dev-source b.de --dev-target b.en --test-source c.de --test-target c.en --name mine
    python -m experiments machine-translation evaluate --name mine
    python -m experiments machine-translation translate --name mine < new.de > new.en

Files are line-aligned UTF-8, one sentence a line. `train` writes the vocabularies, checkpoints and
a learning curve, then evaluates.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments.errors import UserError
from experiments.runs import Output, Run, checked_name, start, write
from experiments.runs import to_json
from experiments.translation import corpora, fits, models, saved
from experiments.translation.fits import FitOptions
from experiments.translation.models import ModelOptions
from experiments.translation.translator import SearchOptions, Translator


@dataclass(frozen=True)
class MachineTranslation:
    """Train an encoder-decoder with attention on pairs of lines, evaluate it, translate with it."""

    action: tyro.conf.Positional[Literal["train", "evaluate", "translate"]] = "train"
    """What to do."""
    corpus: corpora.CorpusOptions = field(default_factory=corpora.CorpusOptions)
    model: ModelOptions = field(
        default_factory=lambda: ModelOptions(embedding=256, features=320, tied=True, dropout=0.4)
    )
    fit: FitOptions = field(
        default_factory=lambda: FitOptions(
            steps=5000, learning_rate=1.5e-3, label_smoothing=0.1, evaluate_every=250
        )
    )
    search: SearchOptions = field(default_factory=lambda: SearchOptions(beam=5, length_penalty=1.0))
    output: Output = field(default_factory=Output)
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds."""


def run(options: MachineTranslation) -> None:
    """Train, evaluate or translate."""
    if options.action == "train":
        train(options)
    raise SystemExit


def train(options: MachineTranslation) -> None:
    """Train a model, and evaluate it."""
    corpus = corpora.load(options.corpus)
    for note in corpus.notes:
        print(note)
    output = start("machine-translation", options, options.output, resume=options.resume)
    source, target = corpora.vocabularies(corpus, options.corpus)
    saved.write_vocabularies(output.directory, source, target)
    model = models.build(options.model, len(source), len(target), seed=options.fit.seed)
    count = models.parameters(options.model, len(source), len(target))
    print(f"{len(source)} source tokens, {len(target)} target tokens, {count:,} parameters")
    fit = fits.train(
        model,
        corpora.encoded(corpus.train, source, target),
        corpora.encoded(corpus.dev, source, target),
        options.fit,
        output.directory / "training",
        max_length=options.corpus.max_length,
    )
    print(fit.best, fit.best_step, fit.stopped)
