"""Greek verses, their English translation, and which words people linked: gold word alignments.

The SBL Greek New Testament (Society of Biblical Literature and Logos Bible Software, CC BY 4.0) and
the Berean Standard Bible (public domain), with 189,927 manual links (Clear Bible and Biblica, CC BY
4.0). They come in the wheel `bible-alignments` (9 MB), which is downloaded once.
"""

import io
import itertools
import json
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.data import pypi_archive
from experiments.harness.errors import UserError

WHEEL = pypi_archive.Wheel(
    package="bible-alignments",
    version="0.4.2",
    file="bible_alignments-0.4.2-py3-none-any.whl",
    size=8_807_345,
    sha256="84f6b15e706657777824aac811567cb5cb2b38ad2b94497209f5f3c3f67b0984",
)
GREEK = "data/sources/SBLGNT.tsv"
ENGLISH = "data/eng/targets/BSB/nt_BSB.tsv"
LINKS = "data/eng/alignments/BSB/SBLGNT-BSB-manual.json"


@dataclass(frozen=True)
class Verse:
    """One verse: tokens of both sides, and its links (Greek position, English position), from 0."""

    reference: str
    """Book (40 is Matthew), chapter and verse: BBCCCVVV."""
    greek: tuple[str, ...]
    """Words; the edition's punctuation is not in the data."""
    english: tuple[str, ...]
    """Words and punctuation."""
    punctuation: frozenset[int]
    """Positions in `english` of what nobody links."""
    links: frozenset[tuple[int, int]]


def load(data_dir: Path | None = None, *, max_greek_words: int | None = None) -> list[Verse]:
    """Return the verses that have links, in the order of the books: 7,919, of up to 58 words.

    454 links that cross a verse's border, where the two editions number verses differently, are
    left out, and so are the few verses that they leave without a link.
    """
    path = pypi_archive.obtain(WHEEL, data_dir)
    verses = read(path)
    if max_greek_words is not None:
        verses = [verse for verse in verses if len(verse.greek) <= max_greek_words]
    return verses


def read(path: Path) -> list[Verse]:
    """Return the verses in the wheel at this path."""
    with zipfile.ZipFile(path) as wheel:
        greek, english = defaultdict(list), defaultdict(list)
        place = {}
        for row in rows(wheel, GREEK):
            append(greek, row["id"][1:9], row, place)
        for row in rows(wheel, ENGLISH):
            append(english, row["source_verse"], row, place)
        links = defaultdict(set)
        with member(wheel, LINKS) as stream:
            for record in json.load(stream)["records"]:
                for ids in itertools.product(record["source"], record["target"]):
                    (verse, i), (other, j) = (place[each] for each in ids)
                    if verse == other:
                        links[verse].add((i, j))
    return [verse_of(each, greek[each], english[each], links[each]) for each in sorted(links)]


def folded(word: str) -> str:
    """Return a word in lower case without accents, which in Greek change with the neighbours.

    >>> folded("Ἀβραὰμ") == folded("Ἀβραάμ")
    True
    """
    letters = unicodedata.normalize("NFD", word.casefold())
    return "".join(each for each in letters if not unicodedata.combining(each))


def append(verses: dict[str, list], verse: str, row: dict[str, str], place: dict) -> None:
    """Add a token to its verse, and note under its id where it is."""
    place[row["id"]] = (verse, len(verses[verse]))
    verses[verse].append(row)


def verse_of(reference: str, greek: list, english: list, links: set) -> Verse:
    """Return a verse of its rows."""
    return Verse(
        reference=reference,
        greek=tuple(row["text"] for row in greek),
        english=tuple(row["text"] for row in english),
        punctuation=frozenset(j for j, row in enumerate(english) if row["exclude"] == "y"),
        links=frozenset(links),
    )


def rows(wheel: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    """Yield each line of a tab-separated file by its header's names; no cell is quoted."""
    with member(wheel, name) as stream:
        header = stream.readline().rstrip("\r\n").split("\t")
        for line in stream:
            yield dict(zip(header, line.rstrip("\r\n").split("\t"), strict=True))


def member(wheel: zipfile.ZipFile, name: str) -> io.TextIOWrapper:
    """Open a text file in the wheel."""
    try:
        return io.TextIOWrapper(wheel.open(name), encoding="utf-8", newline="")
    except KeyError:
        raise UserError(f"{wheel.filename} holds no {name}.") from None
