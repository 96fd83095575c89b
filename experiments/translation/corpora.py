"""Line-aligned files as pairs of lines, and the vocabularies of the training side."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from experiments.errors import UserError
from experiments.translation.fits import Pairs

PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class CorpusOptions:
    """Pairs of lines, and how they become tokens."""

    train_source: Path | None = None
    """Training text, one sentence a line."""
    train_target: Path | None = None
    """Its translation, line by line."""
    dev_source: Path | None = None
    """Held-out text that chooses the best checkpoint. Default: lines held out of the training."""
    dev_target: Path | None = None
    """Its translation."""
    test_source: Path | None = None
    """Text that nothing is chosen by. Default: none; the dev lines are reported."""
    test_target: Path | None = None
    """Its translation."""
    tokens: Literal["word", "character", "bpe"] = "bpe"
    """How a line falls into tokens."""
    vocabulary: int | None = 6000
    """The most tokens on each side."""
    min_frequency: int = 2
    """Words, characters or merges that are rarer are unknown."""
    lowercase: bool = False
    """Take capitals for small letters, on both sides."""
    max_length: int = 100
    """Pairs with a longer side are left out of training."""


class Lines(NamedTuple):
    """Pairs of lines."""

    source: list[str]
    target: list[str]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What to train on, to choose by, and to report on."""

    train: Lines
    dev: Lines
    test: Lines
    names: tuple[str, str]  # of the two sides
    notes: tuple[str, ...]


def load(options: CorpusOptions) -> Corpus:
    """Read the files that were named."""
    parts = {part: _read(options, part) for part in PARTS}
    notes = [
        f"{part}: {len(lines.source):,} pairs of lines" for part, lines in parts.items() if lines
    ]
    names = tuple(
        (getattr(options, f"train_{side}").suffix.lstrip(".") or side)
        for side in ("source", "target")
    )
    return Corpus(
        parts["train"],
        parts["dev"] or Lines([], []),
        parts["test"] or Lines([], []),
        names,
        tuple(notes),
    )


def _read(options: CorpusOptions, part: str) -> Lines | None:
    """Return one part, None where no file was named."""
    from attn_jax import text

    source, target = (getattr(options, f"{part}_{side}") for side in ("source", "target"))
    if source is None and target is None:
        return None
    if source is None or target is None:
        side = "source" if source is None else "target"
        raise UserError(f"--{part}-source and --{part}-target go together. Missing: {side}.")
    try:
        return Lines(*text.read_parallel(source, target))
    except ValueError as error:
        raise UserError(str(error)) from error


def vocabularies(corpus: Corpus, options: CorpusOptions) -> tuple[Any, Any]:
    """Return the source's and the target's vocabulary, of the training side only."""
    from attn_jax import text

    return tuple(
        text.Vocabulary.train(
            lines,
            kind=options.tokens,
            size=options.vocabulary,
            min_frequency=options.min_frequency,
            lowercase=options.lowercase,
        )
        for lines in corpus.train
    )


def encoded(lines: Lines, source: Any, target: Any) -> Pairs:
    """Return the ids of pairs of lines."""
    return Pairs(source.encode_batch(lines.source), target.encode_batch(lines.target))
