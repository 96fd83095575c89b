"""Where the state of a training and its batches live: a mesh of devices."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attn_jax.checks import require
from attn_jax.training import processes

Shard = Callable[[str, tuple[int, ...]], PartitionSpec]


def fsdp(axis: str = "batch", *, devices: int | None = None, least: int = 1024) -> Shard:
    """Each array of `least` numbers or more is divided over a mesh axis. (Rajbhandari et al. 2020.)

    Args:
        axis: The mesh axis over which batches are divided, too.
        devices: How many it has; None: all devices.
        least: Smaller arrays are whole on each device.

    The largest axis that the devices divide is divided; arrays without one are whole.

    >>> tuple(fsdp(devices=4)("kernel", (6, 512)))
    (None, 'batch')
    """

    def shard(name: str, shape: tuple[int, ...]) -> PartitionSpec:
        del name
        count = jax.device_count() if devices is None else devices
        fits = [n for n, size in enumerate(shape) if size % count == 0]
        if not fits or math.prod(shape) < least:
            return PartitionSpec()
        widest = max(fits, key=lambda n: (shape[n], n))
        return PartitionSpec(*[None] * widest, axis)

    return shard


def tensor(rules: Mapping[str, PartitionSpec]) -> Shard:
    """Each parameter as the first rule says whose regular expression is found in its name.

    A name is the path of the parameter, as "stack/blocks/forward/up/kernel"; those that no rule
    matches are whole on each device.

    >>> tuple(tensor({"kernel$": PartitionSpec(None, "model")})("out/kernel", (8, 8)))
    (None, 'model')
    """

    def shard(name: str, shape: tuple[int, ...]) -> PartitionSpec:
        del shape
        found = (spec for rule, spec in rules.items() if re.search(rule, name))
        return next(found, PartitionSpec())

    return shard


def mesh_or_all(mesh: Mesh | None) -> Mesh | None:
    """The mesh, or all devices along one axis, `batch`; None for the trivial case of one device."""
    if mesh is not None:
        return mesh
    devices = jax.devices()
    return Mesh(np.array(devices), ("batch",)) if len(devices) > 1 else None


def shardings(
    state: Any, mesh: Mesh | None, shard: Shard | None, optimizer: optax.GradientTransformation
) -> Any:
    """Where each leaf of the state lives: parameters as `shard` says, their moments beside them.

    None without a mesh; all other variables are whole on each device.
    """
    if mesh is None:
        require(shard is None, "shard", "be None on one device", shard)
        return None
    whole = NamedSharding(mesh, PartitionSpec())

    def of(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = PartitionSpec() if shard is None else shard(name, leaf.shape)
        _require_fits(spec, name, leaf, mesh)
        return NamedSharding(mesh, spec)

    def beside(moment, parameter, sharding):
        return sharding if np.shape(moment) == np.shape(parameter) else whole

    parameters = jax.tree_util.tree_map_with_path(of, state.parameters)
    everything = jax.tree.map(lambda _: whole, state)._replace(parameters=parameters)
    moments = optax.tree_map_params(
        optimizer,
        beside,
        state.optimizer,
        state.parameters,
        parameters,
        transform_non_params=lambda _: whole,
    )
    return everything._replace(optimizer=moments)


def _require_fits(spec: Any, name: str, leaf: Any, mesh: Mesh) -> None:
    rule = f"return a PartitionSpec of {tuple(mesh.shape.items())} whose parts divide {name}"
    told = f"{spec} for {name} {list(leaf.shape)}"
    require(isinstance(spec, PartitionSpec) and len(spec) <= leaf.ndim, "shard", rule, told)
    for size, part in zip(leaf.shape, spec, strict=False):
        names = () if part is None else part if isinstance(part, tuple) else (part,)
        known = all(each in mesh.shape for each in names)
        require(known and size % math.prod(mesh.shape[n] for n in names) == 0, "shard", rule, told)


def put(tree: Any, places: Any) -> Any:
    """The tree's arrays, where they live; the tree itself without places."""
    if places is None:
        return tree
    return (
        jax.tree.map(processes.put, tree, places)
        if processes.several()
        else jax.device_put(tree, places)
    )


def examples(batch: Any) -> int | None:
    """The size of the leading axis that all arrays of a batch share, None where they do not."""
    sizes = {np.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if np.ndim(leaf)}
    return sizes.pop() if len(sizes) == 1 else None


def place(batch: Any, mesh: Mesh | None) -> Any:
    """Spread a batch's examples over the mesh's first axis where it divides them, else copy them.

    Of several processes each makes the same batch and places its part, unless the batch is made of
    arrays of all their devices already. On one device the compiled step takes host arrays itself,
    five times faster than `device_put`.
    """
    if mesh is None:
        return batch
    size, first = examples(batch), mesh.axis_names[0]
    divides = size and size % mesh.shape[first] == 0
    spec = PartitionSpec(first) if divides else PartitionSpec()

    def sharding(leaf):
        return NamedSharding(mesh, spec if np.ndim(leaf) else PartitionSpec())

    return put(batch, jax.tree.map(sharding, batch))
