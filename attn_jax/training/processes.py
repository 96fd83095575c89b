"""One training in several processes, each with some of the devices (`jax.distributed`).

All processes make the same steps. The first one alone writes files and prints. What one of them
notices, a signal or that a checkpoint is due, goes into the next step and comes back to all.
"""

import itertools
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attn_jax.jax_versions import wait_for_processes

SECONDS = 300.0  # that one waits for the others, who may write a checkpoint
_waits = itertools.count()


class ProcessesLostError(RuntimeError):
    """Another process of this training has ended, or could not be reached."""


def several() -> bool:
    """Whether there are several processes."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process writes and prints."""
    return jax.process_index() == 0


def wait(what: str) -> None:
    """Wait until all processes are here, at most `SECONDS`."""
    if not several():
        return
    try:
        wait_for_processes(f"attn_jax.training {next(_waits)}", SECONDS)
    except Exception as error:  # the runtime raises whatever its layers raise
        raise lost(what) from error


def lost(what: str) -> ProcessesLostError:
    """The error of a process that others have left alone."""
    count, index = jax.process_count(), jax.process_index()
    told = f"process {index} of {count} cannot go on: another one has ended or cannot be reached"
    return ProcessesLostError(f"{told} ({what}).")


def is_loss(error: Exception) -> bool:
    """Whether an error of the runtime says that another process is gone."""
    signs = "gloo|connection|peer|heartbeat|unavailable|deadline|timed out"
    return several() and re.search(signs, str(error), re.IGNORECASE) is not None


def whole(leaf: Any) -> Any:
    """An array on the host, though no process has all of it; called by all of them."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(leaf, tiled=True)


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array that all processes have on the host, on the devices of them all."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding)
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        data = put(np.asarray(jax.random.key_data(leaf)), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def flags(mesh: Mesh, *noticed: bool) -> jax.Array:
    """What this process has noticed, for a step whose maximum over all devices comes back."""
    own = np.array([noticed], np.int32)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.make_array_from_callback((mesh.size, len(noticed)), sharding, lambda index: own)


def from_first(results: dict[str, Any]) -> dict[str, Any]:
    """The first process's numbers, for all; None is a number that is not finite."""
    if not several():
        return results
    from jax.experimental import multihost_utils

    numbers = np.array([np.nan if each is None else each for each in results.values()], float)
    numbers = multihost_utils.broadcast_one_to_all(numbers).tolist()
    pairs = zip(results, numbers, strict=True)
    return {name: None if np.isnan(each) else each for name, each in pairs}
