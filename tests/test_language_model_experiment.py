"""The language-model experiment from the command line: train, compare, evaluate, generate."""

import json
import math
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from flax import nnx
from safetensors.numpy import save_file

from attn_jax import regression, text
from attn_jax.nn import interop
from experiments import cli
from experiments.benchmark.models import flax_language_model, training_step
from experiments.benchmark.models import language_model as speed
from experiments.harness.runs import Output
from experiments.language_model import (
    Architecture,
    Compare,
    FitOptions,
    Transformer,
    data,
    evaluate,
    figures,
    report,
    train,
)

FIGURES = {"attention", "attention_layer_1", "attention_layer_2", "entropy", "learning_curve"}


def main(directory, *options):
    return cli.main(["language-model", *map(str, options), "--output-dir", str(directory)])


CODE = "class A:\n    def f(self, x):\n        return x\n\n\ty = 'a  b'\n"
TRAINED = ("train", "--smoke", "--sentence", "for x in y:", "--window", 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    assert main(directory, *TRAINED) == 0
    return directory


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A run of byte-pair pieces and learned positions on texts of its own; few batches in it."""
    directory = tmp_path_factory.mktemp("runs")
    files = {"text": CODE * 3, "dev": CODE + "z = 3\n"}
    for name, written in files.items():
        (directory / name).write_text(written)
    named = [part for name in files for part in (f"--{name}", directory / name)]
    options = ("--tokens", "bpe", "--vocabulary", 40, "--positions", "learned")
    assert main(directory, *TRAINED[:4], *named, *options) == 0
    return directory


def run_of(directory):
    return directory / "language-model" / "default"


def rows_of(directory, name="metrics.json"):
    return json.loads((run_of(directory) / name).read_text())["rows"]


def figures_of(directory):
    return {path.stem for path in (run_of(directory) / "figures").iterdir()}


def test_training_writes_what_it_promises(trained):
    (row,) = rows_of(trained)
    assert 3 < row["bits_per_character"] < 8
    assert np.shape(row["entropy"]) == (2, 2)
    assert row["zero_weights"] == 0  # of those that the window leaves
    assert figures_of(trained) >= FIGURES


def test_another_text_or_vocabulary_is_refused(trained, tmp_path, capsys, monkeypatch):
    """A model of other characters, as many of them, would be read with this alphabet."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    vocabulary = run_of(tmp_path) / "vocabulary.json"
    vocabulary.write_text(vocabulary.read_text().replace('"a"', '"€"'))
    assert main(tmp_path, "evaluate", "--smoke") == 2
    assert "vocabulary.json" in capsys.readouterr().err
    before, real = rows_of(tmp_path), data.python_topics()
    monkeypatch.setattr(data, "python_topics", lambda: real.replace("a", "€"))
    assert main(tmp_path, *TRAINED, "--resume") == 2
    assert "Changed: vocabulary, held-out text." in capsys.readouterr().err
    assert rows_of(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "config.json cannot be read"),
        (lambda text: text.replace("checksums", "sums"), "holds no checksums"),
        (lambda text: text.replace('"context"', '"contest"'), "unexpected keyword argument"),
    ],
)
def test_a_damaged_config_is_named(trained, tmp_path, capsys, change, message):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    config = run_of(tmp_path) / "config.json"
    config.write_text(change(config.read_text()))
    assert main(tmp_path, "generate") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("run", ["trained", "pieces"])
def test_evaluation_repeats_the_numbers_and_leaves_the_runs(run, request):
    directory = request.getfixturevalue(run)
    before, drawn = rows_of(directory), figures_of(directory)
    assert main(directory, "evaluate", *TRAINED[1:4]) == 0
    (row,), (expected,) = rows_of(directory, "evaluation.json"), before
    assert {name: row[name] for name in expected} == expected
    assert rows_of(directory) == before
    pictures = FIGURES - {"learning_curve"}
    assert figures_of(directory) == drawn | {f"evaluation_{name}" for name in pictures}


