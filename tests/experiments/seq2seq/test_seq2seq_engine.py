"""Models and their twins, what they are trained on, translators."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn_jax import text, training
from attn_jax.nn import TransformerSeq2Seq
from experiments.data.pairs import Pairs
from experiments.harness.errors import UserError
from experiments.seq2seq import models, train
from experiments.seq2seq.options import FitOptions, ModelOptions, NBestOptions, SearchOptions
from experiments.seq2seq.train import Task
from experiments.seq2seq.translator import Translator, cut
from tests.tolerance import assert_close

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
    with pytest.raises(UserError, match="no model without attention has about 199 parameters"):
        models.twin(options, 5, 5)


def test_a_model_that_cannot_be_is_refused():
    options = ModelOptions(model="transformer", features=15, heads=5, positions="rotary")
    with pytest.raises(UserError, match="even"):
        models.parameters(options, 5, 7)


# Training

PAIRS = Pairs([[5], [6], [7] * 9, [8], [9] * 4], [[5], [], [6], [7] * 3, [8]])


def test_a_batch_has_no_more_pairs_than_are_left():
    batches = train.batches(PAIRS, FitOptions(), max_length=3)
    assert next(batches)["source"].shape == (2, 1)
    facts = train.facts(batches)
    assert facts == {"pairs": 2, "without_target": 1, "too_long": 2, "real_fraction": 8 / 10}
    assert train.batches(PAIRS, FitOptions()).size == 4
    by_tokens = train.batches(PAIRS, FitOptions(batch_tokens=8))
    assert all(rows * target <= 8 for _, target, rows in by_tokens.shapes)
    with pytest.raises(UserError, match=r"leave at least one pair\. Got 1: 1 without a target"):
        train.batches(Pairs([[5]], [[]]), FitOptions())
    with pytest.raises(UserError, match="batch_tokens must give 1 to 4 rows"):
        train.batches(PAIRS, FitOptions(batch_tokens=1))


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
    vocabulary = text.Vocabulary.train(["a"])
    task = Task(vocabulary, vocabulary, None, None)
    with pytest.raises(UserError, match=str(error)):
        train.fit(ModelOptions(embedding=2, features=2), FitOptions(), task, tmp_path)


def test_checksums_tell_vocabularies_and_pairs_apart():
    first, other = (text.Vocabulary.train([line]) for line in ("a b", "a c"))
    batches = train.batches(PAIRS, FitOptions())
    expected = {"source vocabulary": first.checksum, "target vocabulary": other.checksum}
    got = Task(first, other, batches, None).checksums
    assert got.items() > expected.items()
    again = Task(first, other, train.batches(PAIRS, FitOptions(seed=7)), None).checksums
    assert again == got
    fewer = train.batches(PAIRS, FitOptions(), max_length=3)
    assert Task(first, other, fewer, None).checksums["training pairs"] != got["training pairs"]


# Translators


def model_of(seed, **options):
    return models.build(ModelOptions(embedding=5, features=7, **options), 13, 11, seed=seed)


def test_translations_do_not_depend_on_company():
    target = text.Vocabulary.train(["abcdefg"], kind="character")
    translator = Translator([model_of(0)], target, NBestOptions(beam=2, n_best=2), batch_size=4)
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
    states = [nnx.split(each)[1] for each in translator.models]
    for width, kept in ((4, True), (8, False)):
        given = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, width), (2,)))
        found = jax.eval_shape(translator._search, states, jax.random.key(0), *given)
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
