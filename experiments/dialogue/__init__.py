"""Answer what is said, word by word, with attention on what was said.

    python -m experiments dialogue                                   train and evaluate
    python -m experiments dialogue --context 3                       on up to three turns
    python -m experiments dialogue --train-source a.txt --train-target b.txt --name mine
    python -m experiments dialogue chat                              talk to the model; Ctrl-D ends

Without files the data are 65,182 pairs of turns of the chitchat data set (8 MB, downloaded once):
students who talk to each other, unmoderated, and so are the answers. Minutes of training on two
cores teach greetings, thanks, questions in return; they teach no facts and no memory.

`train` trains the model and its twin without attention, and reports the perplexity of both and of a
unigram, and how long and how various the answers are (distinct-1 and distinct-2: Li et al. 2016).
"""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.data import conversations
from experiments.data.parallel_text import Corpus, EvaluationFiles, TextPairs
from experiments.harness.commands import Command
from experiments.harness.options import Positive
from experiments.seq2seq.options import (
    FitOptions,
    ModelOptions,
    SamplingOptions,
    SystemOptions,
    TrainAndEvaluate,
)

MODEL = ModelOptions(embedding=128, features=256, order="step_then_attend", tied=True, dropout=0.3)
SEARCH = SamplingOptions(longest=1.0)
FIT = FitOptions(steps=2000, learning_rate=1e-3, batch_size=128, evaluate_every=250)


@dataclass(frozen=True)
class Turns(TextPairs):
    """Turns and their answers, and how they become tokens."""

    context: Positive[int] = 1
    """The most turns before an answer that are read, of the data that come without files; of your
    own files a line is what is read."""
    most_words: Positive[int] = 20
    """Longer turns are left out, of the data that come without files."""

    def out_of_the_box(self) -> Corpus:
        how = {"turns": self.context, "most_words": self.most_words, "data_dir": self.data_dir}
        note = "turns of the chitchat data set; held out are whole conversations"
        return Corpus(*conversations.load(**how), ("said", "answered"), (note,))


TURNS = Turns(tokens="word", lowercase=True)


@dataclass(frozen=True)
class Chat(SystemOptions):
    """Answer what is typed, line by line; Ctrl-D ends."""

    search: SamplingOptions = SEARCH
    plot: Path | None = None
    """Draw the weights of each answer over what was said: FILE_1.png, FILE_2.png …"""


@dataclass(frozen=True)
class Evaluate(SystemOptions):
    """Evaluate a trained model on the test turns of its training, or on other ones."""

    search: SamplingOptions = SEARCH
    corpus: EvaluationFiles = field(default_factory=EvaluationFiles)


@dataclass(frozen=True)
class Train(Evaluate, TrainAndEvaluate):
    """Train a model that answers, and its twin without attention; evaluate."""

    corpus: Turns = TURNS
    model: ModelOptions = MODEL
    fit: FitOptions = FIT


COMMANDS = {
    "train": Command(Train, "dialogue.report.train"),
    "evaluate": Command(Evaluate, "dialogue.report.evaluate"),
    "chat": Command(Chat, "dialogue.prompt.chat"),
}