@pytest.mark.parametrize(("run", "flag"), [("trained", "--text"), ("pieces", "--dev")])
def test_a_named_text_is_evaluated_whole(run, flag, request, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "of_sentence", lambda *_: ())
    directory = request.getfixturevalue(run)
    written = CODE + "for i in a:\n  b\n" * 30
    (tmp_path / "other").write_text(written)
    assert main(directory, "evaluate", "--smoke", flag, tmp_path / "other") == 0
    (row,) = rows_of(directory, "evaluation.json")
    model, vocabulary, *_ = evaluate.restored(Output(output_dir=directory))
    nats = nats_of(model, data.encode(vocabulary, written), 32)
    first = len(vocabulary.decode(data.encode(vocabulary, written)[:1]))
    got = row["bits_per_character"]
    np.testing.assert_allclose(got, nats / math.log(2) / (len(written) - first), rtol=1e-5)


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
    """Each token from the cache is the most probable one of a forward pass over all."""
    model, vocabulary, *_ = evaluate.restored(Output(output_dir=trained))
    assert main(trained, "generate", "--smoke", "--count", 5, "--temperature", 0) == 0
    got = vocabulary.encode(capsys.readouterr().out.removesuffix("\n"))
    logits = np.array(model(np.array([got[:-1]]))[0, -5:])
    logits[:, : text.END + 1] = -np.inf
    assert logits.argmax(axis=-1).tolist() == got[-5:]


