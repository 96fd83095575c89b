"""Training: any way of stopping and resuming gives the bits of a run that never stopped."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, PartitionSpec

from attn_jax import training
from attn_jax.training import (
    Batches,
    CheckpointError,
    NonFiniteLoss,
    checkpoints,
    fit,
    load,
    read_history,
)
from attn_jax.training.arrays import to_arrays

EXAMPLES, BATCH, STEPS = 23, 5, 17  # 4.6 batches an epoch: nearly every step is inside one


class Model(nnx.Module):
    """Dropout and running averages: state that is neither parameter nor optimizer."""

    def __init__(self, width=7, seed=0, dtype=jnp.float32):
        rngs = nnx.Rngs(seed)
        self.inner = nnx.Linear(3, width, rngs=rngs, param_dtype=dtype)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.outer = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.dropout(jnp.tanh(self.norm(self.inner(x)))))


def loss(model, batch, rng):
    noise = 0.1 * jax.random.normal(rng, batch["y"].shape, jnp.float32)
    error = model(batch["x"])[:, 0] - batch["y"] - noise
    return jnp.mean(error**2), {"mean_absolute_error": jnp.mean(jnp.abs(error))}


def data():
    x = np.random.default_rng(2).normal(size=(EXAMPLES, 3)).astype(np.float32)
    return {"x": x, "y": x[:, 0] * 2 - 1}


def batches(batch_size=BATCH):
    return Batches(data(), batch_size=batch_size, seed=3)


def evaluate(model):
    return {"error": jnp.mean((model(data()["x"])[:, 0] - data()["y"]) ** 2)}


def train(directory=None, *, source=None, model=None, **options):
    defaults = {"steps": STEPS, "log_every": 3, "evaluate": evaluate, "evaluate_every": 4}
    defaults |= {"metric": "error", "clip_norm": 1.0, "progress": False}
    model, source = model or Model(), source or batches()
    return fit(model, loss, source, directory=directory, **(defaults | options))


class Disturbed:
    """Batches that call `disturb` just before the batch with this number (from 1) is given."""

    def __init__(self, number, disturb, source=None):
        self.inner, self.number, self.disturb = source or batches(), number, disturb
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        if self.given == self.number:
            self.disturb()
        return next(self.inner)

    def get_state(self):
        return self.inner.get_state()

    def set_state(self, state):
        self.inner.set_state(state)


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def terminate():
    signal.raise_signal(signal.SIGTERM)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


def variables(model):
    return to_arrays(nnx.to_pure_dict(nnx.state(model)))


def untimed(history):
    return [{name: row[name] for name in row if name != "seconds"} for row in history]


def saved(directory):
    """All arrays of the newest checkpoint, and its record without the time."""
    import orbax.checkpoint as ocp

    manifest = checkpoints.read_manifest(checkpoints.latest(directory))
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        arguments = {name: ocp.args.StandardRestore() for name in manifest.items}
        items = checkpointer.restore(manifest.path, args=ocp.args.Composite(**arguments))
    return {name: items[name] for name in manifest.items}, manifest.record | {"seconds": None}


def assert_same_bits(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def assert_same_run(got, expected, directory=None, expected_directory=None):
    assert (got.step, got.stopped) == (expected.step, expected.stopped)
    assert (got.best, got.best_step) == (expected.best, expected.best_step)
    assert untimed(got.history) == untimed(expected.history)
    assert_same_bits(variables(got.model), variables(expected.model))
    if directory is not None:
        lines = (directory / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == got.history
        arrays, record = saved(directory)
        expected_arrays, expected_record = saved(expected_directory)
        assert_same_bits(arrays, expected_arrays)
        assert record == expected_record


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Most fits here compile the same step: two seconds of XLA each, unless it is remembered."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name in settings:
        jax.config.update(name, settings[name])
    compilation_cache.reset_cache()
    yield
    for name in before:
        jax.config.update(name, before[name])
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed, and its directory."""
    directory = tmp_path_factory.mktemp("whole")
    return train(directory, checkpoint_every=4), directory


# Stopping and resuming


