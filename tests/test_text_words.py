"""Which word each token of a line stands in, and the form in which lines compare."""

import itertools
import re
import unicodedata

import numpy as np
import pytest

from attn_jax.text import Vocabulary, tokenization

KINDS = ["word", "character", "bpe"]
LINES = [
    "Don't panic, Peter-Paul!",
    "  a (very)  small   step ",
    "Größe: 3,5 m – „im Freien“ …",
    "A a aa Aa",
    "ab\tcd\u00a0ef",
    "漢字 unknown, ab",
    "a",
    " ",
    "",
]


@pytest.mark.parametrize(
    ("kind", "pieces", "expected"),
    [
        ("bpe", ["▁", "Z", "a", "▁b"], [0, 0, 0, 1]),
        ("bpe", ["▁a", "▁a"], [0, 1]),
        ("bpe", ["▁", "▁", "▁a", "▁", "▁b", "▁"], [0, 0, 0, 1, 1, 1]),
        ("bpe", ["▁don", "'", "t", "▁go", "!"], [0, 0, 0, 1, 1]),
        ("character", ["a", " ", " ", "b", "b"], [0, 1, 1, 1, 1]),
        ("word", ["don", "‿'‿", "t", "go", "‿!"], [0, 0, 0, 1, 1]),
        ("word", ["(‿", "a", "‿)", "b"], [0, 0, 0, 1]),
        ("character", [], []),
    ],
)
def test_words_are_counted(kind, pieces, expected):
    assert tokenization.words(kind, pieces) == expected


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_word_make_that_word(kind, lowercase):
    """Whatever the kind, capitals, spaces and characters that the training did not hold."""
    vocabulary = Vocabulary.train(LINES[:5], kind=kind, lowercase=lowercase)
    for line in LINES:
        places = vocabulary.words(line)
        assert len(places) == len(vocabulary.encode(line))
        assert places == sorted(places)
        rebuilt = [""] * len(line.split())
        for piece, place in zip(vocabulary.tokens(line), places, strict=True):
            if piece := re.sub("[▁␣]", "", piece):
                rebuilt[place] += piece
        assert rebuilt == vocabulary.normal(line).split()
    longer = vocabulary.words("İİ a")  # two letters more in lower case
    assert longer == sorted(longer)
    assert (longer[0], longer[-1], longer.count(1) <= 2) == (0, 1, True)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_ids_are_those_of_the_decoded_line(kind):
    """Also of ids that no line encodes to, as a model may write them."""
    vocabulary = Vocabulary.train(LINES[:5], kind=kind, extra=("<de>",))
    for line in LINES:
        if "漢" not in line:
            assert vocabulary.words_of(vocabulary.encode(line)) == vocabulary.words(line)
    drawn = np.random.default_rng(5).integers(4, len(vocabulary), (50, 9))
    drawn[::7, 3], drawn[::5, 4] = 1, 4  # unknown, and a token without text
    for ids in drawn.tolist():
        words = vocabulary.decode(ids).split()
        for (place, of_one), word in zip(
            itertools.groupby(zip(vocabulary.words_of(ids), ids, strict=True), lambda x: x[0]),
            enumerate(words),
            strict=True,
        ):
            written = vocabulary.decode([number for _, number in of_one])
            assert (place, "".join(written.split())) == word


def test_lines_compare_in_the_vocabularys_form():
    decomposed = unicodedata.normalize("NFD", "Été À ﬁ")
    assert Vocabulary.train(["a"]).normal(decomposed) == "Été À ﬁ"
    assert Vocabulary.train(["a"], lowercase=True).normal(decomposed) == "été à ﬁ"
    assert Vocabulary.train(["a"], normalization="NFKC").normal(decomposed) == "Été À fi"
