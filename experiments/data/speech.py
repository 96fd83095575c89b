"""Sentences said by many voices of espeak-ng, with the time of each word; made once, then cached.

Half of the sentences are random words of a list of 1,000, the most frequent ones of Python's own
help; a small grammar about what animals would do makes a third, and what is left is both. Voices
and sentences of the test are in no other part.
"""

import concurrent.futures
import itertools
import multiprocessing
import os
import re
import zlib
from collections import Counter
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

import numpy as np

from experiments.data import espeak
from experiments.data.pypi_archive import CACHE
from experiments.data.speech_features import HOP, RATE, SECONDS, log_mel, resampled
from experiments.harness.files import write_with

WOODCHUCK = "how much would a woodchuck chuck if a woodchuck could chuck wood"
VARIANTS = """
Alex Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario Michael
Mike Nguyen adam anika antonio aunty belinda boris caleb david ed f1 f2 f3 f5 grandma grandpa
gustave ian iven john linda m1 m2 m3 m5 m7 m8 marcelo max michel miguel norbert pablo paul pedro
quincy rob sandro shelby steph travis victor
"""  # of espeak-ng's folder voices/!v
VOICES = tuple(VARIANTS.split())
TEST_VOICES = ("m4", "m6", "f4", "edward")
LISTS = {
    "animal": "woodchuck beaver rabbit badger squirrel raven otter monkey donkey hedgehog",
    "deed": "chuck carry count gather stack polish hide trade paint juggle",
    "thing": "wood bread honey paper water gravel candy metal cotton pepper",
}
FORMS = (
    "how much would a {animal} {deed}",
    "if a {animal} could {deed} {thing}",
    "how much {thing} would a {animal} {deed}",
    "a {animal} would {deed} {thing}",
    "the {animal} could {deed} much {thing}",
    "how would the {animal} {deed} it",
)
WORDS = 1000
COUNTS = {"training": 12000, "dev": 200, "test": 400}
BATCH = 100  # sentences that a process makes at a time


class Utterance(NamedTuple):
    """What was said: features [frames, mels], the text, when each word begins and ends, seconds."""

    features: np.ndarray
    text: str
    words: np.ndarray  # [words, 2]
    voice: str


class Job(NamedTuple):
    """What one utterance is made of."""

    text: str
    voice: str
    seed: int


def vocabulary() -> list[str]:
    """Return the most frequent words of Python's help, of 2 to 9 small letters."""
    written = " ".join(topics.topics.values())
    counts = Counter(re.findall(r"(?<![\w.])[a-z]{2,9}(?![\w(.=\[])", written))
    return [word for word, _ in counts.most_common(WORDS)]


def sentence(rng: np.random.Generator, words: list[str]) -> str:
    """Return a random sentence of at most 12 words."""
    kind, made = rng.random(), []
    if kind < 0.15:
        made = [formed(rng, form) for form in FORMS[:2]]
    elif kind < 0.5:
        made = [formed(rng, FORMS[rng.integers(len(FORMS))])]
    if kind > 0.35:
        made += rng.choice(words, rng.integers(1, 3 if made else 7)).tolist()
    return " ".join(made)


def formed(rng: np.random.Generator, form: str) -> str:
    """Return a sentence of a form."""
    return form.format(**{name: rng.choice(some.split()) for name, some in LISTS.items()})


def jobs(part: str, count: int) -> list[Job]:
    """Return what a part is made of: the test has sentences and voices of its own."""
    words = vocabulary()
    number = list(COUNTS).index(part)
    rng = np.random.default_rng([7, number])
    voices = TEST_VOICES if part == "test" else VOICES
    made: list[Job] = []
    if part == "test":
        made = [Job(WOODCHUCK, voice, 99 + n) for n, voice in enumerate(voices)]
    while len(made) < count:
        text = sentence(rng, words)
        held = zlib.crc32(text.encode()) % 10 == 0  # a tenth of all sentences is for the test
        if held == (part == "test") and text != WOODCHUCK:
            voice = voices[rng.integers(len(voices))]
            made.append(Job(text, voice, int(rng.integers(2**31))))
    return made[:count]


