"""The parts of the translation experiments: links, lines, corpora, twins, pairs, translators."""

import io
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import text, training
from attn_jax.nn import TransformerSeq2Seq
from experiments.data import lines
from experiments.data import parallel_text as corpora
from experiments.data.parallel_text import CorpusOptions
from experiments.harness.errors import UserError
from experiments.seq2seq import models, saved
from experiments.seq2seq import report as reports
from experiments.seq2seq import train as fits
from experiments.seq2seq.models import ModelOptions
from experiments.seq2seq.train import FitOptions, Pairs
from experiments.seq2seq.translator import SearchOptions, Translation, Translator, cut
from experiments.seq2seq.words import word_links
from tests.tolerance import assert_close

# Words and links


def test_links_add_up_over_the_tokens_of_a_word():
    """Two source tokens of 0.3 outweigh one of 0.4."""
    weights = np.array([[0.3, 0.3, 0.4], [0.0, 0.1, 0.9]])
    assert word_links(weights, [0, 0, 1], [0, 1]) == {(0, 0), (1, 1)}
    assert word_links(weights, [0, 1, 2], [0, 0]) == {(2, 0)}
    assert word_links(weights[:, :0], [], [0, 0]) == set()


def test_links_of_a_translation_are_between_words():
    """The source was cut, and capitals lost; the end's row is nobody's."""
    source = text.Vocabulary.train(["a b cd"], kind="character", lowercase=True)
    target = text.Vocabulary.train(["xy, z"])
    ids = target.encode("xy, z")
    weights = np.eye(4, 5)[[0, 0, 2, 1]]
    translation = Translation("xy, z", ids, 0.0, weights, True)
    links = reports.translation_links("A B CD", translation, (source, target))
    assert links == {(0, 0), (1, 1)}
    assert reports.translation_links("  ", translation, (source, target)) == set()


# Lines


def test_lines_come_in_order_and_whole():
    written = "".join(f"{i}\r\n" for i in range(23)) + "\ufefflast"
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


def test_output_is_utf8_whatever_the_machine_asks_for():
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", errors="replace", newline="\r\n")
    lines.as_utf8(stream)
    print("漢字 é", file=stream, flush=True)
    assert written.getvalue() == "漢字 é\n".encode()


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
        corpora.load(CorpusOptions(dev_source=paths["source"], dev_target=paths["source"]))


def test_test_files_replace_those_of_any_data(tmp_path):
    paths = write(tmp_path, source=["a", "b"], target=["x", "y"])
    options = CorpusOptions(test_source=paths["source"], test_target=paths["target"], smoke=True)
    corpus = corpora.load(options)
    assert corpus.test == (["a", "b"], ["x", "y"])
    assert len(corpus.train.source) == 200


def test_an_evaluation_reads_what_it_needs_alone(tmp_path):
    """Training files may be gone; the test files named now come first, then the training's."""
    names = ("train_source", "train_target", "dev_source", "dev_target")
    paths = write(tmp_path, **{name: [name] for name in names}, new=["new"])
    trained = {name: str(paths[name]) for name in names}
    trained |= {f"test_{side}": None for side in ("source", "target")}
    for name in names[:2]:
        paths[name].unlink()
    corpus = corpora.to_judge(CorpusOptions(), trained)
    assert (corpus.test, corpus.dev) == (corpora.NOTHING, (["dev_source"], ["dev_target"]))
    trained |= {f"test_{side}": trained[f"dev_{side}"] for side in ("source", "target")}
    assert corpora.to_judge(CorpusOptions(), trained).test == (["dev_source"], ["dev_target"])
    now = CorpusOptions(test_source=paths["new"], test_target=paths["new"])
    paths["dev_source"].unlink()
    assert corpora.to_judge(now, trained).test == (["new"], ["new"])
    with pytest.raises(UserError, match="no file"):
        corpora.to_judge(CorpusOptions(), trained)


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


def test_a_transformers_twin_is_as_wide():
    """Not as wide as --embedding, which a Transformer does not use."""
    options = ModelOptions(model="transformer", embedding=256, features=16)
    twin = models.twin(options, 57, 61)
    assert (twin.model, twin.embedding) == ("recurrent", 16)
    assert models.parameters(twin, 57, 61) == pytest.approx(
        models.parameters(options, 57, 61), rel=0.05
    )


