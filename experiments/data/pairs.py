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

    def copyable(self, vocabulary: Any) -> "Pairs":
        """Return lines as ids that may be copied (`text.encode_copyable`)."""
        from attn_jax import text

        sources = [text.encode_copyable(vocabulary, line) for line in self.source]
        both = zip(self.target, sources, strict=True)
        targets = [text.encode_copyable(vocabulary, line, each.unknown) for line, each in both]
        return Pairs([each.ids for each in sources], [each.ids for each in targets])


NOTHING = Pairs([], [])


class Parts(NamedTuple):
    """Pairs to train on, to choose the best checkpoint by, and to test on."""

    train: Pairs
    dev: Pairs
    test: Pairs
