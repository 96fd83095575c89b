"""Pairs of lines, from line-aligned files or out of the box, and their vocabularies."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro

from experiments.harness.errors import UserError, as_user_errors
from experiments.seq2seq.train import Pairs

PARTS = ("train", "dev", "test")
SPECIALS = 4  # tokens of every vocabulary that stand for no text


@dataclass(frozen=True)
class CorpusOptions:
    """Pairs of lines, and how they become tokens."""

    data: Literal["bible", "greek-english", "english-greek"] = "bible"
    """Without files of your own: clauses of two Bibles (73 MB, downloaded once), or the New
    Testament's Greek and English with gold word alignments (9 MB), all of which is trained on."""
    languages: tuple[str, str] = ("segond", "web")
    """The two Bibles: kjv, basic, web, segond (French), valera, diodati, synodal."""
    data_dir: Path | None = None
    """Where downloads are kept. Default: ~/.cache/attn_jax."""
    train_source: Path | None = None
    """Training text, one sentence a line."""
    train_target: Path | None = None
    """Its translation, line by line."""
    dev_source: Path | None = None
    """Held-out text that chooses the best checkpoint. Default: every 50th training pair."""
    dev_target: Path | None = None
    """Its translation."""
    test_source: Path | None = None
    """Text that nothing is chosen by. Default: that of --data, or none; then the dev lines are
    reported."""
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
    """Pairs with a longer side, in tokens, are left out of training."""
    smoke: tyro.conf.Suppress[bool] = False

    def __post_init__(self):
        if self.vocabulary is not None and self.vocabulary <= SPECIALS:
            got = f"{SPECIALS}, the special tokens. Got {self.vocabulary}"
            raise UserError(f"--vocabulary must be more than {got}.")
        for name in ("min_frequency", "max_length"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be at least 1. Got {getattr(self, name)}.")


class Lines(NamedTuple):
    """Pairs of lines."""

    source: list[str]
    target: list[str]


NOTHING = Lines([], [])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What to train on, to choose by, and to report on."""

    train: Lines
    dev: Lines
    test: Lines
    names: tuple[str, str]  # of the two sides
    notes: tuple[str, ...]
    gold: tuple[frozenset[tuple[int, int]], ...] | None = None  # links of the training's words


def load(options: CorpusOptions) -> Corpus:
    """Read the files that were named, or what comes out of the box."""
    if _named(options, "train") or _named(options, "dev"):
        corpus = _of_files(options)
    elif options.smoke:
        corpus = _made_up()
    elif options.data == "bible":
        corpus = _bible(options)
    else:
        corpus = _greek_english(options)
    if _named(options, "test"):
        corpus = dataclasses.replace(corpus, test=_read(options, "test"))
    if not corpus.dev.source:
        corpus = _with_dev(corpus)
    parts = zip(PARTS, (corpus.train, corpus.dev, corpus.test), strict=True)
    sizes = [f"{name}: {len(part.source):,}" for name, part in parts]
    return dataclasses.replace(corpus, notes=(", ".join(sizes) + " pairs of lines", *corpus.notes))


def files(options: CorpusOptions, part: str) -> tuple[Path | None, Path | None]:
    """Return the two files of a part, None where none was named."""
    return getattr(options, f"{part}_source"), getattr(options, f"{part}_target")


def _named(options: CorpusOptions, part: str) -> bool:
    return files(options, part) != (None, None)


def _of_files(options: CorpusOptions) -> Corpus:
    if not _named(options, "train"):
        raise UserError("--train-source and --train-target are missing.")
    parts = [_read(options, part) for part in ("train", "dev")]
    return Corpus(*parts, NOTHING, _names(options, "train"), ())


def _names(options: CorpusOptions, part: str) -> tuple[str, str]:
    """Return the names of both sides: the files' suffixes, where they tell the sides apart."""
    suffixes = tuple(path.suffix.lstrip(".") for path in files(options, part))
    plain = len(set(suffixes)) < 2 or "" in suffixes
    return ("source", "target") if plain else suffixes


def _read(options: CorpusOptions, part: str) -> Lines:
    """Return one part, empty where no file was named."""
    from attn_jax import text

    source, target = files(options, part)
    if source is None and target is None:
        return NOTHING
    if source is None or target is None:
        missing = f"--{part}-" + ("source" if source is None else "target")
        raise UserError(f"--{part}-source and --{part}-target go together. Missing: {missing}.")
    with as_user_errors(ValueError):
        return Lines(*text.read_parallel(source, target))


def to_judge(options: CorpusOptions, before: dict[str, Any]) -> Corpus:
    """Return what a trained model is evaluated on, and read no other file.

    That is the test files named now, or else what its training reported on.
    """
    if _named(options, "test"):
        test = _read(options, "test")
        return Corpus(NOTHING, NOTHING, test, _names(options, "test"), ())
    options = as_trained(options, before)
    if _named(options, "test"):
        return Corpus(NOTHING, NOTHING, _read(options, "test"), _names(options, "test"), ())
    if _named(options, "dev"):
        return Corpus(NOTHING, _read(options, "dev"), NOTHING, _names(options, "dev"), ())
    return load(options)


def as_trained(options: CorpusOptions, before: dict[str, Any]) -> CorpusOptions:
    """Return options to evaluate with: those of the training, its files unless others are named."""
    names = [f"{part}_{side}" for part in PARTS for side in ("source", "target")]
    paths = {name: Path(before[name]) for name in names if before[name] is not None}
    now = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    rest = {name: each for name, each in before.items() if name not in names}
    rest |= {"languages": tuple(rest.get("languages", options.languages))}
    rest["data_dir"] = options.data_dir
    with as_user_errors(TypeError):  # a run of another version has other options
        return CorpusOptions(**rest, **paths | now)


def _made_up() -> Corpus:
    """A language whose words are those of the other one read backwards, in another order."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abdeilmnorst"), rng.integers(2, 7))) for _ in range(40)]
    source = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(240)]
    target = [" ".join(word[::-1] for word in reversed(line.split())) for line in source]
    cuts = [slice(0, 200), slice(200, 220), slice(220, 240)]
    parts = [Lines(source[cut], target[cut]) for cut in cuts]
    return Corpus(*parts, ("made up", "backwards"), ("a made-up language",))


def _bible(options: CorpusOptions) -> Corpus:
    from experiments.data import bible_verses

    loaded = bible_verses.load(*options.languages, data_dir=options.data_dir)
    parts = [
        Lines([pair.source for pair in part], [pair.target for pair in part])
        for part in (loaded.train, loaded.dev, loaded.test)
    ]
    names = tuple(bible_verses.VERSIONS[each].language for each in options.languages)
    note = f"clauses of {' and '.join(options.languages)}; held out are whole books"
    return Corpus(*parts, names, (note,))


def _greek_english(options: CorpusOptions) -> Corpus:
    """Words are parted by spaces: a link counts words. Greek loses its accents."""
    from experiments.data import bible_alignments

    greek, english, gold = [], [], []
    for verse in bible_alignments.load(options.data_dir):
        kept = [i for i in range(len(verse.english)) if i not in verse.punctuation]
        place = {old: new for new, old in enumerate(kept)}
        greek.append(" ".join(map(bible_alignments.folded, verse.greek)))
        english.append(" ".join(verse.english[i].lower() for i in kept))
        gold.append(frozenset((g, place[e]) for g, e in verse.links if e in place))
    note = "all verses are trained on, as an aligner is; the dev pairs, every 50th, are among them"
    lines = Lines(greek, english)
    dev = Lines(greek[::50], english[::50])
    corpus = Corpus(lines, dev, NOTHING, ("Greek", "English"), (note,), tuple(gold))
    return corpus if options.data == "greek-english" else turned(corpus)


def turned(corpus: Corpus) -> Corpus:
    """Return the corpus of the other direction."""
    train, dev, test = (
        Lines(part.target, part.source) for part in (corpus.train, corpus.dev, corpus.test)
    )
    gold = corpus.gold and tuple(frozenset((t, s) for s, t in links) for links in corpus.gold)
    return Corpus(train, dev, test, corpus.names[::-1], corpus.notes, gold)


def _with_dev(corpus: Corpus) -> Corpus:
    """Hold every 50th pair out of the training."""
    pairs = list(zip(*corpus.train, strict=True))
    dev = pairs[::50]
    train = [pair for i, pair in enumerate(pairs) if i % 50]
    if not train:
        raise UserError(f"the training text needs 2 pairs of lines at least. Got {len(pairs)}.")
    note = "every 50th training pair is held out as dev pair"
    train, dev = (Lines(*map(list, zip(*part, strict=True))) for part in (train, dev))
    return dataclasses.replace(corpus, train=train, dev=dev, notes=(*corpus.notes, note))


def vocabularies(corpus: Corpus, options: CorpusOptions) -> tuple[Any, Any]:
    """Return the source's and the target's vocabulary, of the training side only."""
    return tuple(_vocabulary(lines, options) for lines in corpus.train)


def _vocabulary(lines: list[str], options: CorpusOptions) -> Any:
    from attn_jax import text

    with as_user_errors(ValueError):
        return text.Vocabulary.train(
            lines,
            kind=options.tokens,
            size=options.vocabulary,
            min_frequency=options.min_frequency,
            lowercase=options.lowercase,
        )


def encoded(lines: Lines, source: Any, target: Any) -> Pairs:
    """Return the ids of pairs of lines."""
    return Pairs(source.encode_batch(lines.source), target.encode_batch(lines.target))
