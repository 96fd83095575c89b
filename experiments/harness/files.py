"""Files of a run: JSON, CSV and whatever else, written whole or not at all.

JSON has no NaN and no infinities, so those are the strings "NaN", "Infinity" and "-Infinity", which
Python's `float` reads back.
"""

import csv
import dataclasses
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.harness.errors import UserError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a run."""
    try:
        read = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(read, dict):
        raise UserError(f"{path} is damaged: it holds no object.")
    return read


def to_json(value: Any) -> str:
    r"""Return valid JSON text of dataclasses, mappings, sequences, arrays, paths and scalars.

    >>> to_json({"loss": float("nan"), "n": np.int64(3)})
    '{\n  "loss": "NaN",\n  "n": 3\n}\n'
    """
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return the value in JSON's own types; non-finite floats become strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__array__"):
        return plain(numbers(value).tolist())
    raise TypeError(f"no JSON for {type(value).__name__}: {value!r}")


def numbers(array: ArrayLike) -> np.ndarray:
    """Return a NumPy array of a type that Python knows (bfloat16 becomes float64)."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biufU" else array.astype(np.float64)


def to_csv(columns: Mapping[str, ArrayLike]) -> str:
    r"""Return CSV text of columns [n] with a header.

    >>> to_csv({"x": [1, 2], "y": [0.1, float("nan")]})
    'x,y\n1,0.1\n2,nan\n'
    """
    arrays = {name: numbers(column) for name, column in columns.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"columns must be one-dimensional and equally long. Got {shapes}.")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(arrays)
    writer.writerows(zip(*(array.tolist() for array in arrays.values()), strict=True))
    return text.getvalue()


def write(path: Path, text: str) -> Path:
    """Write a UTF-8 file whole or not at all; bytes of a path that are no UTF-8 are escaped."""
    return write_with(
        path,
        lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace", newline=""),
    )


def write_with(path: Path, writer: Callable[[Path], Any], *, option: str = "--output-dir") -> Path:
    """Let `writer` fill a temporary file beside `path`, then rename it into place."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    with refusing(path, option):
        try:
            writer(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


@contextmanager
def refusing(path: Path, option: str = "--output-dir") -> Iterator[None]:
    """Turn what the file system refuses into one clear line that names the option to change."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}. Choose another {option}."
        ) from error
