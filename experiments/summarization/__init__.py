"""Say in a line what a text says, with attention, and by copying its words.

    python -m experiments summarization                                 train and evaluate
    python -m experiments summarization --no-copy                       without copying
    python -m experiments summarization --table FILE --source-column text --target-column title
    python -m experiments summarization --train-source a.txt --train-target b.txt --name mine
    python -m experiments summarization summarize --name mine < texts.txt

Without files the data are the docstrings of the installed packages: the text is what follows the
first line, the summary is the first line. Bodies are unique; one in ten is held out.

With copying a word of the text can be written that the vocabulary lacks: the weights of attention
are a distribution over the text's words, mixed with the vocabulary's by a gate (See et al. 2017).
The same model without copying is trained beside it. ROUGE (Lin 2004) is reported of both, and of
the text's first words.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from experiments.data.parallel_text import Corpus, EvaluationFiles, TextPairs
from experiments.harness.commands import Command
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Positive
from experiments.seq2seq import options as shared
from experiments.seq2seq.options import SearchOptions, SystemOptions, TrainAndEvaluate

NAME = "summarization"
SEARCH = SearchOptions(beam=4, length_penalty=1.0, longest=1.0)


@dataclass(frozen=True)
class Texts(TextPairs):
    """Texts and their summaries, and how they become tokens."""

    table: Path | None = None
    """Texts and summaries of your own in one file: CSV, TSV, or JSON lines (.jsonl)."""
    source_column: str = "text"
    """The column, or the name in JSON, of the texts."""
    target_column: str = "summary"
    """That of the summaries."""

    shared: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.table is not None and self.names("train"):
            raise UserError("texts come from --table or --train-source. Got both.")

    def out_of_the_box(self) -> Corpus:
        from experiments.summarization import data

        return data.load(self)


TEXTS = Texts(tokens="word", vocabulary=4000, lowercase=True, max_length=120)


@dataclass(frozen=True)
class ModelOptions(shared.ModelOptions):
    """The encoder-decoder."""

    copy: bool = True
    """Whether words of the text may be copied."""
    coverage: bool = False
    """Whether attention knows how much weight each word had so far."""


@dataclass(frozen=True)
class FitOptions(shared.FitOptions):
    """How to train."""

    coverage_loss: NonNegative[float] = 0.0
    """Factor of the loss of attending to a word again."""


MODEL = ModelOptions(embedding=128, features=192, order="step_then_attend", dropout=0.3)
FIT = FitOptions(steps=1000, batch_size=64, evaluate_every=250, buckets=4)


@dataclass(frozen=True)
class Summarize(SystemOptions):
    """Summarize the standard input, line by line, to the standard output."""

    search: SearchOptions = SEARCH
    plot: Path | None = None
    """Draw the first line against its summary, copied words marked, to a file; FILE.html
    is a page to explore them."""


@dataclass(frozen=True)
class Evaluate(SystemOptions):
    """Evaluate a trained model on the test texts of its training, or on other ones."""

    search: SearchOptions = SEARCH
    corpus: EvaluationFiles = field(default_factory=EvaluationFiles)
    limit: Positive[int] = 1000
    """The most test texts that are summarized."""

    def tiny(self) -> Self:
        return dataclasses.replace(super().tiny(), limit=min(self.limit, 20))


@dataclass(frozen=True)
class Train(Evaluate, TrainAndEvaluate):
    """Train a model that summarizes, and the same without copying beside it; evaluate."""

    corpus: Texts = TEXTS
    model: ModelOptions = MODEL
    fit: FitOptions = FIT


COMMANDS = {
    "train": Command(Train, "summarization.report.train"),
    "evaluate": Command(Evaluate, "summarization.report.evaluate"),
    "summarize": Command(Summarize, "summarization.summarize.summarize"),
}
