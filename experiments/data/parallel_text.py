"""Pairs of lines, from line-aligned files or out of the box, and their vocabularies."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import tyro

from experiments.data.pairs import NOTHING, Pairs
from experiments.harness.errors import UserError, as_user_errors
from experiments.harness.options import Options, Positive

PARTS = ("train", "dev", "test")
SPECIALS = 4  # tokens of every vocabulary that stand for no text


@dataclass(frozen=True)
class EvaluationFiles(Options):
    """Pairs of lines to evaluate on."""

    test_source: Path | None = None
    """Text that nothing is chosen by. Default: what the training reported on; where there is none,
    the dev lines are reported."""
    test_target: Path | None = None
    """Its target side, line by line."""
    data_dir: Path | None = None
    """Where downloads are kept. Default: ~/.cache/attn_jax."""

    def files(self, part: str) -> tuple[Path | None, Path | None]:
        """Return the two files of a part, None where none was named."""
        return getattr(self, f"{part}_source"), getattr(self, f"{part}_target")

    def names(self, part: str) -> bool:
        """Say whether a part is given by files."""
        return self.files(part) != (None, None)

    def read(self, part: str) -> Pairs:
        """Return the lines of a part's files, none where no file was named."""
        from attn_jax import text

        source, target = self.files(part)
        if not self.names(part):
            return NOTHING
        if source is None or target is None:
            missing = f"--{part}-" + ("source" if source is None else "target")
            raise UserError(f"--{part}-source and --{part}-target go together. Missing: {missing}.")
        with as_user_errors(ValueError):
            return Pairs(*text.read_parallel(source, target))

    def sides(self, part: str) -> tuple[str, str]:
        """Return the names of both sides: the files' suffixes, where they tell the sides apart."""
        suffixes = tuple(path.suffix.lstrip(".") for path in self.files(part))
        plain = len(set(suffixes)) < 2 or "" in suffixes
        return ("source", "target") if plain else suffixes


@dataclass(frozen=True)
class TextPairs(EvaluationFiles):
    """Pairs of lines, and how they become tokens."""

    train_source: Path | None = None
    """Training text, one sentence a line."""
    train_target: Path | None = None
    """Its target side, line by line."""
    dev_source: Path | None = None
    """Held-out text that chooses the best checkpoint. Default: every 50th training pair."""
    dev_target: Path | None = None
    """Its target side, line by line."""
    tokens: Literal["word", "character", "bpe"] = "bpe"
    """How a line falls into tokens."""
    vocabulary: int | None = 6000
    """The most tokens on each side."""
    min_frequency: Positive[int] = 2
    """Words, characters or merges that are rarer are unknown."""
    lowercase: bool = False
    """Take capitals for small letters, on both sides."""
    max_length: Positive[int] = 100
    """Pairs with a longer side, in tokens, are left out of training."""
    smoke: tyro.conf.Suppress[bool] = False

    shared: ClassVar[bool] = False  # whether both sides have one vocabulary

    def __post_init__(self):
        super().__post_init__()
        if self.vocabulary is not None and self.vocabulary <= SPECIALS:
            got = f"{SPECIALS}, the special tokens. Got {self.vocabulary}"
            raise UserError(f"--vocabulary must be more than {got}.")

    def tiny(self) -> Self:
        return dataclasses.replace(self, smoke=True)

    def out_of_the_box(self) -> "Corpus":
        """Return the pairs where no files are named."""
        raise NotImplementedError


@dataclass(frozen=True)
class CorpusOptions(TextPairs):
    """Pairs of lines in two languages, and how they become tokens."""

    data: Literal["bible", "greek-english", "english-greek"] = "bible"
    """Without files of your own: clauses of two Bibles (73 MB, downloaded once), or the New
    Testament's Greek and English with gold word alignments (9 MB), all of which is trained on."""
    languages: tuple[str, str] = ("segond", "web")
    """The two Bibles: kjv, basic, web, segond (French), valera, diodati, synodal."""

    def out_of_the_box(self) -> "Corpus":
        return OUT_OF_THE_BOX[self.data](self)


@dataclass(frozen=True)
class Corpus:
    """What to train on, to choose by, and to report on."""

    train: Pairs
    dev: Pairs
    test: Pairs
    names: tuple[str, str]  # of the two sides
    notes: tuple[str, ...] = ()
    gold: tuple[frozenset[tuple[int, int]], ...] | None = None  # links of the training's words

    def swapped(self) -> "Corpus":
        """Return the corpus of the other direction."""
        parts = (part.swapped() for part in (self.train, self.dev, self.test))
        gold = self.gold and tuple(frozenset((t, s) for s, t in links) for links in self.gold)
        return Corpus(*parts, self.names[::-1], self.notes, gold)

    def vocabularies(self, options: TextPairs) -> tuple[Any, Any]:
        """Return the source's and the target's vocabulary, of the training side only."""
        from attn_jax import text

        how = {name: getattr(options, name) for name in ("min_frequency", "lowercase")}
        how |= {"kind": options.tokens, "size": options.vocabulary}
        sides = [[*self.train.source, *self.train.target]] if options.shared else self.train
        with as_user_errors(ValueError):
            made = [text.Vocabulary.train(lines, **how) for lines in sides]
        return made[0], made[-1]


