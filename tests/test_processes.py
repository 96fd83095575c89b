"""One training in several processes, over the loopback interface."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from attn_jax import training
from tests.test_training import Model, batches, train

ROOT = Path(__file__).parent.parent


def options(**changed):
    optimizer = optax.sgd(0.1, momentum=0.9)
    same = {"optimizer": optimizer, "evaluate": None, "metric": "loss", "checkpoint_every": 2}
    return {"steps": 6, "model": Model(width=16), "source": batches(16)} | same | changed


class Slow:
    """Batches that take a while, and from one of them on are announced."""

    def __init__(self, announced):
        self.inner, self.announced, self.given = batches(16), announced, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        if self.given == self.announced:
            print("announced", flush=True)
        if self.given >= self.announced:
            time.sleep(0.2)
        return next(self.inner)

    def get_state(self):
        return self.inner.get_state()

    def set_state(self, state):
        self.inner.set_state(state)


CODE = """
import sys

import jax

directory, index, count, port, how = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address = f"127.0.0.1:{port}"
jax.distributed.initialize(address, int(count), int(index), heartbeat_timeout_seconds=10)
from tests import test_processes

test_processes.run(directory, how)
"""


def run(directory, how):
    """In a process of its own: train, and print what came of it."""
    changed = {"shard": training.fsdp(least=16)} if "fsdp" in how else {}
    changed |= {"steps": 3} if "short" in how else {}
    if how == "slow":
        changed |= {"source": Slow(4), "steps": 10_000}
    try:
        fit = train(directory, **options(**changed))
    except training.ProcessesLostError as error:
        print(json.dumps({"lost": str(error)}), flush=True)
        os._exit(3)  # the runtime would wait for the one that is gone
    parameters = jax.tree.leaves(nnx.state(fit.model, nnx.Param))
    here = sum(each.addressable_shards[0].data.nbytes for each in parameters)
    found = {"stopped": fit.stopped, "step": fit.step, "devices": jax.device_count()}
    found |= {"losses": [row["loss"] for row in fit.history]}
    found |= {"share": here / sum(each.nbytes for each in parameters)}
    print(json.dumps(found), flush=True)


def start(directory, processes, devices, how="whole"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
    }
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                CODE,
                *map(str, (directory, index, processes, port, how)),
            ],
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for index in range(processes)
    ]


def results(children):
    outputs = [child.communicate(timeout=120) for child in children]
    for child, (_, errors) in zip(children, outputs, strict=True):
        assert child.returncode == 0, errors
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]


def saved(directory):
    """The losses, and the newest checkpoint's parameters."""
    model = training.load(Model(width=16), directory, which="last")
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    losses = [row["loss"] for row in training.read_history(directory)]
    return losses, [np.asarray(each) for each in leaves]


def assert_same(got, expected, **tolerance):
    np.testing.assert_allclose(got[0], expected[0], **tolerance)
    for one, other in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def test_processes_train_one_model(tmp_path):
    """Two of two devices, four of one: the same bits, those of one process but for rounding."""
    train(tmp_path / "one", **options())
    found = {}
    for processes, devices, how in ((2, 2, "whole"), (4, 1, "whole"), (2, 2, "fsdp")):
        directory = tmp_path / f"{processes} {how}"
        if how == "fsdp":  # interrupted and resumed
            results(start(directory, processes, devices, "short fsdp"))
        every = results(start(directory, processes, devices, how))
        assert all(each == every[0] for each in every)
        assert every[0]["devices"] == 4
        found[processes, how] = saved(directory)
        assert_same(found[processes, how], saved(tmp_path / "one"), rtol=2e-5, atol=2e-6)
        assert every[0]["share"] <= 0.3 if how == "fsdp" else every[0]["share"] == 1
    assert_same(found[4, "whole"], found[2, "whole"], rtol=0)


def announced(child):
    return next(line for line in child.stdout if "announced" in line)


def test_a_signal_to_one_stops_all_at_one_step(tmp_path):
    children = start(tmp_path, 2, 1, "slow")
    announced(children[1])
    children[1].send_signal(signal.SIGINT)
    every = results(children)
    assert every[0] == every[1]
    assert every[0]["stopped"] == "interrupted"
    newest = max(int(each.name) for each in (tmp_path / "checkpoints").iterdir())
    assert newest == every[0]["step"]


def test_who_is_left_alone_says_so(tmp_path):
    children = start(tmp_path, 2, 1, "slow")
    announced(children[0])
    children[1].kill()
    began = time.monotonic()
    printed, errors = children[0].communicate(timeout=60)
    children[1].communicate()
    assert time.monotonic() - began < 30
    assert children[0].returncode != 0
    told = printed.splitlines()[-1:]
    assert "process 0 of 2 cannot go on: another one has ended" in told[0], errors
