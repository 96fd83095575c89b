"""Memory: what a call takes, what there is, and how running out of it looks."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
COMPILED, ALLOCATOR, RESIDENT = "compiled", "allocator", "resident"
CGROUPS = (  # limit, usage, statistics
    tuple(f"/sys/fs/cgroup/memory.{name}" for name in ("max", "current", "stat")),
    tuple(
        f"/sys/fs/cgroup/memory/memory.{name}"
        for name in ("limit_in_bytes", "usage_in_bytes", "stat")
    ),
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one call. `peak` is what it takes beyond its arguments, and `source` who says so.

    "compiled" is XLA's own plan, peak = temporary + outputs; "allocator" is the device's allocator;
    "resident" is the growth of the process's resident memory during a call, which overlooks
    whatever fits into memory that an earlier call left free.
    """

    peak: int
    source: str
    temporary: int | None = None
    arguments: int | None = None
    outputs: int | None = None


class OutOfMemory(MemoryError):  # noqa: N818 - as Python's own
    """A program is not run, because it needs more than there is."""

    def __init__(self, needed: int):
        super().__init__(f"needs {needed / GIB:.1f} GiB")


def is_exhausted(error: BaseException) -> bool:
    """Say whether an error of any library means that memory ran out."""
    words = ("resource_exhausted", "out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(each in str(error).lower() for each in words)


def available_on_host() -> int | None:
    """Return the bytes that this process may still take; None where Linux does not say."""
    known = _numbers("/proc/meminfo").get("MemAvailable:")
    if known is None:
        return None
    free = [known * 1024]
    for limit, usage, statistics in CGROUPS:
        try:
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):  # no such group, or no limit ("max")
            continue
        free.append(left + _numbers(statistics).get("inactive_file", 0))  # an idle page cache
    return min(free)


def resident_growth(call: Callable[[], Any]) -> int | None:
    """Return by how many bytes the resident memory grew, at its peak, during a call.

    None where the kernel does not keep a peak that can be reset (Linux does).
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that it counts again
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return None
    before = _numbers("/proc/self/status")["VmRSS:"]
    result = call()
    peak = _numbers("/proc/self/status")["VmHWM:"]
    del result  # outputs count
    return max(peak - before, 0) * 1024


def _numbers(path: str) -> dict[str, int]:
    """Return a file of lines "name number" as a dictionary, empty where there is none."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
