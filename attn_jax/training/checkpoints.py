"""Checkpoints: orbax arrays plus one manifest, complete and verified or refused.

    <directory>/checkpoints/<step>/manifest.json      what is there, and a checksum of every file
    <directory>/checkpoints/<step>/model, training, best      orbax items

A checkpoint is written beside its place and renamed into it when complete, so a folder whose name
is a number is a whole checkpoint, whenever the process was killed. The manifest is checked before
orbax opens anything: a file that was cut short is named, as is any array that does not fit.
"""

import contextlib
import dataclasses
import errno
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax.training import processes
from attn_jax.training.arrays import from_arrays, read_arrays, to_arrays, write_arrays

FORMAT = "attn_jax training 1"
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, of another model or run, or cannot be read or written."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not what was written: an older one may still be whole."""


class DamagedCheckpointWarning(UserWarning, DamagedCheckpointError):  # noqa: N818
    """Training goes on without what is damaged. Where warnings are errors, it is this error."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The record, the arrays and the checksums of a checkpoint."""

    path: Path
    record: dict[str, Any]
    items: dict[str, dict[str, Any]]


def steps(directory: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    folder = directory / "checkpoints"
    with accessing(folder):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def paths(directory: Path) -> list[Path]:
    """The checkpoints, the newest first."""
    return [directory / "checkpoints" / str(step) for step in reversed(steps(directory))]


def latest(directory: Path) -> Path | None:
    """The newest checkpoint."""
    return next(iter(paths(directory)), None)


def read(directory: Path, reader: Callable[[list[Path]], Any]) -> Any:
    """Call `reader(paths)`; again where a training deleted one of these checkpoints meanwhile."""
    while True:
        found = paths(directory)
        try:
            return reader(found)
        except CheckpointError:
            if paths(directory) == found:
                raise


def save(directory: Path, items: dict[str, Any], record: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of `record["step"]`, then delete all but the `keep` newest.

    Of several processes the first one writes, all others wait.
    """
    path = directory / "checkpoints" / str(record["step"])
    arrays = {name: to_arrays(tree) for name, tree in items.items()}
    if processes.is_first():
        _save(directory, path, arrays, record, keep)
    processes.wait("a checkpoint is written")
    return path


def _save(
    directory: Path, path: Path, arrays: dict[str, Any], record: dict[str, Any], keep: int
) -> None:
    partial = path.with_suffix(".partial")
    remove_partial(directory)
    try:
        with accessing(path):
            path.parent.mkdir(exist_ok=True)
            _write(partial, arrays)
            (partial / MANIFEST).write_text(json.dumps(_manifest(partial, arrays, record)))
            partial.rename(path)
            for old in paths(directory)[keep:]:
                old.rename(old.with_suffix(".partial"))
    finally:
        remove_partial(directory)


def remove_partial(directory: Path) -> None:
    """Delete what a killed process left half-written or half-deleted."""
    for path in (directory / "checkpoints").glob("*.partial*"):
        _delete(path)


def set_aside(newest: Path, *others: Path) -> None:
    """Rename the newest damaged checkpoint, so that its step can be saved again.

    The others, and what was set aside before, are deleted.
    """
    directory = newest.parent
    with accessing(newest):
        for old in (*directory.glob("*.damaged"), *others):
            old.rename(old.with_name(f"{old.name}.partial"))
        newest.rename(newest.with_suffix(".damaged"))
    remove_partial(directory.parent)


@contextlib.contextmanager
def accessing(path: Path) -> Iterator[None]:
    """Name the path that the file system refuses to read or write."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read or written: {error.strerror or error}."
        ) from error


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and hold every file against it."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        checksum = manifest.pop("checksum", None)  # early versions wrote none
        record, items, files = manifest["record"], manifest["items"], manifest["files"]
        written = checksum is None or checksum == _text_checksum(manifest)
        if not written or str(record["step"]) != path.name:
            raise ValueError("not what was written")
        if manifest["format"] != FORMAT:
            came = f"{manifest['format']!r}, this is {FORMAT!r}"
            raise CheckpointError(f"{path} was written by another version: {came}.")
        for name, expected in files.items():
            if not (path / name).is_file():
                raise DamagedCheckpointError(f"{path} is damaged: {name} is missing.")
            if (found := _checksum(path / name)) != expected:
                told = f"{name} has size and checksum {found}, written were {expected}"
                raise DamagedCheckpointError(f"{path} is damaged: {told}.")
    except CheckpointError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise _no_checkpoint(path) from error
        kind = DamagedCheckpointError if error.errno == errno.EIO else CheckpointError
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_checkpoint(path) from error
    return Manifest(path, record, items)


def _no_checkpoint(path: Path) -> CheckpointError:
    told = f"is not a checkpoint of attn_jax.training, or its {MANIFEST} is damaged"
    return DamagedCheckpointError(f"{path} {told}.")


def restore(manifest: Manifest, item: str, template: Any) -> Any:
    """One item of a checkpoint, refused unless it has the template's names, shapes and dtypes."""
    expected = _signature(to_arrays(template))
    found = manifest.items.get(item, {})
    if differences := _differences(expected, found):
        raise CheckpointError(f"{manifest.path} does not fit this {item}: {differences}.")
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in expected.items()}
    try:
        found = read_arrays(manifest.path, item, arrays)
    except Exception as error:  # orbax raises whatever its many layers raise
        raise CheckpointError(f"{manifest.path} cannot be read: {error}") from error
    return from_arrays(template, found)


def _write(path: Path, items: dict[str, dict[str, np.ndarray]]) -> None:
    try:
        write_arrays(path, items)
    except OSError:
        raise
    except Exception as error:  # orbax raises whatever its many layers raise
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _manifest(
    path: Path, arrays: dict[str, dict[str, np.ndarray]], record: dict[str, Any]
) -> dict[str, Any]:
    manifest = {
        "format": FORMAT,
        "record": record,
        "items": {name: _signature(item) for name, item in arrays.items()},
        "files": {name: _checksum(path / name) for name in _files(path)},
    }
    return manifest | {"checksum": _text_checksum(manifest)}


def _text_checksum(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest).encode())


def _delete(path: Path) -> None:
    """Delete a file or folder as far as the file system lets us: what stays does no harm."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


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
