"""The self-attention experiment: six steps against loops, the task, gradients, the command line."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments import cli
from experiments.self_attention import figures, recall, report, steps
from tests.test_plots import assert_readable

WORDS = ["to", "be", "or", "not", "to", "be", "is"]
SEED = 3
STEP_FIGURES = {"six_steps", "heads", "self_and_cross"}
CLAIM_FIGURES = {"recall", "gradients", "parallelism"}


def main(directory, *options):
    return cli.main(["self-attention", *map(str, options), "--output-dir", str(directory)])


def run_of(directory):
    return directory / "self-attention" / "default"


def metrics_of(directory):
    return json.loads((run_of(directory) / "metrics.json").read_text())


# The six steps


@pytest.fixture(scope="module")
def layer():
    return steps.layer_of(SEED)


def test_each_step_is_the_one_by_hand(layer):
    x, memory = (steps.embed(each, SEED) for each in (WORDS, WORDS[:3]))
    maps = steps.projections(layer)[0]
    assert steps.Steps._fields == tuple(steps.STEPS)
    for keys in (x, memory):
        taken, hand = (take(x, keys, maps) for take in (steps.by_library, steps.by_hand))
        assert max(map(report.difference, taken, hand)) < 1e-5


def test_by_hand_is_the_definition():
    """Against loops over every query, key and feature."""
    rng = np.random.default_rng(7)
    x, memory = rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
    maps = tuple(rng.normal(size=(3, 5, steps.HEAD)))
    query, key, value = (rows @ each for rows, each in zip((x, memory, memory), maps, strict=True))
    found = steps.by_hand(x, memory, maps)
    for i in range(3):
        scores = [sum(query[i, d] * key[j, d] for d in range(64)) for j in range(2)]
        total = sum(math.exp(each / 8) for each in scores)
        weights = [math.exp(each / 8) / total for each in scores]
        output = sum(w * row for w, row in zip(weights, value, strict=True))
        np.testing.assert_allclose(found.scores[i], scores, rtol=1e-12)
        np.testing.assert_allclose(found.weights[i], weights, rtol=1e-10)
        np.testing.assert_allclose(found.output[i], output, rtol=1e-10)


def test_the_steps_are_the_first_of_eight_heads(layer):
    x = steps.embed(WORDS, SEED)
    weights, joined = steps.heads_by_library(x, layer)
    taken = steps.by_library(x, x, steps.projections(layer)[0])
    np.testing.assert_allclose(weights[0], taken.weights, atol=1e-5)
    by_hand = steps.heads_by_hand(x, layer)
    np.testing.assert_allclose(weights, by_hand[0], atol=1e-5)
    np.testing.assert_allclose(joined, by_hand[1], atol=1e-5)


def test_a_token_has_one_vector_of_unit_variance():
    x = steps.embed(WORDS, SEED)
    assert (x[0] == x[4]).all()
    assert len({row.tobytes() for row in x}) == len(set(WORDS))
    assert not (steps.embed(WORDS, SEED + 1) == x).any()
    assert abs(x.std() - 1) < 0.1


LONG_WORDS = ["Donaudampfschifffahrt", "a", "incomprehensibilities", "is"]


@pytest.mark.parametrize(("count", "others"), [(1, 5), (2, 32), (11, 5), (20, 1), (32, 32)])
def test_pictures_of_any_sentence_are_readable(count, others):
    rng = np.random.default_rng(SEED)
    words, keys = ((8 * LONG_WORDS)[:each] for each in (count, others))

    def random(memory):
        shapes = [(count, 512), (count, 64), (memory, 64), (memory, 64)]
        shapes += [(count, memory)] * 3 + [(count, 64)]
        return steps.Steps(*(rng.normal(size=shape) for shape in shapes))

    heads = rng.uniform(size=(steps.HEADS, count, count))
    for _, figure in figures.of_steps(words, keys, random(count), heads, random(others)):
        assert_readable(figure)


@pytest.mark.parametrize("lengths", [(7,), (8, 64, 512), (*range(1, 13), 500)])
def test_pictures_of_any_lengths_are_readable(lengths):
    rows = [
        {"model": name, "length": length, "accuracy": 0.5, "seconds": 0.1 * length}
        | {f"gradient_{when}": np.ones(length + 1) for when in ("before", "after")}
        for length in lengths
        for name in recall.MODELS
    ]
    for draw in (figures.recall, figures.gradients, figures.parallelism):
        assert_readable(draw(rows))


# Recall


def test_sequences_keep_the_first_token():
    tokens = recall.sequences(4001, 3, SEED)
    assert tokens.shape == (4001, 4)
    assert (tokens[:, -1] == recall.QUESTION).all()
    kept = (tokens[:, :1] == np.arange(recall.KEPT)).mean(axis=0)
    np.testing.assert_allclose(kept, 1 / recall.KEPT, atol=0.03)
    for first in range(recall.KEPT):  # those between do not give it away
        between = tokens[tokens[:, 0] == first, 1:-1].ravel()
        shares = (between[:, None] == np.arange(recall.KEPT, recall.QUESTION)).mean(axis=0)
        np.testing.assert_allclose(shares, 1 / recall.OTHERS, atol=0.06)
        np.testing.assert_allclose(shares.sum(), 1)


def test_models_have_about_as_many_parameters():
    counts = [
        recall.parameters(
            nnx.eval_shape(lambda name=name: recall.Recall(name, 32, 2, rngs=nnx.Rngs(0)))
        )
        for name in recall.MODELS
    ]
    assert max(counts) < 1.1 * min(counts)


@pytest.mark.parametrize("name", ["self-attention", "LSTM"])
def test_gradient_sizes_come_from_jacobians(name):
    """Against each sequence's whole Jacobian times the same random vectors."""
    model = recall.Recall(name, 4, 2, rngs=nnx.Rngs(SEED))
    tokens = jnp.asarray(recall.sequences(7, 2, SEED))
    embedded = model.embedding(tokens)
    jacobians = jax.vmap(jax.jacrev(lambda each: model.of_embedded(each[None])[0]))(embedded)
    u = jax.random.normal(jax.random.key(SEED), jacobians.shape[:2], embedded.dtype)
    products = np.einsum("bvtd,bv->btd", jacobians, u)
    sizes = np.sqrt((products**2).sum(axis=-1).mean(axis=0))
    np.testing.assert_allclose(recall.gradient_sizes(model, tokens, SEED), sizes, rtol=1e-5)