@pytest.mark.parametrize(("number", "stop"), [(1, press_ctrl_c), (8, press_ctrl_c), (8, terminate)])
def test_interrupted_and_resumed_is_bit_exact(number, stop, whole, tmp_path):
    before = handlers()
    if stop is terminate:  # nobody else has a use for it: the program ends
        with pytest.raises(SystemExit) as exit_:
            train(tmp_path, source=Disturbed(number, stop))
        assert exit_.value.code == 143
    else:
        stopped = train(tmp_path, source=Disturbed(number, stop))
        assert (stopped.stopped, stopped.step) == ("interrupted", number)
    assert checkpoints.steps(tmp_path)[-1] == number
    assert handlers() == before
    assert_same_run(train(tmp_path), whole[0], tmp_path, whole[1])


def test_keyboard_interrupt_inside_an_evaluation_repeats_it_on_resume(whole, tmp_path):
    def interrupted(model):
        raise KeyboardInterrupt

    stopped = train(tmp_path, evaluate=interrupted)
    assert (stopped.stopped, stopped.step) == ("interrupted", 4)
    assert_same_run(train(tmp_path), whole[0], tmp_path, whole[1])


@pytest.mark.parametrize("sent", [*itertools.product((press_ctrl_c, terminate), repeat=2)])
def test_second_signal_aborts_at_once(sent, tmp_path):
    def twice(model):
        for send in sent:
            send()
        pytest.fail("still here")

    before = handlers()
    with pytest.raises(SystemExit if sent[-1] is terminate else KeyboardInterrupt) as stop:
        train(tmp_path, evaluate=twice)
    assert getattr(stop.value, "code", 143) == 143
    assert handlers() == before
    assert checkpoints.latest(tmp_path) is None


def test_a_signal_in_the_last_evaluation_counts(tmp_path):
    def late(model):
        press_ctrl_c()
        return {"error": 1.0}

    assert train(tmp_path, steps=2, evaluate=late).stopped == "interrupted"
    assert train(tmp_path, steps=2).stopped == "steps"


def test_a_programs_own_handler_is_called_when_all_is_saved(tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(checkpoints.steps(tmp_path)))
    try:
        stopped = train(tmp_path, source=Disturbed(2, terminate)).stopped
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (stopped, seen) == ("interrupted", [[2]])


@pytest.mark.parametrize("stop", [press_ctrl_c, terminate])
def test_a_signal_in_a_training_inside_another_stops_both(stop, tmp_path):
    """As where an evaluation trains a probe."""
    before, inner = handlers(), []

    def probe(model):
        inner.append(train(tmp_path / "inner", source=Disturbed(2, stop)))
        return {"error": 1.0}

    def both():
        return train(tmp_path / "outer", evaluate=probe)

    if stop is terminate:
        with pytest.raises(SystemExit, match="143"):
            both()
    else:
        assert both().stopped == "interrupted"
    assert [(each.stopped, each.step) for each in inner] == [("interrupted", 2)]
    assert checkpoints.steps(tmp_path / "outer") == [4]
    assert handlers() == before


