"""Captions of pictures: runs end to end, one's own pictures, mistakes, where words look."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from attn_jax import text
from experiments import cli
from experiments.data.captions import Captioned
from experiments.image_captioning import CaptionModel, data, figures, report
from experiments.seq2seq.translator import Translation


def run(*argv, directory):
    return cli.main(["image-captioning", *map(str, argv), "--output-dir", str(directory)])


@pytest.fixture(scope="module", autouse=True)
def few_figures():
    """Two of each run: a figure takes longer than the tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "DRAWN", 1)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    options = ("--smoke", "--twin", "--steps", 2, "--gate", "--doubly-stochastic", 1)
    assert run(*options, directory=directory) == 0
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six pictures of one colour, and their captions as lines."""
    folder = tmp_path_factory.mktemp("pictures")
    colors = ["red", "green", "blue", "black", "white", "yellow"]
    for number, color in enumerate(colors):
        Image.new("RGB", (9 + number, 12), color).save(folder / f"{number}.png")
    said = "".join(f"{n}.png\tit is {color}\n" for n, color in enumerate(colors))
    (folder / "captions.tsv").write_text(said)
    return folder


def test_training_reports_captions_and_where_words_look(trained):
    directory = trained / "image-captioning" / "default"
    metrics = json.loads((directory / "metrics.json").read_text())
    assert metrics["pictures"] == 16
    assert [row["system"] for row in metrics["captions"]] == ["attention", "no attention"]
    assert metrics["exact_match"] == metrics["captions"][0]["exact_match"]
    assert 0 <= metrics["pointing_accuracy"] <= 1
    assert 0 < metrics["pointing_mass"] < 1
    assert 0.02 < metrics["chance"] < 0.2
    assert metrics["pointed"] >= 2 * 16
    with (directory / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["picture"] for row in rows] == [f"test scene {n}" for n in range(16)]
    assert rows[0].keys() >= {"reference", "attention greedy", "no attention greedy"}
    pictures = {each.name for each in (directory / "figures").iterdir()}
    assert pictures >= {"picture_1.png", "boxes_1.png", "learning_curve.png", "attention.html"}


def test_files_are_described_and_drawn_and_a_bad_one_is_named(trained, folder, tmp_path, capsys):
    (tmp_path / "bad.png").write_text("no picture")
    files = [folder / "0.png", tmp_path / "bad.png", folder / "1.png"]
    assert run("caption", *files, "--plot", tmp_path / "seen", directory=trained) == 2
    printed = capsys.readouterr()
    lines = [line.split("\t") for line in printed.out.splitlines()]
    assert [name for name, _ in lines] == [str(files[0]), str(files[2])]
    assert "bad.png is no picture that can be read" in printed.err
    assert "1 of 3 files are no pictures" in printed.err
    assert all((tmp_path / f"seen_{n}.png").read_bytes()[:4] == b"\x89PNG" for n in (1, 2))


def test_a_run_is_evaluated_again_and_on_other_pictures(trained, folder):
    directory = trained / "image-captioning" / "default"
    before = json.loads((directory / "metrics.json").read_text())
    assert run("evaluate", directory=trained) == 0
    assert json.loads((directory / "metrics.json").read_text()) == before
    own = ("--images", folder, "--captions", folder / "captions.tsv")
    assert run("evaluate", *own, directory=trained) == 0
    other = json.loads((directory / "evaluation" / "metrics.json").read_text())
    assert other["pictures"] == 6
    assert "pointing_accuracy" not in other  # there are no boxes


def test_ones_own_pictures_and_resuming(folder, tmp_path):
    options = ("--smoke", "--steps", 2, "--images", folder, "--captions", folder / "captions.tsv")
    assert run(*options, directory=tmp_path) == 0
    metrics = tmp_path / "image-captioning" / "default" / "metrics.json"
    before = json.loads(metrics.read_text())
    assert before["training"]["pairs"] == 4
    assert run(*options, "--resume", directory=tmp_path) == 0
    assert json.loads(metrics.read_text()) == before


def test_normalizers_are_compared_and_resumed(tmp_path, capsys):
    options = ("compare", "--smoke", "--steps", 2, "--normalizers", "entmax", "sigmoid")
    assert run(*options, directory=tmp_path) == 0
    directory = tmp_path / "image-captioning" / "compare"
    rows = json.loads((directory / "metrics.json").read_text())["comparison"]
    assert [row["normalizer"] for row in rows] == ["entmax", "sigmoid"]
    assert 1 < rows[0]["alpha"] < 16
    assert rows[1]["alpha"] is None
    assert (directory / "figures" / "comparison.png").exists()
    assert run(*options, "--resume", directory=tmp_path) == 0
    again = json.loads((directory / "metrics.json").read_text())["comparison"]
    assert [row["pointing_mass"] for row in again] == [row["pointing_mass"] for row in rows]
    capsys.readouterr()


def test_a_transformer_reads_the_grid(tmp_path):
    options = ("--smoke", "--steps", 2, "--model", "transformer", "--layers", 1)
    assert run(*options, directory=tmp_path) == 0
    path = tmp_path / "image-captioning" / "default" / "metrics.json"
    metrics = json.loads(path.read_text())
    assert [row["search"] for row in metrics["captions"]] == ["greedy"]
    assert 0 <= metrics["pointing_accuracy"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "."], "--images and --captions go together. Missing: --captions"),
        (["--images", "none", "--captions", "a.tsv"], "--images needs a folder. Got none"),
        (["--smoke", "--language", "xx"], "unknown language 'xx'"),
        (["--gate", "--score", "none"], "--gate needs --model recurrent and a --score other"),
        (["--doubly-stochastic", "1", "--model", "transformer"], "--doubly-stochastic needs"),
        (["--doubly-stochastic", "-1"], "--doubly-stochastic must be at least 0"),
        (["--scenes", "0"], "--scenes must be positive"),
        (["caption"], "caption needs a file"),
        (["caption", "a.png"], "holds no run"),
        (["evaluate"], "holds no run"),
        (["compare", "--normalizers"], "--normalizers needs one or several, each once"),
        (["compare", "--normalizers", "softmax", "softmax"], "each once"),
        (["compare", "--score", "none"], "compare needs a model with attention"),
        (["compare", "--model", "transformer", "--smoke"], "--normalizer entmax, whose"),
    ],
)
def test_mistakes(options, message, tmp_path, capsys):
    assert run(*options, directory=tmp_path) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_gold_cells_are_those_of_the_box_that_a_word_names():
    image = np.zeros((8, 8, 3), np.uint8)
    example = Captioned(
        image, ("a cat left of a dog",), (("cat", (0, 0, 4, 8)), ("dog", (4, 4, 8, 8)))
    )
    target = data.vocabulary([example])
    (gold,) = data.gold([example], target, 4)
    assert gold.astype(int).tolist() == [
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
    ]


def test_grids_and_their_stages():
    assert CaptionModel(channels=6).stages == (3, 6)
    assert CaptionModel(channels=6, grid=8).stages == (3, 6, 6)
    assert CaptionModel(channels=6, grid=32).stages == (6,)


def test_no_words_no_picture():
    target = text.Vocabulary.train(["a"])
    example = Captioned(np.zeros((8, 8, 3), np.uint8), ("a",))
    nothing = Translation("", [], 0.0, True, np.ones((1, 4)))
    assert figures.words(example, nothing, target) is None
    assert figures.boxes(example, nothing, target) is None
