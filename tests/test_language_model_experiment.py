"""The language-model experiment from the command line: train, compare, evaluate, generate."""

import json
import math

import jax
import numpy as np
import pytest

from attn_jax import text
from experiments import cli
from experiments import language_model_training as lm

FIGURES = {"attention_layer_1", "attention_layer_2", "entropy", "learning_curve"}


def main(directory, *options):
    return cli.main(["language-model", *map(str, options), "--output-dir", str(directory)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, "train", "--smoke", "--sentence", "for x in y:") == 0
    return directory


def run_of(directory):
    return directory / "language-model" / "default"


def rows_of(directory):
    return json.loads((run_of(directory) / "metrics.json").read_text())["rows"]


def test_training_writes_what_it_promises(trained):
    (row,) = rows_of(trained)
    assert 3 < row["bits_per_character"] < 8
    assert np.shape(row["entropy"]) == (2, 2)
    assert {path.stem for path in (run_of(trained) / "figures").iterdir()} == FIGURES


def test_evaluation_repeats_the_numbers(trained):
    before = rows_of(trained)
    assert main(trained, "evaluate", "--smoke") == 0
    assert rows_of(trained) == before


def test_generation_goes_on_from_the_prompt(trained, capsys):
    options = ("generate", "--smoke", "--prompt", "The ", "--count", 7)
    written = []
    for temperature in (0, 0, 1.5):
        assert main(trained, *options, "--temperature", temperature) == 0
        written.append(capsys.readouterr().out)
    assert all(each.startswith("The ") for each in written)
    assert all(len(each.removesuffix("\n")) == 11 for each in written)
    assert written[0] == written[1] != written[2]


def test_greedy_generation_is_the_full_forward(trained, capsys):
    """Each token from the cache is the most probable one of a forward pass over all before it."""
    from experiments import language_model

    options = language_model.LanguageModel(output=language_model.Output(output_dir=trained))
    model, vocabulary, *_ = language_model.restored(options)
    assert main(trained, "generate", "--smoke", "--count", 5, "--temperature", 0) == 0
    got = vocabulary.encode(capsys.readouterr().out.removesuffix("\n"))
    for place in range(len(got) - 5, len(got)):
        logits = np.array(model(np.array([got[:place]]))[0, -1])
        logits[: text.END + 1] = -np.inf
        assert logits.argmax() == got[place]


def test_comparison(tmp_path, capsys):
    from experiments import language_model

    several = dict(list(language_model.COMPARED.items())[3:6])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_model, "COMPARED", several)
        assert main(tmp_path, "train", "--smoke", "--compare") == 0
    rows = {row["model"]: row for row in rows_of(tmp_path)}
    assert rows.keys() == several.keys()
    assert rows["entmax 1.5, rotary"]["zero_weights"] > 0
    assert rows["off-by-one, rotary"]["zero_weights"] == 0
    assert "bits per" in capsys.readouterr().out
    assert main(tmp_path, "evaluate", "--smoke") == 2
    assert "holds a comparison" in capsys.readouterr().err


def test_bits_per_character_count_each_token_once():
    """Against log-probabilities of each passage by hand; pieces of two characters."""
    vocabulary = text.Vocabulary.train(["abab", "ba"], kind="character")
    tokens = np.array(vocabulary.encode("abbabaabbab"), np.int32)
    fit = lm.FitOptions(context=4)
    options = lm.TransformerOptions(features=8, heads=2, layers=1)
    model = lm.build(options, len(vocabulary), fit)
    passages = lm.Passages(tokens, 22, 4, batch_size=2)
    nats = 0.0
    for first in range(0, 10, 4):
        part = tokens[first : first + 5]
        log_p = np.asarray(jax.nn.log_softmax(model(part[None, :-1])[0]))
        nats -= log_p[np.arange(len(part) - 1), part[1:]].sum()
    got = passages.evaluate(model)
    np.testing.assert_allclose(got["bits_per_character"], nats / math.log(2) / 21, rtol=1e-5)
    np.testing.assert_allclose(got["loss"], nats / 10, rtol=1e-5)


def test_maps_are_the_layers_own():
    fit = lm.FitOptions(context=5)
    options = lm.TransformerOptions(features=8, heads=2, layers=2, window=1)
    model = lm.build(options, 9, fit)
    maps = np.asarray(lm.attention_maps(model, np.array([[4, 5, 6, 7]])))
    assert maps.shape == (2, 1, 2, 4, 4)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    band = np.tril(np.ones((4, 4))) * np.triu(np.ones((4, 4)), -1)
    assert ((maps > 0) == band.astype(bool)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("generate", "--name", "none"), "holds no run. Train a model of this --name first."),
        (("train", "--heads", 3), "--heads must divide --features, 128. Got 3."),
        (("train", "--context", 0), "--context must be at least 1. Got 0."),
        (("train", "--temperature", -1), "--temperature must not be negative. Got -1.0."),
        (("train", "--text", "nowhere.txt"), "nowhere.txt"),
        (("generate", "--prompt", ""), "--prompt must hold a token at least."),
    ],
)
def test_mistakes_are_named(trained, capsys, options, message):
    assert main(trained, *options) == 2
    assert message in capsys.readouterr().err
