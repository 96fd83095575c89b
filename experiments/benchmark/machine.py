"""The machine: which one it is, and what it can do at best, by measurement in the same run."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.harness import runs
from experiments.harness.errors import UserError

PEERS = ("torch", "entmax", "pykeops", "tokamax")


def find(kind: str | None) -> jax.Device:
    """Return the first device of a kind (cpu, gpu, tpu), or JAX's default."""
    try:
        return jax.devices(kind)[0]
    except RuntimeError as error:
        here = ", ".join(sorted({each.platform for each in jax.devices()}))
        raise UserError(f"--device {kind} needs one that JAX finds. Got {here} only.") from error


def identity(device: jax.Device) -> dict[str, Any]:
    """Return what has to stay the same while a run is resumed: the device and the versions."""
    return {
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "processor": processor(),
            "cores": cores(),
        },
        "versions": runs.environment()["versions"] | {name: runs.version(name) for name in PEERS},
    }


def provenance() -> dict[str, Any]:
    """Return the date, the commit (null: not a checkout), and how busy the machine was before."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "load_average": os.getloadavg()[0],
    }


def commit() -> str | None:
    """Return the checkout's commit, "-dirty" behind it where files differ from it."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def cores() -> int:
    """Return how many cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def processor() -> str:
    """Return the CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def limits(device: jax.Device, dtypes: Iterable[str], *, smoke: bool) -> Mapping[str, Any]:
    """Return the rates that no attention can exceed: of matrix products, and of memory."""
    largest = 256 if smoke else {"cpu": 4096}.get(device.platform, 16_384)
    sizes = [size for size in (256, 1024, 2048, 4096, 8192, 16_384) if size <= largest]
    numbers = 2**16 if smoke else 2**26
    return {
        "matmul_gflop_per_second": {
            dtype: max(matmul_rate(device, dtype, size) for size in sizes) for dtype in dtypes
        },
        "memory_gb_per_second": memory_rate(device, numbers),
    }


def matmul_rate(device: jax.Device, dtype: str, size: int) -> float:
    """Return the GFLOP/s of the product of two square matrices."""
    matrix = jax.device_put(jnp.ones((size, size), dtype), device)
    return 2 * size**3 / 1e9 / fastest(lambda x: x @ x, matrix)


def memory_rate(device: jax.Device, numbers: int) -> float:
    """Return the GB/s of reading and writing an array in place, larger than the caches.

    New memory has to be mapped page by page, which takes longer than filling it.
    """
    array = jax.device_put(jnp.ones(numbers, jnp.float32), device)
    moved = 2 * array.nbytes / 1e9
    return moved / fastest(lambda x: x + 1, array, in_place=True)


def fastest(function: Callable[[Any], Any], argument: Any, *, in_place: bool = False) -> float:
    """Return the seconds of the fastest of five calls; `in_place` writes over the argument."""
    compiled = jax.jit(function, donate_argnums=0 if in_place else ()).lower(argument).compile()
    seconds = []
    for _ in range(1 + 5):
        begin = time.perf_counter()
        result = jax.block_until_ready(compiled(argument))
        seconds.append(time.perf_counter() - begin)
        argument = result if in_place else argument
    return min(seconds[1:])
