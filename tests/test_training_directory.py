"""The directory of a training: its name, its lock, what is damaged in it, and a full disk."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_jax.training import (
    Batches,
    CheckpointError,
    arrays,
    checkpoints,
    fit,
    load,
    load_average,
    lock,
)
from attn_jax.training.checkpoints import DamagedCheckpointWarning
from attn_jax.training.lock import InUse, Lock

X = np.random.default_rng(4).normal(size=(7, 3)).astype(np.float32)


def loss(model, batch, rng):
    return jnp.mean((model(batch) - batch[:, :1]) ** 2)


def line():
    return nnx.Linear(3, 1, rngs=nnx.Rngs(0))


def train(directory, steps, **options):
    options = {"log_every": 1, "checkpoint_every": 1, "progress": False} | options
    return fit(
        line(),
        loss,
        Batches(X, batch_size=5, seed=2),
        steps=steps,
        optimizer=optax.sgd(0.1),
        directory=directory,
        **options,
    )


def kernel(model):
    return np.asarray(model.kernel[...])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Six steps at one go, and their directory with the checkpoints 3 to 6."""
    directory = tmp_path_factory.mktemp("whole")
    return train(directory, 6, keep=4), directory


# Names

NAMES = {
    "brackets": "runs [1]",
    "range": "a[0-9]",
    "negated": "[!x]",
    "stars": "**?",
    "setting": "x=[0.1]",
    "lines": "a\nb\t",
    "unicode": "ü ² e\u0301",
    "bytes": os.fsdecode(b"\xff\xfe"),
    "scheme": "gs:",
    "backslash": "a\\b",
    "quotes": "\"'$HOME ~ %20 {a} #",
    "long": "x" * 255,
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_that_the_file_system_takes(name, tmp_path):
    directory = tmp_path / NAMES[name]
    directory.mkdir()
    trees = {"model": {"a": X}, "best": {"a": -X, "b": X[:2]}}
    checkpoints.save(directory, trees, {"step": 3}, keep=1)
    manifest = checkpoints.read_manifest(checkpoints.latest(directory))
    for item, tree in trees.items():
        for leaf, array in checkpoints.restore(manifest, item, tree).items():
            np.testing.assert_array_equal(array, tree[leaf])


def test_a_training_in_a_directory_with_brackets(whole, tmp_path):
    directory = tmp_path / "runs [1]" / "x=[0.1]"
    train(directory, 4)
    assert train(directory, 6).history[-1]["loss"] == whole[0].history[-1]["loss"]
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoints", "metrics.jsonl"]
    for loaded in (load, lambda *where: load_average(*where, 2)):
        got, expected = loaded(line(), directory), loaded(line(), whole[1])
        np.testing.assert_array_equal(kernel(got), kernel(expected))


def test_a_link_and_a_relative_path_while_the_program_goes_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "[real]").mkdir()
    (tmp_path / "link").symlink_to("[real]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    train("link", 3, on_row=lambda row: os.chdir(tmp_path / "elsewhere"))
    assert checkpoints.steps(tmp_path / "[real]") == [2, 3]


def test_what_orbax_left_unmerged_is_noticed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_is_plain", lambda path: True)
    with pytest.raises(CheckpointError, match="cannot be written: orbax has not merged model"):
        train(tmp_path / "[0]", 1)
    assert checkpoints.steps(tmp_path / "[0]") == []


@pytest.mark.parametrize("name", ["file/below", "file/far/below", "dangling", "y" * 256, "a\0b"])
def test_what_can_be_no_folder_is_refused(name, tmp_path, without_shape_hook):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(
        ValueError, match=r"^directory must be a folder that can be written\. Got /"
    ):
        train(tmp_path / name, 1)
    with pytest.raises(CheckpointError, match=r"has no checkpoint|cannot be read"):
        load(line(), tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="directory must be a folder that can be written"):
        train(tmp_path, 1)


# The lock


def test_a_second_training_is_refused_before_it_writes(tmp_path):
    refused = []

    def other(row):
        def run():
            before = sorted(tmp_path.rglob("*"))
            with pytest.raises(ValueError, match=r"^directory must be no other training's") as told:
                train(tmp_path, 9)
            assert f"process {os.getpid()} on " in str(told.value)
            assert sorted(tmp_path.rglob("*")) == before
            refused.append(row["step"])

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    assert train(tmp_path, 2, on_row=other).step == 2
    assert refused == [1, 2]
    assert train(tmp_path, 3).step == 3


def test_the_lock_of_another_process_counts_and_that_of_a_dead_one_is_taken_over(tmp_path):
    file = tmp_path / "lock"
    code = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write('process 7')\nfile.flush()\nprint(flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, file], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(InUse, match="process 7"):
            Lock(file)
        other.kill()
        other.wait()
    assert file.read_text() == "process 7"
    with Lock(file), pytest.raises(InUse, match=f"process {os.getpid()} on .*, since "):
        Lock(file)
    assert not file.exists()


def test_a_lock_that_was_deleted_is_no_lock_and_stays_anothers(tmp_path):
    file = tmp_path / "lock"
    first = Lock(file)
    file.unlink()
    with Lock(file):
        first.release()
        assert file.exists()
    assert not file.exists()


def test_a_forked_process_neither_keeps_nor_releases_a_lock(tmp_path):
    """What is forked from a training and outlives it must not hold its directory."""
    code = (
        "import os, runpy, sys\nlock = runpy.run_path(sys.argv[2])['Lock'](sys.argv[1])\n"
        "if os.fork() == 0:\n    lock.release()\n    print(flush=True)\n"
        "    sys.stdin.read()\n    os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    )
    # The file itself, since the package would import JAX.
    command = [sys.executable, "-c", code, tmp_path / "lock", lock.__file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as parent:
        parent.wait()
        parent.stdout.readline()
        assert (tmp_path / "lock").exists()
        Lock(tmp_path / "lock").release()


# Damage


def cut_manifest_short(path):
    (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-9])


def flip_in_manifest(path):
    text = (path / "manifest.json").read_text()
    at = text.index('"seconds": ') + len('"seconds": ')
    (path / "manifest.json").write_text(text[:at] + str(int(text[at] != "1")) + text[at + 1 :])


def flip_in_arrays(path):
    file = max(path.glob("model/**/d/*"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def delete_a_file(path):
    next(path.glob("training/**/manifest.ocdbt")).unlink()


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


def replace_by_a_file(path):
    shutil.rmtree(path)
    path.touch()


DAMAGES = [
    cut_manifest_short,
    flip_in_manifest,
    flip_in_arrays,
    delete_a_file,
    empty,
    replace_by_a_file,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_from_the_newest_whole_checkpoint(damage, whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run [1]")
    for step in (5, 6):
        damage(directory / "checkpoints" / str(step))
    with pytest.raises(CheckpointError, match=r"6 is (damaged|not a checkpoint)"):
        load(line(), directory)
    (directory / "checkpoints" / "2.damaged").mkdir()  # of an earlier resume
    fates = {6: "It is left out, as 6.damaged", 5: "It is deleted"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resumed = train(directory, 6)
    assert [each.category for each in told] == 2 * [DamagedCheckpointWarning]
    for (step, fate), each in zip(fates.items(), told, strict=True):
        assert str(each.message).startswith(str(directory / "checkpoints" / str(step)))
        assert str(each.message).endswith(f"{fate}: training goes on from 4.")
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole[0].history]
    np.testing.assert_array_equal(kernel(load(line(), directory)), kernel(load(line(), whole[1])))
    names = sorted(path.name for path in (directory / "checkpoints").iterdir())
    assert names == ["5", "6", "6.damaged"]


def test_where_none_is_whole_training_is_refused_and_nothing_changes(whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    for path in checkpoints.paths(directory):
        flip_in_manifest(path)
    with pytest.raises(CheckpointError, match="6 is not a checkpoint"):
        train(directory, 8)
    assert checkpoints.steps(directory) == [3, 4, 5, 6]
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 6


def test_what_is_named_like_no_step_is_left_alone(whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    for name in ("²", "٣", "007", "-1", "7 ", "notes", ".9"):
        (directory / "checkpoints" / name).mkdir()
    assert checkpoints.steps(directory) == [3, 4, 5, 6]
    assert train(directory, 7, keep=1).step == 7
    assert checkpoints.steps(directory) == [7]
    assert (directory / "checkpoints" / "²").is_dir()


def test_checkpoints_that_a_training_deletes_meanwhile_are_looked_for_again(
    whole, tmp_path, monkeypatch
):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    read, others = checkpoints.read_manifest, iter([lambda: train(directory, 7, keep=3)])

    def late(path):
        for other in others:
            other()
        return read(path)

    monkeypatch.setattr(checkpoints, "read_manifest", late)
    got = load_average(line(), directory, 3)  # of 4, 5 and 6 at first
    assert checkpoints.steps(directory) == [5, 6, 7]
    np.testing.assert_array_equal(kernel(got), kernel(load_average(line(), directory, 3)))


GARBAGE = [b"\xff\xfe garbage", b"", b"5", b"{}", b'["step"]', b'{"step": null}', b'{"step": 1']


def test_damaged_rows_are_said_and_all_others_kept(whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    file = directory / "metrics.jsonl"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([GARBAGE[0], *lines[:3], *GARBAGE[1:], *lines[3:], b'{"st']))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):  # warnings are errors
        train(directory, 6)
    told = r"metrics\.jsonl is damaged: .* line 1, 5, 6, 7, 8, 9, 10"
    with pytest.warns(DamagedCheckpointWarning, match=told):
        result = train(directory, 6)
    assert result.history == whole[0].history == [json.loads(each) for each in lines]
    assert file.read_bytes().splitlines() == lines


def test_two_threads_that_save_at_once_leave_no_hooks(tmp_path):
    first_is_in, second_starts, first_is_out = (threading.Event() for _ in range(3))

    def first():
        with arrays._orbax(tmp_path / "1"):
            first_is_in.set()
            second_starts.wait(9)
            time.sleep(0.1)
        first_is_out.set()

    def second():
        first_is_in.wait(9)
        second_starts.set()
        with arrays._orbax(tmp_path / "2"):
            assert first_is_out.wait(9)

    before = sys.unraisablehook, list(logging.getLogger("absl").filters)
    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.unraisablehook, logging.getLogger("absl").filters) == before


# A full disk


@pytest.mark.parametrize("bytes_left", [0, 700])
def test_a_full_disk_is_one_line_and_the_earlier_checkpoint_stays(bytes_left, whole, tmp_path):
    resource = pytest.importorskip("resource")
    directory = shutil.copytree(whole[1], tmp_path / "run")
    (directory / "metrics.jsonl").write_text("")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, limits[1]))
    try:
        with pytest.raises(CheckpointError) as told:
            train(directory, 7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(told.value).endswith(" cannot be read or written: File too large.")
    assert str(told.value).startswith(str(directory))
    assert checkpoints.steps(directory) == [3, 4, 5, 6]
    assert train(directory, 7).step == 7
    assert not list(directory.rglob("*partial*"))
