"""Vocabularies: from a line of text to ids and back, as one JSON that travels with a checkpoint."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Integer

from attn_jax.checks import require
from attn_jax.text import tokenization
from attn_jax.text.specials import END, NAMES, UNKNOWN
from attn_jax.text.tokenization import Kind, Normalization

FORMAT = "attn_jax vocabulary 1"
BPE_SIZE = 8_000
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True, repr=False)
class Vocabulary:
    """The tokens of one language or task, with an id each; made by `train`, `load` or `from_json`.

    >>> vocabulary = Vocabulary.train(["Don't, Peter!", "Peter"])
    >>> ids = vocabulary.encode("Don't, Paul!", end=True)
    >>> vocabulary.tokens("Don't, Paul!"), vocabulary.decode(ids)
    (['Don', "'", 't', ',', 'Paul', '!'], "Don't, ⁇!")

    Attributes:
        kind: How a line is split into tokens; see `attn_jax.text.tokenization`.
        extra: Names of special tokens beside the four that every vocabulary has.
        entries: The tokens of text, by frequency or merge; the first id is 4 + len(extra).
        merges: The pairs of pieces that the kind `bpe` merges, in this order.
        normalization: The Unicode form that a line is brought into first.
        lowercase: Whether a line loses its capitals.
    """

    kind: Kind
    extra: tuple[str, ...]
    entries: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    normalization: Normalization
    lowercase: bool

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: Kind = "word",
        size: int | None = None,
        min_frequency: int = 1,
        lowercase: bool = False,
        normalization: Normalization = "NFC",
        extra: tuple[str, ...] = (),
    ) -> "Vocabulary":
        """Learn the tokens of a text, which has to be the training side only.

        Args:
            lines: The text.
            kind: Words and signs, characters, or pieces of words.
            size: The most ids, specials included. None: all words or characters, or 8,000 pieces.
            min_frequency: Leave out words, characters or merges that are rarer. A model learns
                what to do with UNKNOWN only where its training text has some, as from 2 on.
            lowercase: Take capitals for small letters.
            normalization: NFC keeps what a reader sees; NFKC also makes ﬁ two letters, ² a 2.
            extra: Names of further special tokens, as `<de>` for a language; no text encodes to
                them, `special` tells their ids.
        """
        _require_lines(lines)
        _require_options(kind, normalization, min_frequency, extra)
        specials = [*NAMES, *extra]
        proper = size is None or size > len(specials)
        require(proper, "size", f"be more than the {len(specials)} special tokens", size)
        if size is None:
            size = BPE_SIZE if kind == "bpe" else np.iinfo(np.int32).max
        form = {"normalization": normalization, "lowercase": lowercase}
        tokens, merges = tokenization.learn(
            list(lines), kind, specials=specials, size=size, min_frequency=min_frequency, **form
        )
        entries = tuple(tokens[len(specials) :])
        require(len(entries) > 0, "lines", "hold text that is frequent enough", "no token")
        return cls(kind, tuple(extra), entries, tuple(merges), **form)

    @functools.cached_property
    def _all(self) -> tuple[str, ...]:
        return (*NAMES, *self.extra, *self.entries)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        model = tokenization.model(self.kind, self._all, self.merges)
        form = {"normalization": self.normalization, "lowercase": self.lowercase}
        return tokenization.tokenizer(self.kind, model, **form)

    def __len__(self) -> int:
        return len(NAMES) + len(self.extra) + len(self.entries)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} ids, {self.kind}, checksum {self.checksum}>"

    def encode(self, line: str, *, end: bool = False) -> list[int]:
        """The ids of a line, and END after them if asked for. An empty line has none."""
        return self.encode_batch([line], end=end)[0]

    def encode_batch(self, lines: Sequence[str], *, end: bool = False) -> list[list[int]]:
        """The ids of each line, in parallel."""
        _require_lines(lines)
        try:
            encoded = self._tokenizer.encode_batch_fast(lines)
        except TypeError:
            wrong = [x for x in lines if not isinstance(x, str) or SURROGATE.search(x)]
            require(False, "lines", "be strings that UTF-8 can hold", repr(wrong[0]))
        return [line.ids + [END] * end for line in encoded]

    def decode(self, ids: Sequence[int] | Integer[ArrayLike, " t"]) -> str:
        """The line up to the first END, without special tokens; ⁇ where a token is unknown."""
        known = self._checked(ids)
        known = known[: known.index(END)] if END in known else known
        return tokenization.join(self.kind, [*filter(None, map(self.written, known))])

    def tokens(self, line: str) -> list[str]:
        """The readable pieces of a line, one for each id; unknown ones as they are written."""
        return [tokenization.readable(self.kind, piece) for piece in self.pieces(line)]

    def words(self, line: str) -> list[int]:
        """The word of a line, parted by white space, that each of its ids stands in.

        >>> Vocabulary.train(["a cat"], kind="character").words("a cat")
        [0, 1, 1, 1, 1]
        """
        return tokenization.words(self.kind, self.pieces(line))

    def words_of(self, ids: Sequence[int] | Integer[ArrayLike, " t"]) -> list[int]:
        """The word of `decode(ids)` that each id stands in; there is no END among them."""
        return tokenization.words(self.kind, map(self.written, self._checked(ids)))

    def normal(self, line: str) -> str:
        """A line in the vocabulary's form, in which what it decodes compares with any text.

        >>> Vocabulary.train(["a"], lowercase=True).normal("E\N{COMBINING ACUTE ACCENT}T")
        'ét'
        """
        return self._form.normalize_str(line)

    @functools.cached_property
    def _form(self) -> Any:
        return tokenization.form(self.normalization, lowercase=self.lowercase)

    def pieces(self, line: str) -> list[str]:
        """What each id of a line stands for, with the marks of the kind."""
        if self.kind != "bpe":
            return tokenization.pieces(self._tokenizer, line)
        encoded = self._tokenizer.encode(line)
        places = zip(encoded.ids, encoded.offsets, strict=True)
        return [line[slice(*at)] if i == UNKNOWN else self._all[i] for i, at in places]

    def written(self, number: int) -> str:
        """What `decode` writes for an id: nothing for a special token."""
        if number == UNKNOWN:
            return tokenization.UNREADABLE
        return self._all[number] if number >= len(NAMES) + len(self.extra) else ""

    def token(self, number: int) -> str:
        """The readable piece of one id, for a figure's axis."""
        (number,) = self._checked([number])
        if number == UNKNOWN:
            return tokenization.UNREADABLE
        return tokenization.readable(self.kind, self._all[number])

    def special(self, name: str) -> int:
        """The id of a special token, as `<de>` or `<start>`.

        >>> Vocabulary.train(["a"], extra=("<de>", "<fr>")).special("<fr>")
        5
        """
        names = [*NAMES, *self.extra]
        require(name in names, "name", f"be one of {names}", repr(name))
        return names.index(name)

    def _checked(self, ids: Any) -> list[int]:
        array = np.asarray(ids)
        whole = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
        require(whole, "ids", "be a sequence of integers", array)
        outside = array[(array < 0) | (array >= len(self))]
        rule = f"be below {len(self)}, the size of the vocabulary, and not negative"
        require(not outside.size, "ids", rule, outside[:1].tolist())
        return array.tolist()

    @functools.cached_property
    def checksum(self) -> str:
        """Equal for equal vocabularies only: what a checkpoint remembers of its own."""
        return _checksum(self._definition())

    def _definition(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "normalization": self.normalization,
            "lowercase": self.lowercase,
            "specials": [*NAMES, *self.extra],
            "entries": list(self.entries),
            "merges": [" ".join(pair) for pair in self.merges],
        }

    def to_json(self) -> str:
        """All that the vocabulary is, and its checksum."""
        written = self._definition() | {"checksum": self.checksum}
        return json.dumps(written, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str, *, name: str = "text") -> "Vocabulary":
        """The vocabulary that `to_json` wrote, checked by its checksum; `name` is for errors."""
        try:
            read = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} must be JSON, and breaks off or errs: {error}.") from error
        written = read.get("format") if isinstance(read, dict) else None
        require(written == FORMAT, name, f"be of the format {FORMAT!r}", repr(written))
        written, found = read.pop("checksum", None), _checksum(read)
        require(found == written, name, f"be as written, with the checksum {written}", found)
        return cls(
            kind=read["kind"],
            extra=tuple(read["specials"][len(NAMES) :]),
            entries=tuple(read["entries"]),
            merges=tuple(tuple(pair.split(" ")) for pair in read["merges"]),
            normalization=read["normalization"],
            lowercase=read["lowercase"],
        )

    def save(self, path: Path | str) -> None:
        """Write the JSON: the whole file or none."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.to_json(), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path | str) -> "Vocabulary":
        """Read what `save` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a vocabulary: {error}.") from error
        return cls.from_json(text, name=str(path))


def _checksum(definition: dict[str, Any]) -> str:
    written = json.dumps(definition, sort_keys=True).encode()
    return hashlib.sha256(written).hexdigest()[:16]


def _require_lines(lines: Any) -> None:
    if isinstance(lines, str):
        require(False, "lines", "be lines of text, not one string", repr(lines))


def _require_options(kind: Any, normalization: Any, min_frequency: int, extra: Any) -> None:
    known = kind in ("word", "character", "bpe")
    require(known, "kind", "be 'word', 'character' or 'bpe'", repr(kind))
    known = normalization in ("NFC", "NFKC")
    require(known, "normalization", "be 'NFC' or 'NFKC'", repr(normalization))
    require(min_frequency >= 1, "min_frequency", "be at least 1", min_frequency)
    # No kind makes one token of a letter and a bracket, so no text can encode to such a name.
    named = all(re.fullmatch(r"<\w[^\s<>]*>", name) for name in extra)
    apart = len({*NAMES, *extra}) == len(NAMES) + len(extra)
    rule = "be different names like '<de>', none of them of " + ", ".join(NAMES)
    require(named and apart, "extra", rule, extra)
