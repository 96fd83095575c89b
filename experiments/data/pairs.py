"""Pairs of a source and a target."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Pairs(NamedTuple):
    """Each example's source and target: lines of text, or encoded, as a model takes them."""

    source: Sequence[Any]
    target: Sequence[Any]

    def swapped(self) -> "Pairs":
        return Pairs(self.target, self.source)

    def encoded(self, source: Any, target: Any) -> "Pairs":
        """Return lines as ids of these vocabularies."""
        return Pairs(source.encode_batch(self.source), target.encode_batch(self.target))


NOTHING = Pairs([], [])


class Parts(NamedTuple):
    """Pairs to train on, to choose the best checkpoint by, and to test on."""

    train: Pairs
    dev: Pairs
    test: Pairs
