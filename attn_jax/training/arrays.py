"""Arrays of a checkpoint on the host, and as files: orbax items."""

import contextlib
import dataclasses
import inspect
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attn_jax.training import processes

_hooks = threading.RLock()  # two trainings may save at once; what orbax logs has one filter
_failed = threading.Event()  # the filter and the hook of a failure are there already


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Name → array on the host. Typed PRNG keys become their data: orbax cannot restore them."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    arrays = {_name(path): processes.whole(_raw(leaf)) for path, leaf in paths}
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


def write_arrays(path: Path, items: dict[str, dict[str, np.ndarray]]) -> None:
    """Write each item's arrays."""
    import orbax.checkpoint as ocp  # 0.4 s, and not every use of this module needs it

    stored = {name: _filled(arrays) for name, arrays in items.items()}
    args = {name: ocp.args.StandardSave(arrays) for name, arrays in stored.items()}
    try:
        with _orbax(path) as (checkpointer, plain):
            checkpointer.save(plain, args=ocp.args.Composite(**args))
    except Exception as error:  # orbax raises whatever its many layers raise
        if code := re.search(r"os_error_code='(\d+)'", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
        raise
    for name, arrays in stored.items():
        # Orbax only logs it where it finds nothing to merge, and cannot read what it did not.
        if arrays and not (path / name / "manifest.ocdbt").is_file():
            raise RuntimeError(f"orbax has not merged {name}.")


def read_arrays(
    path: Path, item: str, expected: dict[str, np.ndarray]
) -> dict[str, np.ndarray | jax.Array]:
    """One item's arrays, of the shapes and dtypes expected."""
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(**{item: ocp.args.StandardRestore(_filled(expected))})
    with _orbax(path) as (checkpointer, plain):
        return expected | checkpointer.restore(plain, args=args)[item]


def _filled(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those with elements: orbax refuses others, of which the manifest holds all there is."""
    return {name: array for name, array in arrays.items() if array.size}


@contextlib.contextmanager
def _orbax(path: Path) -> Iterator[tuple[Any, Path]]:
    """A checkpointer, and the path for it.

    What fails is raised: orbax need not log it as well, nor TensorStore's threads print that their
    event loop is closed. They go on doing so after a failure, and so do these filters.
    """
    with _hooks:
        logger, hook = logging.getLogger("absl"), sys.unraisablehook
        quiet = logging.Filter()
        quiet.filter = lambda record: "orbax" not in record.pathname
        if not (stays := _failed.is_set()):
            logger.addFilter(quiet)
            sys.unraisablehook = lambda each: _is_orphan(each.exc_value) or hook(each)
        before = threading.enumerate()
        try:
            with (
                _plain(path.parent) as folder,
                _checkpointer() as checkpointer,
            ):
                yield checkpointer, folder / path.name
        except BaseException:
            _failed.set()
            for thread in set(threading.enumerate()).difference(before):
                thread.join(timeout=1.0)  # it may still write
            raise
        if not stays:
            sys.unraisablehook = hook
            logger.removeFilter(quiet)


def _checkpointer() -> Any:
    """A checkpointer of this process alone: of several, one writes, and each reads for itself."""
    import orbax.checkpoint as ocp

    if not processes.several():
        return ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    index = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"process{index}"
    )
    options = inspect.signature(ocp.CompositeCheckpointHandler).parameters["composite_options"]
    of_items = dataclasses.replace(options.default, multiprocessing_options=alone)
    handler = ocp.CompositeCheckpointHandler(composite_options=of_items)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


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


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