def say(job: Job) -> Utterance:
    """Make one utterance: rate, pitch, silence before it, loudness and noise are drawn."""
    rng = np.random.default_rng(job.seed)
    rate, pitch = int(rng.integers(130, 200)), int(rng.integers(30, 70))
    spoken = espeak.speaker()(job.text, f"en-us+{job.voice}", rate, pitch)
    before = float(rng.uniform(0, 0.3))
    samples = resampled(spoken.samples, spoken.rate)
    samples = np.concatenate([np.zeros(int(before * RATE), np.float32), samples])
    power = float(np.mean(samples**2)) + 1e-9
    noise = rng.normal(size=len(samples)).astype(np.float32)
    samples = samples + noise * np.sqrt(power * 10 ** -rng.uniform(1.5, 4))
    starts = [before + start for start in spoken.starts]
    ends = [*starts[1:], len(samples) / RATE]
    words = np.array(list(zip(starts, ends, strict=True)), np.float32).reshape(-1, 2)
    return Utterance(log_mel(samples), job.text, words, job.voice)


def say_all(some: list[Job]) -> list[Utterance]:
    """Make several; one whose words espeak-ng counts otherwise than spaces do is left out."""
    made = map(say, some)
    return [each for each in made if len(each.words) == len(each.text.split())]


def make(counts: dict[str, int] | None = None) -> dict[str, list[Utterance]]:
    """Make all parts, in as many processes as there are cores; progress is printed."""
    counts = counts or COUNTS
    todo = {
        part: list(itertools.batched(jobs(part, count), BATCH))
        if hasattr(itertools, "batched")
        else _batched(jobs(part, count))
        for part, count in counts.items()
    }
    total, done = sum(counts.values()), 0
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[Utterance]] = {}
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        for part, batches in todo.items():
            found[part] = []
            for batch in pool.map(say_all, map(list, batches)):
                found[part] += batch
                done += BATCH
                if done % (10 * BATCH) == 0:
                    print(f"  {min(done, total):,} of {total:,} sentences said", flush=True)
    return found


def _batched(some: list[Job]) -> list[list[Job]]:
    return [some[at : at + BATCH] for at in range(0, len(some), BATCH)]


def load(data_dir: Path | None = None) -> dict[str, list[Utterance]]:
    """Return the parts, from the cache folder where they are there."""
    settings = repr(([jobs(*each) for each in COUNTS.items()], HOP, RATE))
    path = (data_dir or CACHE).expanduser() / f"speech-{zlib.crc32(settings.encode()):08x}.npz"
    if path.is_file():
        return read(path)
    print("making speech by espeak-ng, once …", flush=True)
    found = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_with(path, lambda temporary: save(temporary, found))
    return found


def save(path: Path, parts: dict[str, list[Utterance]]) -> None:
    """Write all parts to one file."""
    arrays = {}
    for part, some in parts.items():
        arrays[f"{part}.features"] = np.concatenate([each.features for each in some])
        arrays[f"{part}.frames"] = np.array([len(each.features) for each in some])
        arrays[f"{part}.text"] = np.array([each.text for each in some])
        arrays[f"{part}.times"] = np.concatenate([each.words for each in some])
        arrays[f"{part}.voice"] = np.array([each.voice for each in some])
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> dict[str, list[Utterance]]:
    """Read them again."""
    parts = {}
    with np.load(path) as stored:
        for part in dict.fromkeys(name.split(".")[0] for name in stored.files):
            texts = stored[f"{part}.text"].tolist()
            frames = np.split(stored[f"{part}.features"], np.cumsum(stored[f"{part}.frames"])[:-1])
            ends = np.cumsum([len(text.split()) for text in texts])[:-1]
            times = np.split(stored[f"{part}.times"], ends)
            voices = stored[f"{part}.voice"].tolist()
            parts[part] = list(map(Utterance, frames, texts, times, voices))
    return parts


def regions(utterance: Utterance, positions: int, frames: int) -> np.ndarray:
    """Return for each character of the text which positions of a memory lie in its word's time.

    Positions are `frames` frames each; ± 50 ms count in. A space belongs to no word.
    """
    centres = (np.arange(positions) + 0.5) * frames * SECONDS
    rows, word = [], 0
    for character in utterance.text:
        if character == " ":
            word += 1
            rows.append(np.zeros(positions, bool))
            continue
        start, end = utterance.words[word]
        rows.append((centres >= start - 0.05) & (centres <= end + 0.05))
    return np.array(rows)