def test_a_twin_of_another_size_is_refused():
    options = ModelOptions(embedding=2, features=2)
    with pytest.raises(UserError, match=r"--twin finds no model .* of about 199 parameters"):
        models.twin(options, 5, 5)


def test_a_model_that_cannot_be_is_refused():
    options = ModelOptions(model="transformer", features=15, heads=5, positions="rotary")
    with pytest.raises(UserError, match="even"):
        models.parameters(options, 5, 7)


# Training

PAIRS = Pairs([[5], [6], [7] * 9, [8], [9] * 4], [[5], [], [6], [7] * 3, [8]])


def test_a_batch_has_no_more_pairs_than_are_left():
    batches = fits.batches(PAIRS, FitOptions(), max_length=3)
    assert next(batches)["source"].shape == (2, 1)
    facts = fits.facts(batches)
    assert facts == {"pairs": 2, "without_target": 1, "too_long": 2, "real_fraction": 8 / 10}
    assert fits.batches(PAIRS, FitOptions()).size == 4
    by_tokens = fits.batches(PAIRS, FitOptions(batch_tokens=8))
    assert all(rows * target <= 8 for _, target, rows in by_tokens.shapes)
    with pytest.raises(UserError, match=r"leave at least one pair\. Got 1: 1 without a target"):
        fits.batches(Pairs([[5]], [[]]), FitOptions())
    with pytest.raises(UserError, match="batch_tokens must give 1 to 4 rows"):
        fits.batches(PAIRS, FitOptions(batch_tokens=1))


@pytest.mark.parametrize(
    "error",
    [
        training.NonFiniteLoss("The loss is nan at step 3.", 3, None),
        training.CheckpointError("7 is damaged: it is gone."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_ends_a_training_is_said_in_one_line(error, monkeypatch, tmp_path):
    def failing(*args, **options):
        raise error

    monkeypatch.setattr(training, "fit", failing)
    with pytest.raises(UserError, match=str(error)):
        fits.train(None, None, None, FitOptions(), tmp_path)


def test_checksums_tell_vocabularies_and_pairs_apart():
    first, other = (text.Vocabulary.train([line]) for line in ("a b", "a c"))
    batches = fits.batches(PAIRS, FitOptions())
    expected = {"source vocabulary": first.checksum, "target vocabulary": other.checksum}
    got = saved.checksums(first, other, batches)
    assert got.items() > expected.items()
    again = saved.checksums(first, other, fits.batches(PAIRS, FitOptions(seed=7)))
    assert again == got
    fewer = fits.batches(PAIRS, FitOptions(), max_length=3)
    assert saved.checksums(first, other, fewer)["training pairs"] != got["training pairs"]


# Translators


def model_of(seed, **options):
    return models.build(ModelOptions(embedding=5, features=7, **options), 13, 11, seed=seed)


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


def test_long_sources_come_without_weights():
    """Whose weights nobody reads: they take memory by the square of the length."""
    target = text.Vocabulary.train(["abcdefg"], kind="character")
    options = {"lengths": (4, 8), "align_up_to": 4}
    translator = Translator([model_of(0)], target, SearchOptions(beam=2), **options)
    for width, kept in ((4, True), (8, False)):
        given = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, width), (2,)))
        found = jax.eval_shape(translator._search, translator._states, *given)
        assert (found.weights is not None) == kept


def test_long_sources_are_cut_and_named(capsys):
    sources = [[5] * 3, [6] * 1001, [], [7] * 4]
    assert list(map(len, cut(sources, 3, first=65))) == [3, 3, 0, 3]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"line {line} tokens, more than --max-source or learned positions allow: cut to the first 3"
        for line in ("66 has 1,001", "68 has 4")
    ]


def test_learned_positions_bound_source_and_translation():
    target = text.Vocabulary.train(["abcdefg"], kind="character")
    model = TransformerSeq2Seq(13, 11, 4, 2, 1, positions="learned", longest=9, rngs=nnx.Rngs(0))
    translator = Translator([model_of(0), model], target, SearchOptions(), lengths=(4, 8))
    assert translator.most_source == 9
    ((best,),) = translator([[5] * 7])
    assert 1 <= len(best.ids) <= 9
    assert Translator([model_of(0)], target, SearchOptions(max_source=7)).most_source == 7
