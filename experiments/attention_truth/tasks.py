"""The tasks: data, budget, score, and for each step of a test target what it should look at."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import numpy as np

from attn_jax import metrics, text
from experiments.attention_truth import Grid, TaskName
from experiments.data import bible_alignments, dates
from experiments.data.dates import DateOptions
from experiments.data.pairs import Pairs
from experiments.image_captioning import FIT as CAPTION_FIT
from experiments.image_captioning import MODEL as CAPTIONS
from experiments.image_captioning import SEARCH as CAPTION_SEARCH
from experiments.image_captioning import Pictures
from experiments.image_captioning import data as pictures
from experiments.image_captioning import report as captions
from experiments.seq2seq import alignments
from experiments.seq2seq import train as engine
from experiments.seq2seq.options import FitOptions, ModelOptions, SearchOptions
from experiments.seq2seq.train import Task
from experiments.seq2seq.translator import Translation
from experiments.speech_recognition import MODEL as SPEECH
from experiments.speech_recognition import SEARCH as SPEECH_SEARCH
from experiments.speech_recognition import Sound
from experiments.speech_recognition import data as sound
from experiments.speech_recognition.report import error_rates, gold_regions, pairs_of

Gold = Sequence[np.ndarray]  # of each test pair: bool [target ids, memory]


@dataclass(frozen=True)
class Truth:
    """A task whose right attention is known.

    Attributes:
        unit: what the score is, for the table.
        gold: from a model, since its encoder decides how long the memory is.
        score: translations of the test's sources → a number.
        error: where gold are links of words: weights → the alignment error rate.
    """

    unit: str
    task: Task
    model: ModelOptions
    fit: FitOptions
    search: SearchOptions
    test: Pairs
    gold: Callable[[Any], Gold]
    score: Callable[[list[Translation]], float]
    error: Callable[[Gold], float] | None = None


def of_dates(grid: Grid, *, small: bool) -> Truth:
    """Dates in 28 languages: the field of the digit that is written."""
    options = DateOptions(test_examples=8)
    options = options.tiny() if small else options
    training, test = (dates.written(part, options) for part in ("training", "test"))
    both = dates.vocabularies(training, options.languages)
    pairs, unseen = (dates.pairs(each, *both) for each in (training, test))
    fit = FitOptions(steps=200, learning_rate=0.015, warmup=50, buckets=1)

    def gold(_: Any) -> Gold:
        return [
            date_regions(each, len(source)) for each, source in zip(test, unseen[0], strict=True)
        ]

    def score(found: list[Translation]) -> float:
        return 100 * metrics.exact_match([a.text for a in found], [each.iso for each in test])

    model = ModelOptions(embedding=32, features=48, dropout=0.0)
    task = Task(*both, engine.batches(pairs, fit), None)
    search = SearchOptions(longest=0.5)
    return Truth("exact dates, %", task, model, fit, search, unseen, gold, score)


def date_regions(written: dates.Written, length: int) -> np.ndarray:
    """Return for each character of YYYY-MM-DD the characters of its field; the language is first.

    >>> each = dates.write(date(2024, 5, 17), "en", "short")
    >>> each.text, date_regions(each, 8)[[0, 4, 5, 9]].astype(int).tolist()[2]
    ('5/17/24', [0, 1, 0, 0, 0, 0, 0, 0])
    """
    regions = np.zeros((len(written.iso), length), bool)
    found = dates.fields(date.fromisoformat(written.iso), written.language, written.format)
    for name, rows in (("year", slice(0, 4)), ("month", slice(5, 7)), ("day", slice(8, 10))):
        start, end = found[name]
        regions[rows, 1 + start : 1 + end] = True
    return regions


LONGEST, HELD_OUT = 20, 500  # Greek words of a verse, verses


def of_greek(grid: Grid, *, small: bool) -> Truth:
    """Greek verses in English: the words that people linked."""
    verses = [each for each in bible_alignments.load(grid.data_dir) if len(each.greek) <= LONGEST]
    order = np.random.default_rng(0).permutation(len(verses))
    verses = [verses[place] for place in order[: 40 if small else None]]
    count = 8 if small else HELD_OUT
    lines = Pairs(
        [" ".join(map(bible_alignments.folded, each.greek)) for each in verses],
        [" ".join(each.english).lower() for each in verses],
    )
    held, training = (Pairs(*(side[part] for side in lines)) for part in parts_of(count))
    both = [
        text.Vocabulary.train(side, kind="bpe", size=min(2000, 300 if small else 2000))
        for side in training
    ]
    pairs, test = (each.encoded(*both) for each in (training, held))
    fit = FitOptions(steps=600, learning_rate=2e-3, batch_size=64, buckets=4)
    links = [each.links for each in verses[:count]]

    def gold(_: Any) -> Gold:
        return [word_regions(both, *each) for each in zip(*held, links, strict=True)]

    def score(found: list[Translation]) -> float:
        return metrics.chrf([a.text for a in found], held.target).score

    def error(weights: Gold) -> float:
        merged = alignments.merged(weights, held, both)
        return metrics.alignment_error_rate(list(map(metrics.hard_alignment, merged)), links)

    model = ModelOptions(embedding=96, features=128)
    task = Task(*both, engine.batches(pairs, fit), None)
    return Truth("chrF", task, model, fit, SearchOptions(), test, gold, score, error)


def parts_of(count: int) -> tuple[slice, slice]:
    """What is held out, and the rest."""
    return slice(count), slice(count, None)


def word_regions(
    vocabularies: Sequence[text.Vocabulary],
    source: str,
    target: str,
    links: frozenset[tuple[int, int]],
) -> np.ndarray:
    """Return for each piece of the target which pieces of the source belong to linked words."""
    columns, rows = (
        np.array(each.words(line), int)
        for each, line in zip(vocabularies, (source, target), strict=True)
    )
    table = np.zeros((rows.max() + 1, columns.max() + 1), bool)
    for source_word, target_word in links:
        table[target_word, source_word] = True
    return table[rows[:, None], columns[None]]


def of_captions(grid: Grid, *, small: bool) -> Truth:
    """Scenes: the box of the thing whose name is written."""
    options = Pictures(scenes=4000, data_dir=grid.data_dir)
    fit = dataclasses.replace(CAPTION_FIT, steps=800, warmup=100)
    parts, task = captions.prepare(options.tiny() if small else options, fit)
    test = pictures.encoded(pictures.first(parts.test), task.target)

    def gold(model: Any) -> Gold:
        cells = model.memory_length(test.source[0].shape[0])
        return pictures.gold(parts.test, task.target, cells)

    def score(found: list[Translation]) -> float:
        return 100 * captions.scores(found, parts.test)["exact_match"]

    return Truth("exact captions, %", task, CAPTIONS, fit, CAPTION_SEARCH, test, gold, score)


def of_speech(grid: Grid, *, small: bool) -> Truth:
    """Speech of espeak-ng: the time of the word whose letter is written."""
    return of_sounds(sound.load(Sound(data_dir=grid.data_dir, smoke=small)), small=small)


def of_digits(grid: Grid, *, small: bool) -> Truth:
    """Digits of people's voices, joined: likewise."""
    joined = 60 if small else 3000
    return of_sounds(sound.load(Sound(recordings=grid.recordings, joined=joined)), small=small)


def of_sounds(sounds: sound.Sounds, *, small: bool) -> Truth:
    """The first test of some sounds."""
    some = next(iter(sounds.tests.values()))[: 4 if small else 200]
    target = text.Vocabulary.train([each.text for each in sounds.training], kind="character")
    pairs, test = (pairs_of(each, target) for each in (sounds.training, some))
    fit = FitOptions(steps=1000, batch_size=min(48, len(sounds.training)), warmup=200, buckets=3)

    def score(found: list[Translation]) -> float:
        rates = error_rates([each.text for each in found], [each.text for each in some])
        return 100 * rates["character_error_rate"]

    task = Task(None, target, engine.batches(pairs, fit), None)
    gold = partial(gold_regions, some=some)
    how = (task, SPEECH, fit, SPEECH_SEARCH, test, gold, score)
    return Truth("character errors, %", *how)


TASKS: dict[TaskName, Callable[..., Truth]] = {
    "dates": of_dates,
    "greek": of_greek,
    "captions": of_captions,
    "speech": of_speech,
    "digits": of_digits,
}
