"""The parts of the translation experiments: words, lines, corpora, twins, ensembles, reports."""

import io
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import text
from experiments.errors import UserError
from experiments.translation import corpora, lines, models, reports
from experiments.translation.corpora import CorpusOptions
from experiments.translation.models import ModelOptions
from experiments.translation.translator import SearchOptions, Translator, together
from experiments.translation.words import word_links, words_of
from tests.tolerance import assert_close

# Words and links


@pytest.mark.parametrize(
    ("pieces", "line", "expected"),
    [
        (["▁don", "'", "t", "▁go", "!"], "don't go!", [0, 0, 0, 1, 1]),
        (["a", "b"], "  a   b ", [0, 1]),
        (["a", "a", "a"], "a aa", [0, 1, 1]),
        (["⁇", "b"], "xyz b", [0, 1]),  # unknown: the word that goes on there
        (["▁", "x"], "x", [0, 0]),
        ([], "", []),
    ],
)
def test_words_of_pieces(pieces, line, expected):
    assert words_of(pieces, line) == expected


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_words_of_a_vocabulary_are_those_between_spaces(kind):
    sentences = ["Don't panic, Peter-Paul!", "a (very) small  step", "Größe: 3,5 m"]
    vocabulary = text.Vocabulary.train(sentences, kind=kind)
    for sentence in sentences:
        pieces = vocabulary.tokens(sentence)
        words = sentence.split()
        rebuilt = [""] * len(words)
        for piece, word in zip(pieces, words_of(pieces, sentence), strict=True):
            rebuilt[word] += piece.replace("▁", "")
        assert rebuilt == words


def test_links_add_up_over_the_tokens_of_a_word():
    """Two source tokens of 0.3 outweigh one of 0.4."""
    weights = np.array([[0.3, 0.3, 0.4], [0.0, 0.1, 0.9]])
    assert word_links(weights, [0, 0, 1], [0, 1]) == {(0, 0), (1, 1)}
    assert word_links(weights, [0, 1, 2], [0, 0]) == {(2, 0)}
    assert word_links(weights[:, :0], [], [0, 0]) == set()


# Lines


def test_lines_come_in_order_and_whole():
    written = "".join(f"{i}\r\n" for i in range(23)) + "last"
    got = list(lines.chunks(io.StringIO("\ufeff" + written, newline=""), 5))
    assert [line for chunk in got for line in chunk] == [*map(str, range(23)), "last"]
    assert max(map(len, got)) <= 5


def test_a_line_that_comes_alone_goes_alone():
    class Slow:
        def __init__(self):
            self.more = threading.Event()

        def __iter__(self):
            yield "first\n"
            assert self.more.wait(10)
            yield "second\n"

    stream = Slow()
    got = lines.chunks(stream, 8)
    assert next(got) == ["first"]
    stream.more.set()
    assert next(got) == ["second"]
    assert list(got) == []


def test_what_was_read_before_a_failure_is_given():
    def failing():
        yield "first\n"
        raise OSError("gone")

    got = lines.chunks(failing(), 8)
    assert next(got) == ["first"]
    with pytest.raises(OSError, match="gone"):
        next(got)


# Corpora


def write(tmp_path, **files):
    for name, written in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in written), "utf-8")
    return {name: tmp_path / name for name in files}


def test_files_and_held_out_lines(tmp_path):
    written = [f"line {i}" for i in range(101)]
    paths = write(tmp_path, source=written, target=written[::-1])
    options = CorpusOptions(train_source=paths["source"], train_target=paths["target"])
    corpus = corpora.load(options)
    assert corpus.dev.source == ["line 0", "line 50", "line 100"]
    assert len(corpus.train.source) == 98
    assert not set(corpus.dev.source) & set(corpus.train.source)
    assert all(
        source.split()[1] == str(100 - int(target.split()[1]))
        for source, target in zip(*corpus.train, strict=True)
    )


def test_one_file_of_two_is_missing(tmp_path):
    paths = write(tmp_path, source=["a"])
    with pytest.raises(UserError, match=r"go together\. Missing: --train-target"):
        corpora.load(CorpusOptions(train_source=paths["source"]))
    with pytest.raises(UserError, match="--train-source and --train-target are missing"):
        corpora.load(CorpusOptions(test_source=paths["source"], test_target=paths["source"]))


def test_files_of_unequal_length(tmp_path):
    paths = write(tmp_path, source=["a", "b"], target=["a"])
    with pytest.raises(UserError, match="2"):
        corpora.load(CorpusOptions(train_source=paths["source"], train_target=paths["target"]))


# Models


@pytest.mark.parametrize("order", ["attend_then_step", "step_then_attend"])
def test_twin_has_as_many_parameters(order):
    options = ModelOptions(embedding=24, features=32, order=order, layers=2)
    twin = models.twin(options, 57, 61)
    ours, its = (models.parameters(each, 57, 61) for each in (options, twin))
    assert twin.score == "none"
    assert abs(its / ours - 1) < 0.03


def model_of(seed, **options):
    return models.build(ModelOptions(embedding=5, features=7, **options), 13, 11, seed=seed)


def test_an_ensemble_averages_probabilities():
    source, length = jnp.array([[5, 6, 7], [8, 9, 0]]), jnp.array([3, 2])
    begun = [model_of(seed).begin(source, length) for seed in (0, 1)]
    step, state = together(begun)
    token = jnp.array([2, 4])
    logits, _, weights = step(token, state)
    parts = [each(token, its) for each, its in begun]
    mean = sum(np.asarray(jax.nn.softmax(part[0])) for part in parts) / 2
    assert_close(np.exp(logits), mean, tolerance=1e-6)
    assert_close(weights, sum(np.asarray(part[2]) for part in parts) / 2, tolerance=1e-6)


def test_translations_do_not_depend_on_company():
    target = text.Vocabulary.train(["abcdefg"], kind="character")
    translator = Translator([model_of(0)], target, SearchOptions(beam=2, n_best=2), batch_size=4)
    sources = [[5, 6, 7], [], [8] * 9, [9, 10], [12, 4, 5, 6]]
    together_ = translator(sources)
    assert [len(each) for each in together_] == [2, 1, 2, 2, 2]
    assert together_[1][0].text == ""
    for source, expected in zip(sources, together_, strict=True):
        alone = translator([source])[0]
        assert [each.ids for each in alone] == [each.ids for each in expected]
        for one, other in zip(alone, expected, strict=True):
            assert_close(one.score, other.score, tolerance=1e-5)
            if source:
                assert one.weights.shape == (len(one.ids) + one.finished, len(source))


# Reports


def test_score_by_length_counts_each_line_once():
    sources = ["a " * n for n in (1, 2, 2, 3, 5, 8, 9, 20)]
    systems = {"copy": sources, "nothing": [""] * 8, "capitals": [s.upper() for s in sources]}
    rows = reports.by_length(sources, systems, sources, lowercase=True)
    assert sum(row["lines"] for row in rows) == 8
    assert [row["words"] for row in rows] == sorted(row["words"] for row in rows)
    assert all(row["nothing"] == 0 for row in rows)
    assert all(row["copy"] == row["capitals"] for row in rows)


def test_worst_lines_come_first():
    chosen = corpora.Lines(["x", "y", "z"], ["one two", "three four", "five six"])
    bad = reports.worst(chosen, ["one two", "###", "five sox"], lowercase=False, count=2)
    assert [each["line"] for each in bad] == [2, 3]
    assert bad[0] | {"chrf": 0} == {
        "line": 2,
        "chrf": 0,
        "source": "y",
        "translation": "###",
        "reference": "three four",
    }
