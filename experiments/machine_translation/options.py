"""The options of each command of machine-translation."""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.data.parallel_text import CorpusOptions, EvaluationFiles
from experiments.harness.commands import RunOptions
from experiments.seq2seq.options import (
    BleuTokenize,
    FitOptions,
    ModelOptions,
    NBestOptions,
    SearchOptions,
    SystemOptions,
    TrainAndEvaluate,
    UpdateOptions,
)

MODEL = ModelOptions(embedding=256, features=320, tied=True, dropout=0.35)
UPDATE = {"label_smoothing": 0.1, "batch_size": 128}
FIT = FitOptions(steps=3600, evaluate_every=250, **UPDATE)
SEARCH = SearchOptions(beam=5, length_penalty=1.0)


@dataclass(frozen=True)
class Translate(SystemOptions):
    """Translate the standard input, line by line and in order, to the standard output."""

    search: NBestOptions = NBestOptions(beam=5, length_penalty=1.0)  # noqa: RUF009 - it is frozen
    alignments: Path | None = None
    """Write word alignments, in Pharaoh's format (0-0 1-2), to a file, a line for each line of
    output. Words are what stands between spaces."""
    plot: Path | None = None
    """Draw the weights of the first line that has any to a file, a PNG by default; FILE.html is a
    page to explore them."""


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
    fit: UpdateOptions = UpdateOptions(**UPDATE)  # noqa: RUF009 - it is frozen


@dataclass(frozen=True)
class Train(Evaluate, TrainAndEvaluate):
    """Train an encoder-decoder with attention on pairs of lines, and evaluate it."""

    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    model: ModelOptions = MODEL
    fit: FitOptions = FIT
    twin: bool = False
    """Train the model without attention as well, of as many parameters."""
