"""The text of the language model: files, the vocabulary, text to tokens and back.

A text is encoded line by line: no token crosses the end of a line. Byte-pair pieces begin with a
space where a word does, that of a line's first word included, which decoding takes away again.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from pydoc_data import topics
from typing import NamedTuple

import numpy as np

from attn_jax.text import Vocabulary, read_lines
from experiments.harness.errors import UserError, as_user_errors
from experiments.language_model import TextOptions

TRAINED_ON = 0.9  # the first part of a text, where no held-out text is named
PIECES = 2000


class Corpus(NamedTuple):
    """A text, and one that is held out."""

    train: str
    dev: str
    source: str


def load(options: TextOptions, *, smoke: bool = False) -> Corpus:
    """Read the text, or so much of it as a tiny run needs."""
    if options.text is None:
        if options.dev is not None:
            raise UserError("--dev needs --text.")
        train, source = python_topics(), "the topics of Python's help"
    else:
        train, source = read(options.text), str(options.text)
    if options.dev is not None:
        dev = read(options.dev)
    else:
        count = int(len(train) * TRAINED_ON)
        train, dev = train[:count], train[count:]
    return Corpus(train[:4000], dev[:500], source) if smoke else Corpus(train, dev, source)


def read(path: Path | str) -> str:
    """Read a text file."""
    with as_user_errors(ValueError):
        return "\n".join(read_lines(path)) + "\n"


def python_topics() -> str:
    """Return a text that every Python brings: what `help` says about the language."""
    return "\n".join(f"{name}\n\n{written}" for name, written in sorted(topics.topics.items()))


def train_vocabulary(corpus: Corpus, options: TextOptions) -> Vocabulary:
    """Return the vocabulary of the training text."""
    size = options.vocabulary or (PIECES if options.tokens == "bpe" else None)
    try:
        return Vocabulary.train(lines_of(corpus.train), kind=options.tokens, size=size)
    except ValueError as error:
        raise UserError(f"{corpus.source} makes no vocabulary: {error}") from error


def lines_of(written: str) -> list[str]:
    r"""Split a text into lines, each with its end.

    >>> lines_of("a\n\n b")
    ['a\n', '\n', ' b']
    """
    return re.findall(".*\n|.+", written)


def encode(vocabulary: Vocabulary, written: str) -> np.ndarray:
    """Return a text's ids."""
    ids = [i for line in vocabulary.encode_batch(lines_of(written)) for i in line]
    return np.asarray(ids, np.int32)


def decode(vocabulary: Vocabulary, ids: Iterable[int]) -> str:
    """Return the text of ids: that of each line, as it was encoded."""
    first = len(vocabulary) - len(vocabulary.entries)
    ends = {i for i, entry in enumerate(vocabulary.entries, first) if entry.endswith("\n")}
    lines: list[list[int]] = [[]]
    for i in map(int, ids):
        lines[-1].append(i)
        if i in ends:
            lines.append([])
    return "".join(map(vocabulary.decode, lines))


def predicted_characters(vocabulary: Vocabulary, written: str, ids: np.ndarray) -> int:
    """Return how many characters of a text are in tokens but the first, in the vocabulary's form.

    What comes first is given, not predicted.
    """
    return len(vocabulary.normal(written)) - len(decode(vocabulary, ids[:1]))
