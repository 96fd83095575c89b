"""Pairs of lines from files: those held out, those to evaluate on, and what is missing."""

import pytest

from experiments.data import parallel_text
from experiments.data.pairs import NOTHING
from experiments.data.parallel_text import CorpusOptions, EvaluationFiles
from experiments.harness.errors import UserError


def write(tmp_path, **files):
    for name, written in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in written), "utf-8")
    return {name: tmp_path / name for name in files}


def test_files_and_held_out_lines(tmp_path):
    written = [f"line {i}" for i in range(101)]
    paths = write(tmp_path, source=written, target=written[::-1])
    options = CorpusOptions(train_source=paths["source"], train_target=paths["target"])
    corpus = parallel_text.load(options)
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
        parallel_text.load(CorpusOptions(train_source=paths["source"]))
    with pytest.raises(UserError, match="--train-source and --train-target are missing"):
        parallel_text.load(CorpusOptions(dev_source=paths["source"], dev_target=paths["source"]))


def test_test_files_replace_those_of_any_data(tmp_path):
    paths = write(tmp_path, source=["a", "b"], target=["x", "y"])
    options = CorpusOptions(test_source=paths["source"], test_target=paths["target"], smoke=True)
    corpus = parallel_text.load(options)
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
    corpus = parallel_text.load_test(EvaluationFiles(), trained)
    assert (corpus.test, corpus.dev) == (NOTHING, (["dev_source"], ["dev_target"]))
    trained |= {f"test_{side}": trained[f"dev_{side}"] for side in ("source", "target")}
    assert parallel_text.load_test(EvaluationFiles(), trained).test == (
        ["dev_source"],
        ["dev_target"],
    )
    now = EvaluationFiles(test_source=paths["new"], test_target=paths["new"])
    paths["dev_source"].unlink()
    assert parallel_text.load_test(now, trained).test == (["new"], ["new"])
    with pytest.raises(UserError, match="no file"):
        parallel_text.load_test(EvaluationFiles(), trained)


def test_files_of_unequal_length(tmp_path):
    paths = write(tmp_path, source=["a", "b"], target=["a"])
    with pytest.raises(UserError, match="2"):
        parallel_text.load(
            CorpusOptions(train_source=paths["source"], train_target=paths["target"])
        )
