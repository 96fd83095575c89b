"""Greek verses, their English translation, and which words people linked: gold word alignments.

The SBL Greek New Testament (Society of Biblical Literature and Logos Bible Software, CC BY 4.0) and
the Berean Standard Bible (public domain), with 189,927 manual links (Clear Bible and Biblica, CC BY
4.0). They come in the wheel `bible-alignments` (9 MB), which is downloaded once.
"""

import csv
import io
import itertools
import json
import unicodedata
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from experiments.data.pypi_archive import Wheel, obtain
from experiments.harness.errors import UserError

WHEEL = Wheel(
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
    """One verse: words of both sides, and its links (Greek position, English position), from 0."""

    greek: tuple[str, ...]
    english: tuple[str, ...]
    links: frozenset[tuple[int, int]]


def load(data_dir: Path | None = None) -> list[Verse]:
    """Return the verses that have links, in the order of the books: 7,919, of up to 58 words.

    454 links that cross a verse's border, where the two editions number verses differently, are
    left out, and so are the few verses that they leave without a link.
    """
    return read(obtain(WHEEL, data_dir))


def read(path: Path) -> list[Verse]:
    """Return the verses in the archive at this path, their words without punctuation."""
    place = {}  # id of a token → its verse (BBCCCVVV) and its position there; None: punctuation
    greek, english = defaultdict(list), defaultdict(list)
    links = defaultdict(set)
    with zipfile.ZipFile(path) as archive:
        for verses, name in ((greek, GREEK), (english, ENGLISH)):
            with member(archive, name) as stream:
                rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
                for row in rows:
                    verse = row["id"][1:9] if verses is greek else row["source_verse"]
                    if verses is english and row["exclude"] == "y":
                        place[row["id"]] = (verse, None)
                        continue
                    place[row["id"]] = (verse, len(verses[verse]))
                    verses[verse].append(row["text"])
        with member(archive, LINKS) as stream:
            for record in json.load(stream)["records"]:
                for ids in itertools.product(record["source"], record["target"]):
                    (verse, i), (other, j) = (place[each] for each in ids)
                    if verse == other:
                        links[verse].add((i, j))
    return [
        Verse(
            tuple(greek[verse]),
            tuple(english[verse]),
            frozenset(link for link in links[verse] if None not in link),
        )
        for verse in sorted(links)
    ]


def folded(word: str) -> str:
    """Return a word in lower case without accents, which in Greek change with the neighbours.

    >>> folded("Ἀβραὰμ") == folded("Ἀβραάμ")
    True
    """
    characters = unicodedata.normalize("NFD", word.casefold())
    return "".join(each for each in characters if not unicodedata.combining(each))


def member(archive: zipfile.ZipFile, name: str) -> io.TextIOWrapper:
    """Open a text file in the archive."""
    try:
        return io.TextIOWrapper(archive.open(name), encoding="utf-8", newline="")
    except KeyError:
        raise UserError(f"{archive.filename} holds no {name}.") from None
