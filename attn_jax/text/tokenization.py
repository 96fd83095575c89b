"""Splitting a line into tokens and joining them: one pipeline of `tokenizers` for each kind.

    word       words, and every other sign by itself: Peter ‿, don ‿'‿ t
    character  code points, spaces included
    bpe        pieces of words, by byte-pair encoding (Sennrich et al. 2016): ▁Pe ter , ▁don ' t

Tokens carry what is needed to put them together again. A sign of the kind `word` is joined to its
left or right neighbour where it has a ‿; all else is parted by one space. (The joiner of OpenNMT's
tokenizer: a word is the same token beside a hyphen as beside a space.) A piece of the kind `bpe`
begins with ▁ where a space was (Kudo & Richardson 2018), so its round trip is exact. Its pieces are
made of characters and not of bytes, for an alignment has to be read: a character that the training
text did not hold is unknown by itself, and its neighbours are not. Both marks in a text itself read
as spaces.
"""

import collections
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from attn_jax.text.specials import NAMES, UNKNOWN

Kind = Literal["word", "character", "bpe"]
Normalization = Literal["NFC", "NFKC"]

JOINER = "‿"
SPACE = "▁"
UNREADABLE = "⁇"


def tokenizer(
    kind: Kind, model: models.Model, *, normalization: Normalization, lowercase: bool
) -> Tokenizer:
    """A model behind its kind's normalization and splitting."""
    made = Tokenizer(model)
    steps = [form(normalization, lowercase=lowercase), *_marking(kind)]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = _splitting(kind)
    return made


def form(normalization: Normalization, *, lowercase: bool) -> normalizers.Normalizer:
    """What brings a line into a Unicode form, and its capitals into small letters."""
    unicode = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC()}[normalization]
    steps = [unicode, normalizers.Lowercase(), unicode] if lowercase else [unicode]
    return normalizers.Sequence(steps)


def _marking(kind: Kind) -> list[Any]:
    replace = normalizers.Replace
    if kind == "word":
        return [
            replace(JOINER, " "),
            replace(Regex(r"(?<=\S)(?=[^\w\s])"), f" {JOINER}"),
            replace(Regex(r"(?<=[^\w\s])(?=\w)"), f"{JOINER} "),
        ]
    if kind == "bpe":
        return [replace(SPACE, " "), normalizers.Prepend(" "), replace(" ", SPACE)]
    return []


def _splitting(kind: Kind) -> Any:
    if kind == "word":
        return pre_tokenizers.WhitespaceSplit()
    # Words and runs of signs: no piece of a word has a comma at its end.
    pattern = {"character": r"[\s\S]", "bpe": rf"{SPACE}?\w+|{SPACE}?[^\w\s{SPACE}]+"}[kind]
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def model(kind: Kind, tokens: Iterable[str], merges: Iterable[tuple[str, str]]) -> models.Model:
    """The model that knows these tokens by their place, and how pieces are merged."""
    places = {token: place for place, token in enumerate(tokens)}
    if kind == "bpe":
        return models.BPE(vocab=places, merges=list(merges), unk_token=NAMES[UNKNOWN])
    return models.WordLevel(vocab=places, unk_token=NAMES[UNKNOWN])


def learn(
    lines: list[str], kind: Kind, *, specials: list[str], size: int, min_frequency: int, **form
) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens of a text by their ids, the specials first, and the merges of the kind `bpe`."""
    learnt = tokenizer(kind, model(kind, specials, []), **form)
    options = {"vocab_size": size, "min_frequency": min_frequency, "special_tokens": specials}
    options["show_progress"] = False
    if kind == "bpe":
        letters = _letters(learnt, lines, min_frequency)[: size - len(specials)]
        options |= {"initial_alphabet": letters, "limit_alphabet": len(letters)}
        trainer = trainers.BpeTrainer(**options)
    else:
        trainer = trainers.WordLevelTrainer(**options)
    learnt.train_from_iterator(lines, trainer)
    found = json.loads(learnt.to_str())["model"]
    tokens = sorted(found["vocab"], key=found["vocab"].get)
    return tokens, [(left, right) for left, right in found.get("merges", [])]


def _letters(learnt: Tokenizer, lines: list[str], min_frequency: int) -> list[str]:
    # The trainer itself breaks ties between characters in an order that no seed fixes.
    counts = collections.Counter()
    for line in lines:
        counts.update(learnt.normalizer.normalize_str(line))
    return [letter for letter, count in counts.most_common() if count >= min_frequency]


def pieces(made: Tokenizer, line: str) -> list[str]:
    """What a line is split into: for words and characters, one piece for each id."""
    splits = made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(line))
    return [piece for piece, _ in splits]


def join(kind: Kind, tokens: list[str]) -> str:
    """Put tokens together to a line.

    >>> join("word", ["don", "‿'‿", "t", "‿,", "Peter"])
    "don't, Peter"
    """
    if kind == "word":
        return re.sub(f" ?{JOINER} ?", "", " ".join(tokens))
    if kind == "bpe":
        return "".join(tokens).replace(SPACE, " ").removeprefix(" ")
    return "".join(tokens)


def words(kind: Kind, pieces: Iterable[str]) -> list[int]:
    """The word, parted by white space, that each piece stands in; a space goes with the next word.

    Words are counted, not searched in the line: a piece may be written differently.

    >>> words("bpe", ["▁", "Z", "a", "▁b"])
    [0, 0, 0, 1]
    """
    places, begun, inside = [], 0, False
    for piece in _spaced(kind, pieces):
        for letter in piece:
            begun += not (inside or letter.isspace())
            inside = not letter.isspace()
        places.append(begun - inside)
    return [min(place, max(begun - 1, 0)) for place in places]


def _spaced(kind: Kind, pieces: Iterable[str]) -> Iterator[str]:
    """The pieces with the spaces between them, and without marks."""
    joined = True
    for piece in pieces:
        if kind == "word" and piece:
            space = "" if joined or piece.startswith(JOINER) else " "
            joined = piece.endswith(JOINER)
            yield space + piece.replace(JOINER, "")
        else:
            yield piece.replace(SPACE, " ") if kind == "bpe" else piece


def readable(kind: Kind, token: str) -> str:
    """A token as a picture shows it: joiners left out, white space made visible."""
    if kind == "word":
        return token.replace(JOINER, "")
    return re.sub(r"\s", "␣", token)
