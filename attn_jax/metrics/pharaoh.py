"""Alignments as text, one line a sentence, in Pharaoh's format: `0-0 1-2 3p4`.

`source-target`, from 0, separated by spaces; an empty line is a sentence without links. A possible
link of a gold alignment has `p` or `?` in the place of `-`.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from attn_jax.checks import require
from attn_jax.metrics.alignments import Links

LINK = re.compile(r"([0-9]+)([-p?])([0-9]+)")


class Alignment(NamedTuple):
    """The links that are sure, and all that are possible (the sure ones among them)."""

    sure: set[tuple[int, int]]
    possible: set[tuple[int, int]]


def to_pharaoh(sure: Links, possible: Links = frozenset()) -> str:
    """One sentence's links as a line, by source position; possible ones that are not sure with `p`.

    >>> to_pharaoh({(1, 2), (0, 0)}, {(0, 0), (3, 4)})
    '0-0 1-2 3p4'
    """
    negative = sorted(link for link in sure | possible if min(link) < 0)
    require(not negative, "links", "be positions from 0 on", repr(negative[:1]))
    every = sorted(sure | possible)
    return " ".join(f"{s}{'-' if (s, t) in sure else 'p'}{t}" for s, t in every)


def from_pharaoh(line: str) -> Alignment:
    """The links of a line.

    >>> from_pharaoh("0-0 3p4").sure
    {(0, 0)}
    """
    return _parsed(line, "line")


def read_pharaoh(lines: Iterable[str]) -> list[Alignment]:
    """The links of each line of a file; a mistake is named with its line, from 1.

    >>> read_pharaoh(["0-0", "1:1"])
    Traceback (most recent call last):
    ...
    ValueError: line 2 must hold links like 0-0 or 3p4. Got '1:1'.
    """
    return [_parsed(line, f"line {number}") for number, line in enumerate(lines, start=1)]


def _parsed(line: str, name: str) -> Alignment:
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        require(match is not None, name, "hold links like 0-0 or 3p4", repr(word))
        source, kind, target = match.groups()
        possible.add((int(source), int(target)))
        if kind == "-":
            sure.add((int(source), int(target)))
    return Alignment(sure, possible)