def test_an_ignored_signal_stays_ignored_and_a_thread_installs_nothing(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert train(source=Disturbed(1, terminate), steps=2, evaluate_every=2).stopped == "steps"
    finally:
        signal.signal(signal.SIGTERM, before)
    seen = []
    look = Disturbed(1, lambda: seen.append(handlers()))
    thread = threading.Thread(target=lambda: seen.append(train(source=look, steps=1).step))
    thread.start()
    thread.join()
    assert seen == [handlers(), 1]


def test_killed_while_saving_and_resumed_is_bit_exact(whole, tmp_path):
    killed = run_child("killed_while_saving", tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["12.partial", "4", "8"]
    rows = read_history(tmp_path)
    assert rows == list(map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert read_history(tmp_path / "nothing") == []
    assert rows[-1]["step"] == 12  # newer than the checkpoint: to be written again, once
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 13, "lo')  # a row that was cut short
    assert_same_run(train(tmp_path), whole[0], tmp_path, whole[1])


def killed_while_saving(directory):
    """Killed in the middle of the third checkpoint, its arrays written but not its manifest."""
    write, written = checkpoints.write_arrays, []

    def write_and_die(path, items):
        write(path, items)
        written.append(path)
        if len(written) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.write_arrays = write_and_die
    train(Path(directory), checkpoint_every=4)


def test_resume_after_the_end_does_nothing_and_more_steps_go_on(whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    assert_same_run(train(directory), whole[0], directory, whole[1])
    longer = train(directory, steps=STEPS + 2)
    assert longer.step == STEPS + 2
    assert [row["step"] for row in longer.history[-3:]] == [STEPS, STEPS + 1, STEPS + 2]


def test_an_iterator_of_grain_resumes_bit_exactly(tmp_path):
    import grain

    def source():
        rows = [jax.tree.map(lambda array, i=i: array[i], data()) for i in range(EXAMPLES)]
        dataset = grain.MapDataset.source(rows).shuffle(seed=5).repeat().batch(BATCH)
        return dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))

    class Stopping:
        def __iter__(self):
            return Disturbed(6, press_ctrl_c, iter(source()))

    assert train(tmp_path / "cut", source=Stopping()).stopped == "interrupted"
    resumed = train(tmp_path / "cut", source=source())
    whole = train(tmp_path / "whole", source=source())
    assert_same_run(resumed, whole, tmp_path / "cut", tmp_path / "whole")


# Determinism


def test_evaluation_does_not_disturb_training_and_dropout_is_off_in_it(whole):
    def reckless(model):
        assert model.dropout.deterministic
        assert model.norm.use_running_average
        error = evaluate(model)
        assert evaluate(model) == error
        model.train()
        evaluate(model)  # draws dropout masks, moves running averages
        model.outer.kernel[...] = jnp.zeros((7, 1), jnp.float32)
        return error

    assert_same_run(train(evaluate=reckless), whole[0])


def test_another_seed_is_another_run_and_the_model_passed_in_is_left_alone(whole):
    model, kept = Model(), []
    other = train(model=model, seed=1, evaluate=lambda m: kept.append(m) or {"error": 0.0})
    assert other.history[0]["loss"] != whole[0].history[0]["loss"]
    assert_same_bits(variables(model), variables(Model()))
    assert len({variables(m)["outer/kernel"].tobytes() for m in kept}) == 5  # none was donated


def test_each_step_draws_its_own_numbers():
    def drawing(model, batch, rng):
        return line_loss(model, batch, rng), {"draw": jax.random.uniform(rng)}

    _, result = fit_line(steps=3, loss=drawing, log_every=1)
    assert len({row["draw"] for row in result.history}) == 3


# Best model and early stopping


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best_model_and_patience_survive_a_resume(mode, tmp_path):
    sign = 1 if mode == "min" else -1
    script = iter([3.0, 2.0, float("nan"), 1.0, 1.0, float("nan"), 5.0, 0.0])
    seen = []

    def scripted(model):
        seen.append(variables(model))
        return {"error": sign * next(script)}

    options = {"evaluate": scripted, "evaluate_every": 2, "mode": mode, "patience": 3}
    source = Disturbed(11, press_ctrl_c)  # after the evaluation of step 10, one of three stale
    assert train(tmp_path, source=source, **options).stopped == "interrupted"
    result = train(tmp_path, **options)
    assert (result.stopped, result.step) == ("patience", 14)
    assert (result.best, result.best_step) == (sign * 1.0, 8)
    assert result.history[3]["evaluation"] == {"error": None}
    assert_same_bits(variables(load(Model(seed=9), tmp_path)), seen[3])
    last = load(Model(seed=9), tmp_path, which="last")
    assert_same_bits(variables(last), variables(result.model))
    again = train(tmp_path, restore_best=True, **options)
    assert (again.stopped, again.step) == ("patience", 14)
    assert_same_bits(variables(again.model), seen[3])


def test_without_evaluate_the_training_loss_decides_in_memory():
    with pytest.raises(ValueError, match="restore_best must be False without evaluate"):
        train(evaluate=None, evaluate_every=None, metric="loss", restore_best=True)
    result = train(evaluate=None, evaluate_every=None, metric="loss")
    losses = {row["step"]: row["loss"] for row in result.history}
    assert list(losses) == [3, 6, 9, 12, 15, 17]
    assert losses[result.best_step] == result.best == min(losses.values())


def test_rows_are_means_over_the_steps_since_the_row_before(whole):
    single = train(log_every=1, evaluate_every=4)
    losses = [row["loss"] for row in single.history]
    ends = [0, *(row["step"] for row in whole[0].history)]
    assert ends == [0, 3, 4, 6, 8, 9, 12, 15, 16, 17]
    means = [np.mean(losses[a:b]) for a, b in itertools.pairwise(ends)]
    np.testing.assert_allclose([row["loss"] for row in whole[0].history], means, rtol=1e-12)
    evaluated = [row["step"] for row in whole[0].history if "evaluation" in row]
    assert evaluated == [4, 8, 12, 16, 17]


# Numbers that are not finite


class Poisoned(Disturbed):
    """Batches of which one, counted from 1, holds an inf."""

    def __next__(self):
        batch = super().__next__()
        if self.given == self.number:
            batch = batch | {"y": np.full_like(batch["y"], np.inf)}
        return batch


def test_non_finite_loss_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path):
    source = Poisoned(7, lambda: None)
    with pytest.raises(NonFiniteLoss, match=r"loss is inf at step 7\. .*checkpoints/6\.") as error:
        train(tmp_path, source=source, checkpoint_every=3, log_every=100, evaluate_every=100)
    assert error.value.step == 7
    assert error.value.checkpoint == tmp_path / "checkpoints" / "6"
    assert checkpoints.steps(tmp_path) == [3, 6]
    good = train(steps=6)
    model = load(Model(), tmp_path, which="last")
    assert_same_bits(variables(model), variables(good.model))


@pytest.mark.parametrize("fault", ["gradient", "update"])
def test_non_finite_gradient_or_update_under_a_finite_loss_stops_too(fault):
    def steep(model, batch, rng):
        value = line_loss(model, batch, rng)
        return value + (jnp.sqrt(model.bias[0]) if fault == "gradient" else 0.0)  # bias is 0

    # The sign of an infinite gradient is finite; its running average is not.
    optimizer = optax.lion(1e-3) if fault == "gradient" else optax.sgd(float("inf"))
    with pytest.raises(NonFiniteLoss, match=r"step 1, but its gradient .* no checkpoint"):
        fit_line(steps=1, loss=steep, optimizer=optimizer)


# Checkpoints that must be refused


def damage_largest(path):
    file = max(path.rglob("d/*"), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-7])


