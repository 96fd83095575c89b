"""One command in several processes, which train one model: on this machine, or on many.

    python -m experiments language-model --processes 4
    python -m experiments language-model --coordinator HOST:PORT --process I --of N    on each host

Under Slurm, on TPU pods, in Kubernetes (JobSet) `jax.distributed.initialize()` finds the others by
itself: there `--coordinator auto` is enough. The first process alone prints and writes.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive

HEARTBEAT = 10  # seconds without a sign, after which a process counts as lost
GRACE = 6.0  # seconds that the others have to say so, before the runtime ends them


@dataclass(frozen=True)
class Processes(Options):
    """Several processes, one training."""

    processes: Positive[int] = 1
    """Processes on this machine."""
    coordinator: str | None = None
    """HOST:PORT of process 0, for several machines; auto: the manager of the cluster knows."""
    process: NonNegative[int] = 0
    """The number of this process, with --coordinator."""
    of: Positive[int] = 1
    """How many there are, with --coordinator."""

    def __post_init__(self):
        super().__post_init__()
        if self.processes > 1 and self.coordinator is not None:
            raise UserError("--processes starts them here, --coordinator joins others. Got both.")
        if self.process >= self.of:
            raise UserError(f"--process must be below --of, {self.of}. Got {self.process}.")


def run(function: str, options: Any) -> None:
    """Call a command's function: here, in processes that are started, or as one of several."""
    given = options.processes
    if given.processes > 1:
        launch(function, options)
        return
    if given.coordinator is not None:
        join(*(() if given.coordinator == "auto" else (given.coordinator, given.of, given.process)))
    call(function, options)


def launch(function: str, options: Any) -> None:
    """Start the processes on this machine, and wait for all; where one ends early, stop all."""
    count = options.processes.processes
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "experiments.harness.processes", address, str(count)]
    children = []
    with _signals_go_to(children):
        for index in range(count):
            child = subprocess.Popen([*command, str(index)], stdin=subprocess.PIPE)
            children.append(child)
            child.stdin.write(pickle.dumps((function, options)))
            child.stdin.close()
        _wait_for(children)


def _wait_for(children: Sequence[subprocess.Popen]) -> None:
    """Until all have ended; some time after one that failed the others are ended."""
    failed, since = None, 0.0
    while None in (codes := [child.poll() for child in children]):
        if failed is None:
            failed, since = (
                next((n for n, each in enumerate(codes) if each), None),
                time.monotonic(),
            )
        elif time.monotonic() - since > GRACE:
            for child in children:
                child.kill()
        time.sleep(0.1)
    failed = next((n for n, each in enumerate(codes) if each), None) if failed is None else failed
    if failed is None:
        return
    code = codes[failed]
    if code in (130, 143):  # the children have said that they were interrupted
        raise SystemExit(code)
    what = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    raise UserError(
        f"process {failed} of {len(children)} {what}, and the others were stopped. "
        "The same command with --resume goes on from the last checkpoint."
    )


@contextlib.contextmanager
def _signals_go_to(children: Sequence[subprocess.Popen]) -> Any:
    """Ctrl-C reaches the children by itself; a SIGTERM is passed on."""

    def passed_on(number: int, _: Any) -> None:
        for child in children:
            child.send_signal(number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, passed_on),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def join(*address: Any) -> None:
    """Become one of several processes; all but the first print nothing."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(*address, heartbeat_timeout_seconds=HEARTBEAT)
    if jax.process_index():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


def call(function: str, options: Any) -> None:
    """Call a command's function; who is left alone by the others says so."""
    from attn_jax.training import ProcessesLostError
    from experiments.harness.commands import found

    try:
        found(function)(options)
    except ProcessesLostError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(3)  # else the runtime waits for those that are gone


def main() -> int:
    """Be one of the processes that `launch` starts."""
    from experiments import cli

    function, options = pickle.load(sys.stdin.buffer)  # of the process that started this one
    address, count, index = sys.argv[1:]
    if options.smoke:
        from experiments.harness.runs import compile_quickly

        compile_quickly()
    join(address, int(count), int(index))
    return cli.answered(lambda: call(function, options))


if __name__ == "__main__":
    sys.exit(main())