@pytest.fixture
def open_model(tmp_path):
    """A folder as open models come in: GPT-2's names, tied, its tokenizer of single bytes."""
    family = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 24}
    config = {**family, "vocab_size": 257, "eos_token_id": 256}
    module = interop.FAMILIES["gpt2"](config, ()).build(nnx.Rngs(0))
    module.torch_config, module.torch_names = json.dumps(config), ()
    folder = tmp_path / "open"
    folder.mkdir()
    save_file(interop.to_torch(module), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate([*letters, "<end>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_an_open_model_goes_on_and_is_drawn(open_model, tmp_path, capsys):
    options = ("generate", "--weights", open_model, "--prompt", "é and ", "--temperature", 0)
    assert main(tmp_path, *options, "--count", 5, "--plot") == 0
    assert capsys.readouterr().out.startswith("é and ")
    expected = {"attention", "attention_layer_1", "entropy"}
    assert figures_of(tmp_path) == {f"generated_{name}" for name in expected}
    page = (run_of(tmp_path) / "figures" / "generated_attention.html").read_text()
    assert page.startswith("<!")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("tokenizer.json", "tokenizer.json is damaged, or no tokenizer"),
        ("model.safetensors", "model.safetensors is damaged, or no safetensors file"),
    ],
)
def test_a_damaged_open_model_is_one_line(open_model, tmp_path, capsys, broken, message):
    path = open_model / broken
    path.write_bytes(path.read_bytes()[:100])
    assert main(tmp_path, "generate", "--weights", open_model) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_learned_positions_end(pieces, capsys):
    """A prompt of several lines is encoded as they are in training, and shown as it was."""
    prompt = "class A:\n    def "
    options = ("generate", "--prompt", prompt, "--temperature", 0)
    assert main(pieces, *options, "--count", 8) == 0
    assert capsys.readouterr().out.startswith(prompt)
    assert main(pieces, *options, "--count", 33) == 2
    error = capsys.readouterr().err
    assert "--prompt and --count must stay within the 32 positions that were learned" in error
    most = int(error.split("--count at most ")[1].split(".")[0])
    assert main(pieces, *options, "--count", most) == 0
    assert main(pieces, *options, "--count", most + 1) == 2


COMPARED = {
    "entmax 1.5, alibi": {"normalizer": "entmax15", "positions": "alibi"},
    "softmax, window 3": {"window": 3},
}


def test_an_interrupted_comparison_goes_on(trained, tmp_path, capsys, monkeypatch):
    """Each row is what its name says; a resumed one has the bits."""
    monkeypatch.setattr(train, "COMPARED", COMPARED)
    monkeypatch.setattr(figures, "of_sentence", lambda *_: ())
    models = train.models_of(Compare(model=Architecture(layers=3))).values()
    chosen = [(m.normalizer, m.positions, m.window, m.layers) for m in models]
    assert chosen == [("entmax15", "alibi", None, 3), ("softmax", "rotary", 3, 3)]
    interrupt(monkeypatch, after=3)  # in the second model
    options = ("compare", "--smoke")
    assert main(tmp_path, *options) == 130
    (entmax,) = rows_of(tmp_path)
    assert entmax["zero_weights"] > 0
    assert main(tmp_path, *options, "--resume") == 0
    assert "bits per" in capsys.readouterr().out
    softmax = rows_of(trained)[0] | {"model": "softmax, window 3"}
    assert rows_of(tmp_path) == [entmax | {"model": "entmax 1.5, alibi"}, softmax]
    assert figures_of(tmp_path) == {"learning_curve"}
    assert main(tmp_path, "evaluate", "--smoke") == 2
    assert "holds a comparison" in capsys.readouterr().err


def interrupt(monkeypatch, *, after):
    """Ctrl-C at an evaluation, once."""
    evaluations = []

    def once(self, model, real=report.Passages.evaluate):
        evaluations.append(1)
        if len(evaluations) == after + 1:
            raise KeyboardInterrupt
        return real(self, model)

    monkeypatch.setattr(report.Passages, "evaluate", once)


# Text


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_text_comes_back_line_by_line(kind):
    written = CODE + "  two\n\n" + CODE.replace("\n", "\n\t")
    vocabulary = text.Vocabulary.train(data.lines_of(written), kind=kind, size=60)
    ids = data.encode(vocabulary, written)
    assert data.decode(vocabulary, ids) == written
    first = len(vocabulary.decode(ids[:1]))
    assert data.predicted_characters(vocabulary, written, ids) == len(written) - first
    lines = [data.encode(vocabulary, line) for line in written.splitlines(keepends=True)]
    assert np.concatenate(lines).tolist() == ids.tolist()


def test_characters_are_counted_as_they_are_encoded():
    written = "cafe\u0301 e\u0301"  # which becomes one sign each
    vocabulary = text.Vocabulary.train([written], kind="character")
    ids = data.encode(vocabulary, written)
    assert data.predicted_characters(vocabulary, written, ids) == len(ids) - 1 == 5


# Measures


def nats_of(model, tokens, context):
    """Log-probabilities of each passage by hand."""
    nats = 0.0
    for first in range(0, len(tokens) - 1, context):
        part = tokens[first : first + context + 1]
        log_p = np.asarray(jax.nn.log_softmax(model(part[None, :-1])[0]))
        nats -= log_p[np.arange(len(part) - 1), part[1:]].sum()
    return nats


def test_bits_per_character_count_each_token_once():
    """Pieces of two characters."""
    vocabulary = text.Vocabulary.train(["abab", "ba"], kind="character")
    tokens = np.array(vocabulary.encode("abbabaabbab"), np.int32)
    options = Transformer(features=8, heads=2, layers=1)
    model = train.build(options, len(vocabulary), FitOptions(context=4))
    passages = report.Passages(tokens, 20, 4, batch_size=2)
    nats, got = nats_of(model, tokens, 4), passages.evaluate(model)
    np.testing.assert_allclose(got["bits_per_character"], nats / math.log(2) / 20, rtol=1e-5)
    np.testing.assert_allclose(got["loss"], nats / 10, rtol=1e-5)


def test_sparsity_is_of_the_visible_weights_of_real_tokens():
    """The second passage has two tokens that are asked and three that fill it up."""
    options = {"features": 8, "heads": 2, "layers": 2, "window": 2, "normalizer": "sparsemax"}
    model = train.build(Transformer(**options), 9, FitOptions(context=5))
    kernel = model.stack.blocks.attention.query.kernel
    kernel[...] = 9 * kernel[...]  # so that some weights are 0
    passages = report.Passages(np.array([4, 5, 6, 7, 8, 4, 5, 6], np.int32), 7, 5)
    got = report.sparsity(model, passages, 2)
    maps = np.asarray(report.attention_maps(model, passages.passages[:, :-1]))
    rows = [(passage, i) for passage, count in ((0, 5), (1, 2)) for i in range(count)]
    zeros = [maps[:, p, :, i, max(i - 2, 0) : i + 1] == 0 for p, i in rows]
    share = sum(each.sum() for each in zeros) / sum(each.size for each in zeros)
    assert 0 < share < 1
    np.testing.assert_allclose(got["zero_weights"], share)
    entropy = [
        [np.mean([regression.entropy(maps[layer, p, head, i][None]) for p, i in rows])]
        for layer in range(2)
        for head in range(2)
    ]
    np.testing.assert_allclose(np.reshape(entropy, (2, 2)), got["entropy"], rtol=1e-5)
    assert got["passages_looked_at"] == 2


def test_maps_are_the_layers_own():
    fit = FitOptions(context=5)
    options = Transformer(features=8, heads=2, layers=2, window=1)
    model = train.build(options, 9, fit)
    maps = np.asarray(report.attention_maps(model, np.array([[4, 5, 6, 7]])))
    assert maps.shape == (2, 1, 2, 4, 4)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
    band = np.tril(np.ones((4, 4))) * np.triu(np.ones((4, 4)), -1)
    assert ((maps > 0) == band.astype(bool)).all()


def test_speed_is_that_of_equal_models(tmp_path, capsys):
    """Flax's modules have the same losses and, after steps of training, still do."""
    assert main(tmp_path, "speed", "--smoke") == 0
    assert "ms a token" in capsys.readouterr().out
    metrics = json.loads(
        (tmp_path / "language-model-speed" / "default" / "metrics.json").read_text()
    )
    assert metrics.keys() == {"training", "context", "decoding", "compiling"}
    tokens = speed.tokens_of(speed.TINY, 2, 6)
    model = speed.built(speed.TINY, 2, 5)
    ours, flaxs = (
        training_step.repeated(*speed.step_of(each), tokens)
        for each in (model, flax_language_model.like(model))
    )
    losses = [(ours(), flaxs()) for _ in range(3)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    assert losses[2][0] < losses[0][0]


def test_speed_beside_pytorch():
    torch_language_model = pytest.importorskip("experiments.benchmark.models.torch_language_model")
    tokens = speed.tokens_of(speed.TINY, 2, 6)
    model = speed.built(speed.TINY, 2, 5)
    torchs = torch_language_model.like(model)
    step = torch_language_model.training(torchs, tokens, speed.RATE, speed.CLIP)
    np.testing.assert_allclose(step(), model.loss(tokens)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("generate", "--name", "none"), "holds no run. Train a model of this --name first."),
        (("train", "--heads", 3), "--heads must divide --features, 128. Got 3."),
        (("train", "--context", 0), "--context must be positive and finite. Got 0."),
        (
            ("generate", "--temperature", -1),
            "--temperature must be at least 0 and finite. Got -1.0.",
        ),
        (("train", "--text", "nowhere.txt"), "nowhere.txt"),
        (("generate", "--prompt", ""), "--prompt must hold a token at least."),
        (("train", "--features", 6, "--heads", 2), "--features / --heads must be even for rotary"),
        (("train", "--vocabulary", 4), "--vocabulary must be at least 5. Got 4."),
        (("generate", "--top-p", 2), "--top-p must be greater than 0 and at most 1. Got 2.0."),
        (("generate", "--top-k", 0), "--top-k must be positive and finite. Got 0."),
        (("train", "--seed", -1), "--seed must be at least 0 and finite. Got -1."),
        (("train", "--text", "{short}"), "must have more tokens than --context, 256. Got "),
        (("train", "--text", "{blank}", "--tokens", "bpe"), "makes no vocabulary"),
        (("train", "--text", "{short}", "--context", 2, "--dev", "{blank}"), "two tokens at least"),
        (("evaluate", "--text", "{short}", "--dev", "{short}"), "evaluate takes one text."),
        (("evaluate", "--text", "{blank}"), "must have two tokens at least. Got 1."),
        (("compare", "--positions", "none"), "--positions"),
        (("generate", "--resume"), "--resume"),
        (("train", "--prompt", "a"), "--prompt"),
        (("train", "--sentence", ""), "--sentence must be at least one character."),
    ],
)
def test_mistakes_are_named(trained, tmp_path, capsys, options, message):
    files = {"short": "a text\n", "blank": "\n"}
    for name, written in files.items():
        (tmp_path / name).write_text(written)
        options = [str(each).replace(f"{{{name}}}", str(tmp_path / name)) for each in options]
    before = rows_of(trained)
    assert main(trained, *options) == 2
    assert message in capsys.readouterr().err
    assert rows_of(trained) == before


def test_several_processes_train_one_model(tmp_path, capfd):
    tiny = ("--smoke", "--steps", 2)
    assert main(tmp_path, *tiny, "--processes", 2) == 0
    out = capfd.readouterr().out
    assert out.count("results in") == 1  # the first one alone prints
    run = tmp_path / "language-model" / "default"
    assert len(json.loads((run / "metrics.json").read_text())["rows"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--processes", 2, "--coordinator", "here:1"), "--coordinator joins others. Got both"),
        (("--coordinator", "here:1", "--process", 2, "--of", 2), "--process must be below"),
    ],
)
def test_processes_that_cannot_be_are_refused(options, message, tmp_path, capsys):
    assert main(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
