"""Files from strangers: nothing that is loaded is a pickle, and the release says one version."""

import pickle
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

import attn_jax
from attn_jax import training
from attn_jax.nn import LanguageModel
from attn_jax.text import Vocabulary

ROOT = Path(__file__).parent.parent


@pytest.fixture
def without_pickle(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("a pickle was loaded")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)


def test_checkpoints_and_vocabularies_are_no_pickles(tmp_path, request):
    model = LanguageModel(7, 4, 2, 1, rngs=nnx.Rngs(0))
    tokens = np.ones((4, 5), int)
    training.fit(
        model,
        lambda model, batch, rng: model.loss(batch["tokens"]),
        training.Batches({"tokens": tokens}, batch_size=2),
        steps=2,
        optimizer=0.1,
        directory=tmp_path / "run",
        progress=False,
    )
    Vocabulary.train(["a b", "b c"]).save(tmp_path / "vocabulary.json")
    request.getfixturevalue("without_pickle")
    training.load(LanguageModel(7, 4, 2, 1, rngs=nnx.Rngs(1)), tmp_path / "run")
    assert Vocabulary.load(tmp_path / "vocabulary.json").encode("a b")


def test_arrays_of_objects_in_a_stranger_s_file_are_refused(tmp_path):
    """NumPy's default, which every reader of ours keeps."""
    path = tmp_path / "speech.npz"
    np.savez(path, names=np.array([{"a": 1}], dtype=object))
    with np.load(path) as stored, pytest.raises(ValueError, match="allow_pickle"):
        stored["names"]
    sources = [*(ROOT / "attn_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    runs = re.compile(r"allow_pickle|pickle\.load|torch\.load|yaml\.load|(?<![\w.])(?:eval|exec)\(")
    found = {path.name: runs.findall(path.read_text()) for path in sources}
    # options, from the process that started this one
    assert {name: kinds for name, kinds in found.items() if kinds} == {
        "processes.py": ["pickle.load"]
    }


def test_one_version():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    assert f"\nversion: {attn_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_fixture_refuses_pickles(without_pickle):
    with pytest.raises(AssertionError, match="a pickle was loaded"):
        pickle.loads(b"")