def damage_one_byte(path):
    file = next(file for file in sorted(path.rglob("d/*")) if file.stat().st_size > 50)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def damage_manifest(path):
    file = path / checkpoints.MANIFEST
    file.write_bytes(file.read_bytes()[:-7])


def damage_by_removal(path):
    shutil.rmtree(path / "model")


def damage_into_foreign(path):
    shutil.rmtree(path)
    path.mkdir()
    (path / "weights.npz").write_bytes(b"something else")


def damage_into_file(path):
    shutil.rmtree(path)
    path.write_bytes(b"something else")


DAMAGES = {
    damage_largest: "is damaged: .* has size",
    damage_one_byte: "is damaged: .* has size",
    damage_manifest: "is not a checkpoint",
    damage_by_removal: "is damaged: .* is missing",
    damage_into_foreign: "is not a checkpoint",
    damage_into_file: "is not a checkpoint",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_and_foreign_checkpoints_are_refused(damage, whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    path = checkpoints.latest(directory)
    damage(path)
    told = f"{path} {DAMAGES[damage]}"
    with pytest.raises(CheckpointError, match=told):
        train(directory)
    with pytest.raises(CheckpointError, match=told):
        load(Model(), directory)


def test_checkpoints_of_another_run_are_refused(whole, tmp_path):
    directory = shutil.copytree(whole[1], tmp_path / "run")
    adam = "chain|with another optimizer"
    cases = {
        r"inner/bias is float32\[7\] there, float32\[8\] here": {"model": Model(width=8)},
        r"inner/bias is float32\[7\] there, float16": {"model": Model(dtype=jnp.float16)},
        r"does not fit this training: .* there, nothing here": {"optimizer": optax.sgd(1e-3)},
        r"is nothing there, .* here": {"optimizer": optax.adam(optax.constant_schedule(1e-3))},
        f"{adam}": {"optimizer": optax.adamw(1e-3)},
        "run with seed=0, not 1": {"seed": 1},
        "run with mode='min', not 'max'": {"mode": "max"},
        "run with metric='error', not 'loss'": {"metric": "loss"},
    }
    for told, options in cases.items():
        with pytest.raises(CheckpointError, match=told):
            train(directory, **options)
    with pytest.raises(ValueError, match="state must be a position in batches of"):
        train(directory, source=batches(4))
    with pytest.raises(CheckpointError, match=r"inner/bias is float32\[7\] there, float32\[8\]"):
        load(Model(width=8), directory)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        load(Model(), tmp_path)
    assert_same_run(train(directory), whole[0], directory, whole[1])


def test_the_generator_and_the_position_are_part_of_a_checkpoint(whole):
    arrays, record = saved(whole[1])
    assert_same_bits(arrays["training"]["rng"], jax.random.key_data(jax.random.key(0)))
    assert record["batches"]["position"] == arrays["training"]["step"] == STEPS


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    train(tmp_path, checkpoint_every=4, keep=3)
    assert checkpoints.steps(tmp_path) == [12, 16, 17]


def test_arrays_of_every_kind_survive_a_checkpoint(tmp_path):
    tree = {
        "a/b": [jnp.arange(3, dtype=jnp.bfloat16), jnp.zeros((0, 5))],
        "c": (jnp.array(True), jnp.float32(0.1), jax.random.split(jax.random.key(5), 2)),
        "d.e": {11: jax.random.key(7, impl="rbg"), 2: jnp.asarray(0.1)},
    }
    checkpoints.save(tmp_path, {"model": tree}, {"step": 3}, keep=1)
    manifest = checkpoints.read_manifest(checkpoints.latest(tmp_path))
    restored = checkpoints.restore(manifest, "model", tree)
    assert_same_bits(to_arrays(restored), to_arrays(tree))
    assert jax.random.key_impl(restored["d.e"][11]) == "rbg"


# Devices and processes


def test_eight_devices_give_the_result_of_one():
    child = run_child("print_fits", devices=8)
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)
    assert report["devices"] == 8
    assert report["early"] == []
    for size in (16, 11):
        one = variables(fitted(size).model)
        assert one.keys() == report[str(size)].keys()
        for name in one:
            got = np.asarray(report[str(size)][name])
            np.testing.assert_allclose(got, one[name], rtol=2e-5, atol=2e-6, err_msg=name)
    assert report["sharded"] == {"16": [2, 3], "11": [11, 3]}


def fitted(size, directory=None, **options):
    # Adam would blow rounding up: the gradient of a bias before a norm is nothing else.
    optimizer = optax.sgd(0.1, momentum=0.9)
    defaults = {"optimizer": optimizer, "steps": 3, "evaluate": None, "metric": "loss"}
    return train(directory, source=batches(size), **(defaults | options))


def test_a_divided_state_is_the_same_and_takes_its_part_of_memory(tmp_path):
    child = run_child("print_divided_fits", tmp_path, devices=8)
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)
    one = variables(fitted(16, model=Model(width=16)).model)
    for way in ("fsdp", "tensor"):
        for name in one:
            got = np.asarray(report[way]["arrays"][name])
            np.testing.assert_allclose(got, one[name], rtol=2e-5, atol=2e-6, err_msg=name)
    assert report["fsdp"]["kernel"] == [3, 2]
    assert report["tensor"]["kernel"] == [3, 4]
    assert report["fsdp"]["share"] <= 0.3
    everywhere = {"inner/kernel", "inner/bias", "norm/scale", "norm/bias"}
    assert everywhere.issubset(report["names"])


