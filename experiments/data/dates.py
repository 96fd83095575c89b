"""Dates as people write them in any language of babel, and the same dates as ISO 8601 has them.

A date of 1950 … 2049, a hundred years, so that two digits tell the year, is written by babel in one
of its four formats. Which of two numbers is the day and which the month only the language tells:
it stands before the text as a token of its own, `<de>`. Days are split into training, dev and test
before any is written: a held-out day is unseen in every language and format.
"""

import datetime
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.data.pairs import Pairs
from experiments.harness.errors import UserError, unknown
from experiments.harness.options import Options, Positive

Part = Literal["training", "dev", "test"]

PARTS = ("training", "dev", "test")
FORMATS = ("short", "medium", "long", "full")
# fmt: off
LANGUAGES = (
    "en", "de", "fr", "es", "it", "pt", "nl", "sv", "fi", "pl", "cs", "hu", "tr", "vi",
    "ru", "uk", "bg", "el", "he", "ar", "hi", "ta", "th", "ka", "hy", "zh", "ja", "ko",
)
# fmt: on
EVERY = "all"
PIECE = re.compile(r"%\((\w+)\)s|%%|[^%]+")  # a field of babel's patterns, or text
FIELDS = dict.fromkeys("yYuUr", "year") | dict.fromkeys("ML", "month") | {"d": "day"}
FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
HELD_OUT = 0.1  # of all days, for dev, and as many for test
DEV_EXAMPLES = 8  # in each language and format


@dataclass(frozen=True)
class DateOptions(Options):
    """The dates."""

    languages: tuple[str, ...] = LANGUAGES
    """Codes of languages, or all: every language of babel."""
    examples: Positive[int] = 500
    """Dates written in each language and format, to train on."""
    test_examples: Positive[int] = 100
    """Unseen dates written in each language and format, to test on."""

    def tiny(self) -> "DateOptions":
        return DateOptions(chosen(self.languages)[:3], examples=10, test_examples=2)


class Written(NamedTuple):
    """A date as it is written in a language and a format, and as ISO 8601 has it."""

    text: str
    language: str
    format: str
    iso: str


@functools.cache
def known() -> tuple[str, ...]:
    """Return the codes of babel's languages, each in its usual script and country."""
    from babel import localedata

    return tuple(sorted(code for code in localedata.locale_identifiers() if "_" not in code))


def chosen(languages: Sequence[str]) -> tuple[str, ...]:
    """Return the languages of the option, each once."""
    if tuple(languages) == (EVERY,):
        return known()
    for code in languages:
        if code not in known():
            hint = f" Or {EVERY}, alone." if code != EVERY else ""
            raise unknown("language", code, known(), hint=hint)
    if not languages:
        raise UserError(f"--languages needs a language, or {EVERY}.")
    return tuple(dict.fromkeys(languages))


def name_of(language: str) -> str:
    """Return a language's English name, its code where babel has none.

    >>> name_of("de")
    'German'
    """
    from babel import Locale

    return Locale.parse(language).english_name or language


def write(date: datetime.date, language: str, format: str) -> Written:
    r"""Return a date as the language writes it.

    >>> write(datetime.date(2024, 5, 17), "de", "full").text
    'Freitag, 17. Mai 2024'
    >>> write(datetime.date(2024, 5, 17), "ar", "short")
    Written(text='17\u200f/5\u200f/2024', language='ar', format='short', iso='2024-05-17')
    """
    from babel.dates import format_date

    return Written(format_date(date, format, locale=language), language, format, date.isoformat())


def fields(date: datetime.date, language: str, format: str) -> dict[str, tuple[int, int]]:
    """Return where the year, the month and the day stand in a date as it is written, in NFC.

    >>> fields(datetime.date(2024, 5, 17), "de", "full")
    {'day': (9, 11), 'month': (13, 16), 'year': (17, 21)}
    """
    from babel.dates import DateTimeFormat, get_date_format, parse_pattern

    values = DateTimeFormat(date, language)
    written, found = "", {}
    for piece in PIECE.finditer(parse_pattern(get_date_format(format, language)).format):
        start = len(unicodedata.normalize("NFC", written))
        written += values[piece[1]] if piece[1] else piece[0].replace("%%", "%")
        if piece[1] and piece[1][0] in FIELDS:
            end = len(unicodedata.normalize("NFC", written))
            found[FIELDS[piece[1][0]]] = (start, end)
    return found


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the days of training, dev and test, by their ordinals: always the same ones."""
    days = np.random.default_rng(0).permutation(np.arange(FIRST.toordinal(), LAST.toordinal() + 1))
    held_out = int(HELD_OUT * len(days))
    dev, test, training = np.split(days, [held_out, 2 * held_out])
    return training, dev, test


def written(part: Part, options: DateOptions) -> list[Written]:
    """Write days of a part in every language and format, other days in each."""
    place = PARTS.index(part)
    count = (options.examples, DEV_EXAMPLES, options.test_examples)[place]
    return drawn(split()[place], chosen(options.languages), count, seed=place)


def drawn(days: np.ndarray, languages: Sequence[str], count: int, *, seed: int) -> list[Written]:
    """Write `count` random days in each language and format; no day twice if it can be."""
    rng = np.random.default_rng([seed, 1])  # not the stream that split the days
    return [
        write(datetime.date.fromordinal(day), language, form)
        for language, form in itertools.product(languages, FORMATS)
        for day in rng.choice(days, count, replace=count > len(days)).tolist()
    ]


# As ids


def vocabularies(training: Sequence[Written], languages: Sequence[str]) -> tuple[Any, Any]:
    """Return the characters of the texts and of ISO dates; each language is a token of its own."""
    from attn_jax import text

    names = tuple(f"<{each}>" for each in languages)
    return (
        text.Vocabulary.train([x.text for x in training], kind="character", extra=names),
        text.Vocabulary.train([x.iso for x in training], kind="character"),
    )


def languages_of(source: Any) -> tuple[str, ...]:
    """Return the languages that a vocabulary of sources has tokens of."""
    return tuple(name.strip("<>") for name in source.extra)


def sources(texts: Iterable[tuple[str, str]], vocabulary: Any) -> list[list[int]]:
    """Return (text, language) as ids: the language, then the characters. An empty text has none."""
    texts = list(texts)
    ids = vocabulary.encode_batch([each for each, _ in texts])
    language = functools.cache(lambda code: vocabulary.special(f"<{code}>"))
    return [
        [language(code), *each] if each else [] for (_, code), each in zip(texts, ids, strict=True)
    ]


def unseen(text: str, vocabulary: Any) -> str:
    """Return the characters of a text that the vocabulary does not know, each once."""
    from attn_jax.text import UNKNOWN

    characters = unicodedata.normalize("NFC", text)
    ids = vocabulary.encode(characters)
    return "".join(dict.fromkeys(a for a, i in zip(characters, ids, strict=True) if i == UNKNOWN))


def pairs(written: Sequence[Written], source: Any, target: Any) -> Pairs:
    """Return the examples as ids."""
    return Pairs(
        sources([(each.text, each.language) for each in written], source),
        target.encode_batch([each.iso for each in written]),
    )
