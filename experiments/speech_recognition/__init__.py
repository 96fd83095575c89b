"""Write down what is said, character by character: audio against characters.

    python -m experiments speech-recognition                              speech of espeak-ng
    python -m experiments speech-recognition --recordings DIR --test-speakers NAME --name digits
    python -m experiments speech-recognition --audio DIR --transcripts FILE --name mine
    python -m experiments speech-recognition transcribe --name mine a.wav b.flac

By default 59 voices of espeak-ng say sentences of a grammar and of 1,000 words; the test's voices
and sentences are in no other part. With `--recordings` it is clips of one word each, named
{label}_{speaker}_{n}.wav, of which three to seven are joined with gaps.

The encoder is the pyramid of Listen, Attend and Spell (Chan et al. 2016) on log-mel features, the
decoder writes characters. Reported are character and word error rate, how often the largest weight
lies in the time of the word (± 50 ms) while its letters are written, and whether attention goes
forward only.

Expected on two cores, in a quarter of an hour and the four minutes that making the speech takes:
803,575 parameters and 3,000 steps get 2.2 % of the characters of the test wrong (one seed), and the
woodchuck right. The largest weight is in the word's time for 99.9 % of its letters, by chance 22 %.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Self

import tyro

from experiments.harness.commands import Command
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive, at_least
from experiments.seq2seq import options as shared
from experiments.seq2seq.options import FitOptions, SearchOptions, SystemOptions, TrainAndEvaluate

NAME = "speech-recognition"
SEARCH = SearchOptions(beam=4, length_penalty=0.6, longest=0.5, max_source=4000)


@dataclass(frozen=True)
class Sound(Options):
    """The sound."""

    recordings: Path | None = None
    """Folder of clips of one word each, {label}_{speaker}_{n}.wav, that are joined."""
    test_speakers: tuple[str, ...] = ()
    """Speakers of the clips that are not trained on."""
    joined: Annotated[int, at_least(20)] = 3000
    """Utterances made of the clips, to train on."""
    audio: Path | None = None
    """Folder of your own sound files: WAV, FLAC, OGG."""
    transcripts: Path | None = None
    """What they say: a line for each, FILE, a tab, the text."""
    data_dir: Path | None = None
    """Where the speech that is made is kept. Default: ~/.cache/attn_jax."""
    smoke: tyro.conf.Suppress[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if (self.audio is None) != (self.transcripts is None):
            missing = "--audio" if self.audio is None else "--transcripts"
            raise UserError(f"--audio and --transcripts go together. Missing: {missing}.")
        if self.audio is not None and self.recordings is not None:
            raise UserError("sound comes from --recordings or from --audio. Got both.")
        if self.test_speakers and self.recordings is None:
            raise UserError("--test-speakers needs --recordings.")

    def tiny(self) -> Self:
        return dataclasses.replace(self, smoke=True, joined=min(self.joined, 60))


@dataclass(frozen=True)
class ModelOptions(shared.ModelOptions):
    """The encoder-decoder."""

    encoder: ClassVar[str] = "pyramid"

    location: NonNegative[int] = 8
    """Filters over the last weights (Chorowski et al. 2015); 0: none."""
    window: tuple[int, int] | None = None
    """Positions of the memory (50 ms each) left and right of the last weights' median that may be
    attended to. Default: all."""


MODEL = ModelOptions(embedding=64, features=160, order="step_then_attend", dropout=0.2)
FIT = FitOptions(steps=3000, batch_size=48, warmup=300, evaluate_every=250, buckets=4)


@dataclass(frozen=True)
class Transcribe(SystemOptions):
    """Print what sound files say."""

    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """WAV, FLAC or OGG, of any rate, mono or stereo."""
    search: SearchOptions = SEARCH
    plot: Path | None = None
    """Draw the weights of the first one over time to a file; FILE.html is a page that plays
    the sound."""


@dataclass(frozen=True)
class Evaluate(SystemOptions):
    """Evaluate a trained model on the test utterances of its training."""

    search: SearchOptions = SEARCH
    limit: Positive[int] = 1000
    """The most utterances of each test."""

    def tiny(self) -> Self:
        return dataclasses.replace(super().tiny(), limit=min(self.limit, 8))


@dataclass(frozen=True)
class Train(Evaluate, TrainAndEvaluate):
    """Train a model that writes down what is said; evaluate."""

    sound: Sound = field(default_factory=Sound)
    model: ModelOptions = MODEL
    fit: FitOptions = FIT
    twin: bool = False
    """Train the model without attention as well, of as many parameters."""


COMMANDS = {
    "train": Command(Train, "speech_recognition.report.train"),
    "evaluate": Command(Evaluate, "speech_recognition.report.evaluate"),
    "transcribe": Command(Transcribe, "speech_recognition.transcribe.transcribe"),
}
