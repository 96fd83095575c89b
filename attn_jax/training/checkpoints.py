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
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

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
    """Write the checkpoint of `record["step"]`, then delete all but the `keep` newest."""
    path = directory / "checkpoints" / str(record["step"])
    partial = path.with_suffix(".partial")
    arrays = {name: to_arrays(tree) for name, tree in items.items()}
    remove_partial(directory)
    try:
        with accessing(path):
            path.parent.mkdir(exist_ok=True)
            _write_arrays(partial, arrays)
            (partial / MANIFEST).write_text(json.dumps(_manifest(partial, arrays, record)))
            partial.rename(path)
            for old in paths(directory)[keep:]:
                old.rename(old.with_suffix(".partial"))
    finally:
        remove_partial(directory)
    return path


def remove_partial(directory: Path) -> None:
    """Delete what a killed process left half-written or half-deleted."""
    for path in (directory / "checkpoints").glob("*.partial*"):
        _delete(path)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that its step can be saved again."""
    aside = path.with_suffix(".damaged")
    with accessing(path):
        _delete(aside)
        return path.rename(aside)


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
    import orbax.checkpoint as ocp  # 0.4 s, and not every use of this module needs it

    expected = _signature(to_arrays(template))
    found = manifest.items.get(item, {})
    if differences := _differences(expected, found):
        raise CheckpointError(f"{manifest.path} does not fit this {item}: {differences}.")
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in expected.items()}
    stored = {name: array for name, array in arrays.items() if array.size}
    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(stored)})
    try:
        with _orbax(manifest.path) as (checkpointer, path):
            restored = checkpointer.restore(path, args=args)[item]
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
    try:
        with _orbax(path) as (checkpointer, plain):
            checkpointer.save(plain, args=ocp.args.Composite(**args))
    except OSError:
        raise
    except Exception as error:  # orbax raises whatever its many layers raise
        if code := re.search(r"os_error_code='(\d+)'", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    for name, arrays in stored.items():
        # Orbax only logs it where it finds nothing to merge, and cannot read what it did not.
        if arrays and not (path / name / "manifest.ocdbt").is_file():
            raise CheckpointError(f"{path} cannot be written: orbax has not merged {name}.")


@contextlib.contextmanager
def _orbax(path: Path) -> Iterator[tuple[Any, Path]]:
    """A checkpointer, and the path for it.

    What fails is raised: orbax need not log it as well, nor TensorStore's threads that they have
    nobody left to tell. They go on doing so after a failure, and so do these filters.
    """
    import orbax.checkpoint as ocp

    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    quiet = logging.Filter()
    quiet.filter = lambda record: "orbax" not in record.pathname
    logger.addFilter(quiet)
    sys.unraisablehook = lambda each: _is_orphan(each.exc_value) or hook(each)
    before = threading.enumerate()
    try:
        with (
            _plain(path.parent) as folder,
            ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer,
        ):
            yield checkpointer, folder / path.name
    except BaseException:
        for thread in set(threading.enumerate()).difference(before):
            thread.join(timeout=1.0)  # it may still write
        raise
    sys.unraisablehook = hook
    logger.removeFilter(quiet)


def _is_orphan(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    """A path to the folder that orbax takes as it is: a link, where the name is not a plain one.

    Orbax globs over the path for the files to merge, and knows "gs:"; TensorStore wants UTF-8.
    """
    with contextlib.ExitStack() as stack:
        if not _is_plain(folder):
            place = None if _is_plain(tempfile.gettempdir()) else "/tmp"
            # Without a place for a link, or the right to make one, the name itself has to do.
            with contextlib.suppress(OSError):
                temporary = tempfile.TemporaryDirectory(prefix="attn_jax-", dir=place)
                link = Path(stack.enter_context(temporary)) / "checkpoints"
                link.symlink_to(folder, target_is_directory=True)
                folder = link
        yield folder


def _is_plain(path: Path | str) -> bool:
    return re.fullmatch(r"[\w/.,=+@ -]*", str(path), re.ASCII) is not None


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


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