def test_accuracy_counts_first_tokens():
    model = recall.Recall("GRU", 4, 2, rngs=nnx.Rngs(SEED))
    tokens = jnp.asarray(recall.sequences(128, 2, SEED))
    right = np.argmax(model(tokens), axis=-1) == tokens[:, 0]
    assert recall.accuracy(model, tokens) == right.mean()


# The command line


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, "--smoke", "--sentence", "to be or not to be") == 0
    return directory


def without_seconds(rows):
    return [{name: each for name, each in row.items() if name != "seconds"} for row in rows]


def test_a_run_writes_what_it_promises(measured):
    metrics = metrics_of(measured)
    assert metrics.keys() == {"steps", "long-distance", "parallelism"}
    assert max(metrics["steps"]["largest_difference"].values()) < 1e-5
    np.testing.assert_allclose(np.sum(metrics["steps"]["cross_weights"], axis=1), 1, rtol=1e-5)
    assert np.shape(metrics["steps"]["cross_weights"]) == (6, 5)
    wanted = [(model, length) for length in (3, 5) for model in recall.MODELS]
    for claim in ("long-distance", "parallelism"):
        rows = metrics[claim]["rows"]
        assert [(row["model"], row["length"]) for row in rows] == wanted
        assert all(row["seconds"] > 0 for row in rows)
    assert all(0 <= row["accuracy"] <= 1 for row in metrics["long-distance"]["rows"])
    pictures = {path.stem for path in (run_of(measured) / "figures").iterdir()}
    assert pictures == STEP_FIGURES | CLAIM_FIGURES


def test_an_interrupted_run_goes_on(measured, tmp_path, monkeypatch):
    """Ctrl-C in the fourth unit: the three before it are kept, the others come out as ever."""
    options = ("--smoke", "--sentence", "to be or not to be", "--claims", "long-distance")
    trained = []

    def interrupted(name, length, how, real=recall.recalled):
        trained.append((name, length))
        if len(trained) == 4:
            raise KeyboardInterrupt
        if (name, length) == ("GRU", 5):
            return real(name, length, how)
        return recall.read_json(run_of(measured) / "training" / f"{name}-{length}.json".lower())

    monkeypatch.setattr(recall, "recalled", interrupted)
    monkeypatch.setattr(report, "take_steps", lambda *_: None)
    assert main(tmp_path, *options) == 130
    assert main(tmp_path, *options, "--resume") == 0
    assert trained[3:] == [(name, 5) for name in (recall.MODELS[0], *recall.MODELS)]
    got, whole = (metrics_of(each)["long-distance"]["rows"] for each in (tmp_path, measured))
    assert without_seconds(got) == without_seconds(whole)


def test_the_steps_alone(tmp_path, capsys):
    assert main(tmp_path, "--claims", "--sentence", r"$\bad{$", "--other", "\U000f0000") == 0
    assert metrics_of(tmp_path).keys() == {"steps"}
    assert metrics_of(tmp_path)["steps"]["weights"] == [[1.0]]
    assert {path.stem for path in (run_of(tmp_path) / "figures").iterdir()} == STEP_FIGURES
    out = capsys.readouterr().out
    assert all(each in out for step in steps.STEPS.values() for each in step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sentence", " "), "--sentence must be 1 to 32 words. Got  ."),
        (("--other", "a " * 33), "--other must be 1 to 32 words. Got a a a"),
        (("--lengths", 8, 0), "--lengths must be positive and finite. Got 0."),
        (("--lengths",), "--lengths must be one or more. Got ()."),
        (("--batch-size", 0), "--batch-size must be positive and finite. Got 0."),
        (("--heads", 3), "--heads must divide --features, 32. Got 3."),
        (("--learning-rate", 0), "--learning-rate must be positive and finite. Got 0.0."),
        (("--seed", -1), "--seed must be at least 0 and finite. Got -1."),
        (("--resume", "--claims"), "--resume needs an earlier run."),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, options, message):
    assert main(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
