"""Checkpoints: orbax arrays plus one manifest, complete and verified or refused.

    <directory>/checkpoints/<step>/manifest.json      what is there, and a checksum of every file
    <directory>/checkpoints/<step>/model, training, best      orbax items

A checkpoint is written beside its place and renamed into it when complete, so a folder whose name
is a number is a whole checkpoint, whenever the process was killed. The manifest is checked before
orbax opens anything: a file that was cut short is named, as is any array that does not fit.
"""

import dataclasses
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

FORMAT = "attn_jax training 1"
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or belongs to another model, optimizer or run."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself."""

    path: Path
    record: dict[str, Any]
    items: dict[str, dict[str, Any]]


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Name → array on the host. Typed PRNG keys become their data: orbax cannot restore them."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = {_name(path): _raw(leaf) for path, leaf in paths}
    assert len(arrays) == len(paths), "two leaves of one name"
    return {name: np.asarray(array) for name, array in jax.device_get(arrays).items()}


def from_arrays(template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The tree that `to_arrays` took apart, with the template's structure and kinds of keys."""

    def leaf(path, like):
        array = jax.numpy.asarray(arrays[_name(path)])
        return (
            jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
            if _is_key(like)
            else array
        )

    return jax.tree_util.tree_map_with_path(leaf, template)


def steps(directory: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folder = directory / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint."""
    found = steps(directory)
    return directory / "checkpoints" / str(found[-1]) if found else None


def save(directory: Path, items: dict[str, Any], record: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of `record["step"]`, then delete all but the `keep` newest."""
    folder = directory / "checkpoints"
    remove_partial(directory)
    path = folder / str(record["step"])
    partial = path.with_suffix(".partial")
    arrays = {name: to_arrays(tree) for name, tree in items.items()}
    _write_arrays(partial, arrays)
    manifest = {
        "format": FORMAT,
        "record": record,
        "items": {name: _signature(item) for name, item in arrays.items()},
        "files": {name: _checksum(partial / name) for name in _files(partial)},
    }
    (partial / MANIFEST).write_text(json.dumps(manifest))
    partial.rename(path)
    for step in steps(directory)[:-keep]:
        (folder / str(step)).rename(folder / f"{step}.partial")
    remove_partial(directory)
    return path


def remove_partial(directory: Path) -> None:
    """Delete what a killed process left half-written or half-deleted."""
    for path in (directory / "checkpoints").glob("*.partial*"):
        shutil.rmtree(path)


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and hold every file against it."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        assert manifest["format"] == FORMAT
        record, items, files = manifest["record"], manifest["items"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of attn_jax.training, or its {MANIFEST} is damaged."
        ) from error
    for name, checksum in files.items():
        if not (path / name).is_file():
            raise CheckpointError(f"{path} is damaged: {name} is missing.")
        if (found := _checksum(path / name)) != checksum:
            raise CheckpointError(
                f"{path} is damaged: {name} has size and checksum {found}, written were {checksum}."
            )
    return Manifest(path, record, items)


def restore(manifest: Manifest, item: str, template: Any) -> Any:
    """One item of a checkpoint, refused unless it has the template's names, shapes and dtypes."""
    import orbax.checkpoint as ocp  # 0.4 s, and not every use of this module needs it

    expected = _signature(to_arrays(template))
    found = manifest.items[item]
    if differences := _differences(expected, found):
        raise CheckpointError(f"{manifest.path} does not fit this {item}: {differences}.")
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in expected.items()}
    stored = {name: array for name, array in arrays.items() if array.size}
    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(stored)})
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(manifest.path, args=args)[item]
    except Exception as error:  # orbax raises whatever its many layers raise
        raise CheckpointError(f"{manifest.path} cannot be read: {error}") from error
    return from_arrays(template, arrays | restored)


def _write_arrays(path: Path, items: dict[str, dict[str, np.ndarray]]) -> None:
    import orbax.checkpoint as ocp

    # Orbax refuses arrays without elements; the signature holds all there is to know of them.
    stored = {
        name: {key: array for key, array in arrays.items() if array.size}
        for name, arrays in items.items()
    }
    args = {name: ocp.args.StandardSave(arrays) for name, arrays in stored.items()}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=ocp.args.Composite(**args))


def _files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def _checksum(file: Path) -> list[int]:
    """Size and CRC-32: against accidents, not against malice."""
    checksum, size = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
    return [size, checksum]


def _signature(arrays: dict[str, np.ndarray]) -> dict[str, list]:
    return {name: [list(array.shape), array.dtype.name] for name, array in arrays.items()}


def _differences(expected: dict[str, list], found: dict[str, list], most: int = 3) -> str:
    """The first few arrays that differ, in words."""

    def words(signature):
        return f"{signature[1]}{signature[0]}" if signature else "nothing"

    names = [n for n in sorted(expected | found) if expected.get(n) != found.get(n)]
    listed = [f"{n} is {words(found.get(n))} there, {words(expected.get(n))} here" for n in names]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return "; ".join(listed[:most] + more)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
