"""Does attention look where it should? Weights against gold regions, by score and normalizer.

    python -m experiments attention-truth
    python -m experiments attention-truth --tasks dates speech --seeds 1
    python -m experiments attention-truth --tasks digits --recordings FOLDER

Where it is known what a step has to look at, weights can be right or wrong:

    dates       the characters of the year, the month, the day, while its digits are written
    greek       the Greek words that people linked to an English one
    captions    the box of a thing in a scene, while its name is written
    speech      the time of a word, ± 50 ms, while its letters are written
    digits      the same of people's voices, from a folder of recordings

Each model is trained for one budget, the same for all of a task, from several seeds; the twin
without attention beside them. The decoder is fed the true target. Reported are the task's score,
how often the largest weight is in the region, the share of the weight in it, what both are by
chance, the entropy of the weights, and the share of them that is zero.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.harness.commands import Command, ResumableOptions
from experiments.harness.errors import UserError
from experiments.harness.options import Options, Positive
from experiments.seq2seq.options import NormalizerName

TaskName = Literal["dates", "greek", "captions", "speech", "digits"]
Score = Literal["additive", "bilinear", "cosine", "dot", "scaled_dot"]


@dataclass(frozen=True)
class Grid(Options):
    """What is compared."""

    tasks: tuple[TaskName, ...] = ("dates", "greek", "captions", "speech")
    """The tasks."""
    scores: tuple[Score, ...] = ("additive", "scaled_dot")
    """How queries and keys are compared."""
    normalizers: tuple[NormalizerName, ...] = (
        "softmax",
        "sparsemax",
        "entmax15",
        "entmax",
        "sigmoid",
    )
    """What turns scores into weights."""
    seeds: Positive[int] = 3
    """How many times each model is trained."""
    steps: Positive[int] | None = None
    """Training steps. Default: each task's own number."""
    recordings: Path | None = None
    """Folder of labelled clips, {label}_{speaker}_{n}.wav, for the task digits."""
    data_dir: Path | None = None
    """Folder of downloaded data. Default: ~/.cache/attn_jax."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("tasks", "scores", "normalizers"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise UserError(f"--{name} needs one or several, each once. Got {given}.")
        if ("digits" in self.tasks) != (self.recordings is not None):
            raise UserError("--tasks digits needs --recordings, and --recordings that task.")

    def tiny(self) -> "Grid":
        return Grid(
            self.tasks[:1] if "digits" in self.tasks else ("dates",),
            self.scores[:1],
            self.normalizers[:2],
            seeds=1,
            steps=min(self.steps or 3, 3),
            recordings=self.recordings,
            data_dir=self.data_dir,
        )


@dataclass(frozen=True)
class Compare(ResumableOptions):
    """Compare where attention looks with where it should."""

    grid: Grid = Grid()


COMMANDS = {"compare": Command(Compare, "attention_truth.report.compare")}
