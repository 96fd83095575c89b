"""The text of the language model: files, the vocabulary, text to tokens and back.

A text is encoded line by line: no token crosses the end of a line. Byte-pair pieces begin with a
space where a word does, that of a line's first word included, which decoding takes away again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.harness.errors import UserError

HELD_OUT = 0.1  # the last part of a text, where no other is named
SPECIAL = 4  # tokens of every vocabulary that no text holds


@dataclass(frozen=True)
class TextOptions:
    """The text."""

    text: Path | None = None
    """A plain text file, UTF-8. Default: the topics of Python's own help, 465 KB. evaluate: the
    text to evaluate, all of it. Default: what the run held out."""
    dev: Path | None = None
    """Held-out text. Default: the last tenth of the text. evaluate: as `--text`."""
    tokens: Literal["character", "bpe"] = "character"
    """What is predicted."""
    vocabulary: int | None = None
    """The most tokens. Default: all characters, or 2,000 pieces."""

    def __post_init__(self):
        if self.vocabulary is not None and self.vocabulary <= SPECIAL:
            rule = f"must be more than {SPECIAL}, the special tokens"
            raise UserError(f"--vocabulary {rule}. Got {self.vocabulary}.")


class Corpus(NamedTuple):
    """A text, and one that is held out."""

    train: str
    dev: str
    source: str


def load(options: TextOptions) -> Corpus:
    """Read the text."""
    if options.text is None:
        if options.dev is not None:
            raise UserError("--dev needs --text.")
        whole, source = python_topics(), "the topics of Python's help"
    else:
        whole, source = read(options.text), str(options.text)
    if options.dev is not None:
        return Corpus(whole, read(options.dev), source)
    cut = int(len(whole) * (1 - HELD_OUT))
    return Corpus(whole[:cut], whole[cut:], source)


def read(path: Path) -> str:
    """Read a text file."""
    from attn_jax import text

    try:
        return "\n".join(text.read_lines(path)) + "\n"
    except ValueError as error:
        raise UserError(str(error)) from error


def python_topics() -> str:
    """Return a text that every Python brings: what `help` says about the language."""
    from pydoc_data import topics

    return "\n".join(f"{name}\n\n{written}" for name, written in sorted(topics.topics.items()))


def train_vocabulary(corpus: Corpus, options: TextOptions) -> Any:
    """Return the vocabulary of the training text."""
    from attn_jax import text

    size = options.vocabulary
    if size is None and options.tokens == "bpe":
        size = 2000
    try:
        return text.Vocabulary.train(parts(corpus.train), kind=options.tokens, size=size)
    except ValueError as error:
        raise UserError(f"{corpus.source} makes no vocabulary: {error}") from error


def parts(written: str) -> list[str]:
    r"""Cut a text into lines, each with its end.

    >>> parts("a\n\n b")
    ['a\n', '\n', ' b']
    """
    return re.findall(".*\n|.+", written)


def encode(vocabulary: Any, written: str) -> np.ndarray:
    """Return a text's ids."""
    ids = [i for line in vocabulary.encode_batch(parts(written)) for i in line]
    return np.asarray(ids, np.int32)


def decode(vocabulary: Any, ids: Iterable[int]) -> str:
    """Return the text of ids: that of each line, as it was encoded."""
    first = len(vocabulary) - len(vocabulary.entries)
    ends = {i for i, entry in enumerate(vocabulary.entries, first) if entry.endswith("\n")}
    lines: list[list[int]] = [[]]
    for i in map(int, ids):
        lines[-1].append(i)
        if i in ends:
            lines.append([])
    return "".join(map(vocabulary.decode, lines))


def predicted_characters(vocabulary: Any, written: str, ids: np.ndarray) -> int:
    """Return how many characters of a text are in tokens but the first, in the vocabulary's form.

    What comes first is given, not predicted.
    """
    return len(vocabulary.normal(written)) - len(decode(vocabulary, ids[:1]))
