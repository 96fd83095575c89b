"""Utterances to train and test on: made by espeak-ng, joined of clips, or a person's own."""

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attn_jax.text import read_lines
from experiments.data import speech, speech_features
from experiments.data.speech import Utterance
from experiments.data.speech_features import RATE
from experiments.harness.errors import UserError, as_user_errors, listed
from experiments.speech_recognition import Sound

CLIP = re.compile(r"(?P<label>[^_]+)_(?P<speaker>[^_]+)_(?P<number>[^_]+)")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
AUDIBLE = (".wav", ".flac", ".ogg")
SPEED = 1.15  # the most by which clips to train on are faster or slower
HELD_OUT = 10  # one clip, or one file, of so many is not trained on
KNOWN, LEFT_OUT = "known speakers", "speakers left out"


class Sounds(NamedTuple):
    """Utterances to train on, to choose by, and of each test."""

    training: list[Utterance]
    dev: list[Utterance]
    tests: dict[str, list[Utterance]]


def load(options: Sound) -> Sounds:
    """Return what the options name."""
    if options.audio is not None and options.transcripts is not None:
        return own(options.audio, options.transcripts)
    if options.recordings is not None:
        return recordings(options)
    if options.smoke:
        return beeps()
    parts = speech.load(options.data_dir)
    return Sounds(parts["training"], parts["dev"], {"unseen voices and sentences": parts["test"]})


def beeps() -> Sounds:
    """Return a made-up language for a tiny run: each letter is a tone."""
    rng = np.random.default_rng(0)

    def made() -> Utterance:
        words = ["".join(rng.choice(list("abc"), rng.integers(1, 4))) for _ in range(2)]
        samples, times = [], []
        for word in words:
            start = sum(map(len, samples))
            for letter in word:
                tone = np.sin(2 * np.pi * 400 * (1 + "abc".index(letter)) * np.arange(1600) / RATE)
                samples.append(0.3 * tone.astype(np.float32))
            times.append((start / RATE, sum(map(len, samples)) / RATE))
            samples.append(np.zeros(800, np.float32))
        features = speech_features.log_mel(np.concatenate(samples))
        return Utterance(features, " ".join(words), np.array(times), "beep")

    return Sounds([made() for _ in range(64)], [made() for _ in range(8)], {"beeps": [made()] * 4})


def recordings(options: Sound) -> Sounds:
    """Return utterances of three to seven clips of one speaker, joined with random gaps."""
    folder = options.recordings
    clips: dict[str, list[tuple[str, np.ndarray]]] = {}
    for path in files_of(folder, "--recordings"):
        named = CLIP.fullmatch(path.stem)
        if named is None:
            rule = "{label}_{speaker}_{n}"
            raise UserError(f"--recordings: clips must be named {rule}. Got {path.name}.")
        label = named["label"]
        word = DIGITS[int(label)] if label.isdecimal() and len(label) == 1 else label.lower()
        clips.setdefault(named["speaker"], []).append((word, speech_features.read(path)))
    for speaker in options.test_speakers:
        if speaker not in clips:
            raise UserError(f"--test-speakers: no clip is {speaker}'s. Known: {listed(clips)}.")
    known = [name for name in clips if name not in options.test_speakers]
    if not known:
        raise UserError("--test-speakers leaves nobody to train on.")
    rng = np.random.default_rng(0)
    held, rest = {}, {}
    for name in known:
        order = rng.permutation(len(clips[name]))
        count = max(len(order) // HELD_OUT, 1)
        held[name] = [clips[name][place] for place in order[:count]]
        rest[name] = [clips[name][place] for place in order[count:]] or held[name]
    tests = {KNOWN: joined(held, 200, rng)}
    if options.test_speakers:
        others = {name: clips[name] for name in options.test_speakers}
        tests[LEFT_OUT] = joined(others, 200, rng)
    training = joined(rest, options.joined, rng, speed=SPEED)
    return Sounds(training, joined(held, 100, rng), tests)


def joined(
    clips: dict[str, list[tuple[str, np.ndarray]]],
    count: int,
    rng: np.random.Generator,
    *,
    speed: float = 1.0,
) -> list[Utterance]:
    """Return utterances, each of one speaker's clips with gaps of up to 0.3 seconds.

    With a speed above 1 each is played faster or slower by up to that factor, which changes the
    voice as well (Ko et al. 2015, "Audio augmentation for speech recognition").
    """
    speakers, made = sorted(clips), []
    for number in range(count):
        speaker = speakers[number % len(speakers)]
        own, factor = clips[speaker], speed ** rng.uniform(-1, 1)
        samples, words, times, at = [], [], [], 0
        for place in rng.integers(len(own), size=int(rng.integers(3, 8))):
            gap = np.zeros(int(rng.uniform(0, 0.3) * RATE), np.float32)
            word, clip = own[place]
            clip = played(clip, factor) * np.float32(rng.uniform(0.7, 1.4))
            samples += [gap, clip]
            times.append(((at + len(gap)) / RATE, (at + len(gap) + len(clip)) / RATE))
            words.append(word)
            at += len(gap) + len(clip)
        sound = np.concatenate(samples)
        sound = sound + rng.normal(size=len(sound)).astype(np.float32) * 1e-3
        features = speech_features.log_mel(sound)
        made.append(Utterance(features, " ".join(words), np.array(times, np.float32), speaker))
    return made


def played(samples: np.ndarray, factor: float) -> np.ndarray:
    """Return samples played faster by a factor, interpolated.

    >>> played(np.array([0.0, 1.0, 2.0, 3.0]), 2.0).tolist()
    [0.0, 2.0]
    """
    places = np.arange(0, len(samples), factor)
    return np.interp(places, np.arange(len(samples)), samples).astype(samples.dtype)


def own(folder: Path, transcripts: Path) -> Sounds:
    """Return a person's own files; every tenth one is held out."""
    with as_user_errors(ValueError):
        rows = [line for line in read_lines(transcripts) if line.strip()]
    made = []
    for number, row in enumerate(rows, 1):
        name, tab, text = row.partition("\t")
        if not tab or not text.strip():
            raise UserError(f"line {number} of {transcripts} must be FILE, a tab, the text.")
        path = folder / name
        if not path.is_file():
            raise UserError(
                f"line {number} of {transcripts} names {name}, which is not in {folder}."
            )
        features = speech_features.log_mel(speech_features.read(path))
        written = " ".join(unicodedata.normalize("NFC", text).lower().split())
        made.append(Utterance(features, written, np.zeros((0, 2), np.float32), ""))
    if len(made) < 2:
        raise UserError(f"{transcripts} needs 2 lines at least. Got {len(made)}.")
    held = made[::HELD_OUT]
    training = [each for place, each in enumerate(made) if place % HELD_OUT]
    return Sounds(training, held, {"every tenth file": held})


def files_of(folder: Path | None, option: str) -> list[Path]:
    """Return the sound files of a folder, in order."""
    assert folder is not None
    if not folder.is_dir():
        raise UserError(f"{option} needs a folder. Got {folder}.")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in AUDIBLE)
    if not found:
        raise UserError(f"{folder} holds no sound file ({listed(AUDIBLE)}).")
    return found