def load(options: TextPairs) -> Corpus:
    """Read the files that were named, or what comes out of the box."""
    if options.names("train") or options.names("dev"):
        if not options.names("train"):
            raise UserError("--train-source and --train-target are missing.")
        parts = [options.read(part) for part in ("train", "dev")]
        corpus = Corpus(*parts, NOTHING, options.sides("train"))
    else:
        corpus = _made_up() if options.smoke else options.out_of_the_box()
    if options.names("test"):
        corpus = dataclasses.replace(corpus, test=options.read("test"))
    if not corpus.dev.source:
        corpus = _with_dev(corpus)
    sizes = [f"{name}: {len(getattr(corpus, name).source):,}" for name in PARTS]
    return dataclasses.replace(corpus, notes=(", ".join(sizes) + " pairs of lines", *corpus.notes))


def load_test(
    options: EvaluationFiles, before: dict[str, Any], kind: type[TextPairs] = CorpusOptions
) -> Corpus:
    """Return what a trained model is evaluated on, and read no other file.

    That is the test files named now, or else what its training (of the options `before`, as
    config.json has them) reported on.
    """
    parts = ["test"]
    if not options.names("test"):
        paths = {name: Path(before[name]) for name in FILES if before.get(name)}
        tuples = {name: tuple(each) for name, each in before.items() if isinstance(each, list)}
        with as_user_errors(TypeError):  # a run of another version has other options
            options = kind(**before | paths | tuples | {"data_dir": options.data_dir})
        parts = ["test", "dev"]
    for part in parts:
        if options.names(part):
            read = {"dev": NOTHING, "test": NOTHING} | {part: options.read(part)}
            return Corpus(train=NOTHING, names=options.sides(part), **read)
    return load(options)


FILES = [f"{part}_{side}" for part in PARTS for side in ("source", "target")]


def _made_up() -> Corpus:
    """A language whose words are those of the other one read backwards, in another order."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abdeilmnorst"), rng.integers(2, 7))) for _ in range(40)]
    source = [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(240)]
    target = [" ".join(word[::-1] for word in reversed(line.split())) for line in source]
    places = [slice(0, 200), slice(200, 220), slice(220, 240)]
    parts = [Pairs(source[place], target[place]) for place in places]
    return Corpus(*parts, ("made up", "backwards"), ("a made-up language",))


def _bible(options: CorpusOptions) -> Corpus:
    from experiments.data import bible_verses

    parts = bible_verses.load(*options.languages, data_dir=options.data_dir)
    names = tuple(bible_verses.VERSIONS[each].language for each in options.languages)
    note = f"clauses of {' and '.join(options.languages)}; held out are whole books"
    return Corpus(*parts, names, (note,))


def _greek_english(options: CorpusOptions) -> Corpus:
    """Words are parted by spaces: a link counts words. Greek loses its accents."""
    from experiments.data import bible_alignments

    verses = bible_alignments.load(options.data_dir)
    greek = [" ".join(map(bible_alignments.folded, verse.greek)) for verse in verses]
    english = [" ".join(verse.english).lower() for verse in verses]
    gold = tuple(verse.links for verse in verses)
    note = "all verses are trained on, as an aligner is; the dev pairs, every 50th, are among them"
    dev = Pairs(greek[::50], english[::50])
    sides = ("Greek", "English")
    return Corpus(Pairs(greek, english), dev, NOTHING, sides, (note,), gold)


OUT_OF_THE_BOX = {
    "bible": _bible,
    "greek-english": _greek_english,
    "english-greek": lambda options: _greek_english(options).swapped(),
}


def _with_dev(corpus: Corpus) -> Corpus:
    """Hold every 50th pair out of the training."""
    count = len(corpus.train.source)
    if count < 2:
        raise UserError(f"the training text needs 2 pairs of lines at least. Got {count}.")
    dev = Pairs(*(side[::50] for side in corpus.train))
    train = Pairs(*([each for i, each in enumerate(side) if i % 50] for side in corpus.train))
    note = "every 50th training pair is held out as dev pair"
    return dataclasses.replace(corpus, train=train, dev=dev, notes=(*corpus.notes, note))
