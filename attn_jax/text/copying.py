"""Ids of pieces that a vocabulary lacks, so that they can be copied from the source.

What a source holds beyond the vocabulary's `size` ids gets the ids from `size` on, in the order in
which it first stands there; the same piece in its target has the same id. (See et al. 2017, section
2.2; Gu et al. 2016, "extended vocabulary".) What a target lacks in both is UNKNOWN.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attn_jax.text import tokenization
from attn_jax.text.specials import END, UNKNOWN
from attn_jax.text.vocabulary import Vocabulary


class Copyable(NamedTuple):
    """A line as ids, some of which may be beyond the vocabulary.

    Attributes:
        ids: Of each piece.
        unknown: The pieces that stand for the ids from the vocabulary's size on.
    """

    ids: list[int]
    unknown: list[str]


def encode_copyable(
    vocabulary: Vocabulary, line: str, unknown: Sequence[str] | None = None
) -> Copyable:
    """Encode a source, or with what its source lacks (`unknown`) a target.

    >>> letters = Vocabulary.train(["ab"], kind="character")
    >>> source = encode_copyable(letters, "axbyx")
    >>> source
    Copyable(ids=[4, 6, 5, 7, 6], unknown=['x', 'y'])
    >>> encode_copyable(letters, "yz", source.unknown).ids == [7, UNKNOWN]
    True
    """
    ids = vocabulary.encode(line)
    if UNKNOWN not in ids:
        return Copyable(ids, [] if unknown is None else list(unknown))
    pieces = vocabulary.pieces(line)
    lacking = [piece for piece, i in zip(pieces, ids, strict=True) if i == UNKNOWN]
    known = list(dict.fromkeys(lacking)) if unknown is None else list(unknown)
    places = {piece: len(vocabulary) + place for place, piece in enumerate(known)}
    pairs = zip(pieces, ids, strict=True)
    return Copyable([places.get(p, UNKNOWN) if i == UNKNOWN else i for p, i in pairs], known)


def decode_copied(vocabulary: Vocabulary, ids: Sequence[int], unknown: Sequence[str]) -> str:
    """The line of ids up to the first END; those beyond the vocabulary are pieces of its source.

    >>> letters = Vocabulary.train(["ab"], kind="character")
    >>> decode_copied(letters, [4, 7, 5, END], ["x", "y"])
    'ayb'
    """
    ids = list(ids)
    ids = ids[: ids.index(END)] if END in ids else ids
    size = len(vocabulary)
    written = [vocabulary.written(i) if i < size else unknown[i - size] for i in ids]
    return tokenization.join(vocabulary.kind, [*filter(None, written)])