def print_divided_fits(directory):
    """On eight devices, interrupted and resumed: results, and which part of them a device has."""
    names, report = [], {}

    def named(name, shape):
        names.append(name)
        return training.fsdp(least=16)(name, shape)

    mesh = jax.make_mesh((2, 4), ("batch", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    parts = {"inner/kernel": PartitionSpec(None, "model")}
    ways = {
        "fsdp": {"shard": named},
        "tensor": {"mesh": mesh, "shard": training.tensor(parts)},
    }
    for way, how in ways.items():
        for steps in (2, 3):
            how |= {"model": Model(width=16), "steps": steps, "checkpoint_every": 1}
            model = fitted(16, Path(directory) / way, **how).model
        arrays = jax.tree.leaves(nnx.state(model, nnx.Param))
        here = sum(each.addressable_shards[0].data.nbytes for each in arrays)
        report[way] = {
            "arrays": {name: array.tolist() for name, array in variables(model).items()},
            "kernel": model.inner.kernel[...].addressable_shards[0].data.shape,
            "share": here / sum(each.nbytes for each in arrays),
        }
    print(json.dumps(report | {"names": names}))


@pytest.mark.parametrize("spec", [PartitionSpec("model"), PartitionSpec(None, None, "batch"), "x"])
def test_parts_that_do_not_fit_are_named(spec):
    mesh = Mesh(np.array(jax.devices()[:1]), ("batch",))
    with pytest.raises(ValueError, match=r"^shard must return a PartitionSpec of .* divide inner/"):
        fitted(16, mesh=mesh, shard=lambda name, shape: spec)
    with pytest.raises(ValueError, match=r"^shard must be None on one device"):
        fitted(16, shard=training.fsdp())


def print_fits():
    """On eight devices: the result, each device's share of a batch, and what import pulled in."""
    from attn_jax.training import sharding

    slow = {"orbax.checkpoint", "grain", "rich.progress"}
    report = {"devices": jax.device_count(), "early": sorted(slow & sys.modules.keys())}
    report["sharded"] = {}
    for size in (16, 11):
        arrays = variables(fitted(size).model)
        report[str(size)] = {name: array.tolist() for name, array in arrays.items()}
        placed = sharding.place(next(batches(size)), sharding.mesh_or_all(None))
        report["sharded"][str(size)] = placed["x"].addressable_shards[0].data.shape
    print(json.dumps(report))


def run_child(function, *arguments, devices=1):
    """Call a function of this module in a process of its own, under this process's settings."""
    here = Path(__file__).parent
    code = (
        "import jax\n"
        f"jax.config.update('jax_enable_x64', {jax.config.jax_enable_x64})\n"
        f"import test_training\ntest_training.{function}(*{[str(a) for a in arguments]})"
    )
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "PYTHONPATH": f"{here.parent}:{here}",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
        f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


# Options


def line_loss(model, batch, rng):
    return jnp.mean((model(batch["x"])[:, 0] - batch["y"]) ** 2)


def fit_line(*, loss=line_loss, **options):
    line = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    return line, fit(line, loss, Batches(data()), progress=False, **options)


def test_gradients_are_clipped_and_schedules_followed():
    def moved(**options):
        line, result = fit_line(steps=1, **options)
        new, old = nnx.state(result.model, nnx.Param), nnx.state(line, nnx.Param)
        return float(optax.tree.norm(jax.tree.map(jnp.subtract, new, old)))

    assert moved(optimizer=optax.sgd(1.0), clip_norm=0.01) == pytest.approx(0.01, rel=1e-5)
    assert moved(optimizer=optax.sgd(1.0)) > 0.1
    assert moved(optimizer=optax.piecewise_constant_schedule(0.0, {5: 1.0})) == 0.0


def test_an_optimizer_that_searches_along_a_line_gets_what_it_needs():
    _, result = fit_line(steps=9, optimizer=optax.lbfgs(), log_every=3)
    assert result.best < 1e-6 * result.history[0]["loss"]


MISTAKES = {
    "steps must be at least 1. Got 0.": {"steps": 0},
    "patience must be at least 1. Got 0.": {"patience": 0},
    "clip_norm must be positive. Got 0.0.": {"clip_norm": 0.0},
    "mode must be 'min' or 'max'. Got least.": {"mode": "least"},
    "batches must last for steps=17. Got 0 batches (repeat them).": {"source": iter([])},
    "metric must be one of the evaluation's entries ['error']. Got bleu.": {"metric": "bleu"},
}


@pytest.mark.parametrize("told", MISTAKES)
def test_mistakes_are_answered_with_the_argument_the_rule_and_what_came(told, without_shape_hook):
    with pytest.raises(ValueError, match="^" + told.translate(ESCAPES) + "$"):
        train(**MISTAKES[told])


ESCAPES = str.maketrans({character: "\\" + character for character in "[]()."})


def test_directories_that_cannot_be_used_are_refused(whole, tmp_path):
    with pytest.raises(ValueError, match="batches must have get_state and set_state"):
        train(tmp_path, source=iter([data()]))
    with pytest.raises(ValueError, match="directory must hold no checkpoint when resume=False"):
        train(whole[1], resume=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="directory must be a folder"):
        train(tmp_path / "file")


@pytest.mark.parametrize("result", [jnp.ones((2,)), (jnp.ones(()), {"a": jnp.ones((2,))})])
def test_a_loss_of_the_wrong_kind_is_refused(result):
    with pytest.raises(ValueError, match="loss must return one"):
        fit(Model(), lambda model, batch, rng: result, batches(), steps=1, progress=False)


# Data


def test_each_epoch_holds_each_example_once_in_another_order():
    source = Batches(np.arange(EXAMPLES), batch_size=BATCH, seed=3)
    order = np.concatenate([next(source) for _ in range(2 * EXAMPLES)])
    epochs = order.reshape(-1, EXAMPLES)
    assert (np.sort(epochs, axis=1) == np.arange(EXAMPLES)).all()
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    in_order = Batches(np.arange(EXAMPLES), batch_size=BATCH, shuffle=False)
    assert np.concatenate([next(in_order) for _ in range(5)]).tolist() == [*range(23), 0, 1]


def test_the_position_is_exact_wherever_it_is_taken():
    source = batches()
    for _ in range(12):
        state = json.loads(json.dumps(source.get_state()))
        expected = next(source)
        other = batches()
        other.set_state(state)
        assert_same_bits(next(other), expected)


def test_full_batches_are_the_same_arrays_on_the_device_each_time():
    source = Batches(data())
    first = next(source)
    assert next(source) is first
    assert isinstance(first["x"], jax.Array)
    assert_same_bits(first, data())


@pytest.mark.parametrize(
    ("arrays", "batch_size", "told"),
    [
        ({}, None, "arrays must be a pytree"),
        ([np.ones(3), np.ones(2)], None, "arrays must be a pytree"),
        (np.ones((0, 3)), None, "arrays must be a pytree"),
        (np.ones(3), 4, "batch_size must be 1 to 3, the number of examples. Got 4"),
        (np.ones(3), 0, "batch_size must be 1 to 3"),
    ],
)
def test_batches_of_nothing_are_refused(arrays, batch_size, told):
    with pytest.raises(ValueError, match=told):
        Batches(arrays, batch_size=batch_size)


# Progress


def test_progress_prints_plain_lines_where_no_terminal_is(capsys):
    train(progress=True)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out
    lines = out.splitlines()
    assert lines[0] == "step 0/17  compiling"
    assert lines[1].startswith("step 3/17  loss ")
    assert lines[-1].startswith("step 17/17  loss ")
    for words in ("steps/s", "examples/s", "evaluation error", "0:00:00 left"):
        assert words in lines[-1]
    assert len(lines) == 3  # now and then: not every row of a run this short


def test_progress_draws_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    train(progress=True, source=Disturbed(9, press_ctrl_c))
    out = capsys.readouterr().out
    assert "\x1b" in out
    assert "9/17" in out
    assert "loss" in out
    assert "stopped at step 9: interrupted" in out


def test_no_progress_is_silent(capsys):
    seen = []
    result = train(progress=False, on_row=seen.append)
    assert capsys.readouterr() == ("", "")
    assert seen == result.history


def test_public_names():
    assert set(training.__all__) <= set(dir(training))
