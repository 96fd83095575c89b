"""A page on which a person explores attention with the mouse or the keyboard: one HTML file."""

import base64
import html
import io
import json
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attn_jax.checks import read_array, require

EXACT = 2**17  # weights, of all maps together, that have two bytes each; of more, one each


@dataclass(frozen=True)
class Page:
    """A self-contained page: it needs no network. In a notebook it shows itself."""

    html: str

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html, "utf-8")

    def _repr_html_(self) -> str:
        # A frame of its own: several pages of one notebook do not meet, nor do their styles.
        frame = 'sandbox="allow-scripts" style="width: 100%; height: 44em; border: 0"'
        return f'<iframe {frame} title="attention" srcdoc="{html.escape(self.html)}"></iframe>'


def explore(
    weights: ArrayLike | Mapping[str, ArrayLike],
    queries: Sequence[Any] | np.ndarray,
    keys: Sequence[Any] | np.ndarray | None = None,
    *,
    path: str | PathLike[str] | None = None,
    title: str = "Attention",
    image: ArrayLike | None = None,
    audio: tuple[ArrayLike, int] | None = None,
) -> Page:
    """Make a page that shows, for the query that is pointed at, how much each key weighs.

    Layer and head are chosen; weights of several models or normalizers stand side by side. A weight
    that is exactly 0 is shown as such. Weights are stored to 1/65,535 of the square root of the
    largest, of more than 2¹⁷ of them to 1/255.

    Args:
        weights: [layers, heads, q, k], [heads, q, k] or [q, k]; a dict compares several, name →
            weights, all of one shape. Not negative.
        queries: [q] tokens.
        keys: [k] tokens, times, or parts of the image; None: the queries.
        path: A file to write the page to.
        title: Above the page.
        image: [height, width, 3], uint8: the keys are its parts, row by row of a grid that has its
            proportions; the weights are drawn over it.
        audio: (samples [n] from -1 to 1, samples a second): the keys are frames of equal length;
            the weights are drawn over time, beside controls that play it.

    >>> page = explore([[0.25, 0.75]], ["and"], ["one", "two"])
    >>> "<script" in page.html
    True
    """
    maps = weights if isinstance(weights, Mapping) else {"": weights}
    require(len(maps) > 0, "weights", "hold one array at least", dict(maps))
    arrays = {str(name): _four_axes(each) for name, each in maps.items()}
    require(len(arrays) == len(maps), "weights", "have names that differ as text", list(maps))
    shapes = {each.shape for each in arrays.values()}
    require(len(shapes) == 1, "weights", "have one shape", sorted(shapes))
    layers, heads, q, k = shapes.pop()
    keys = queries if keys is None else keys
    for name, tokens, count in (("queries", queries, q), ("keys", keys, k)):
        require(len(tokens) == count, name, f"be {count}, as the weights", len(tokens))
    largest = max(float(each.max(initial=0)) for each in arrays.values()) or 1.0
    bits = 16 if len(arrays) * layers * heads * q * k <= EXACT else 8
    data = {
        "title": title,
        "shape": [layers, heads, q, k],
        "queries": [str(each) for each in queries],
        "keys": [str(each) for each in keys],
        "largest": largest,
        "bits": bits,
        "maps": [
            {"name": name, "codes": _base64(_codes(each / largest, bits))}
            for name, each in arrays.items()
        ],
        "image": None if image is None else _image(image, k),
        "audio": None if audio is None else _audio(*audio),
    }
    page = Page(_filled(title, data))
    if path is not None:
        page.save(path)
    return page


def _four_axes(weights: ArrayLike) -> np.ndarray:
    """The weights in float64, [layers, heads, q, k]."""
    array = np.asarray(read_array(weights, "weights"), np.float64)
    fits = 2 <= array.ndim <= 4 and array.size > 0
    require(fits, "weights", "be [layers, heads, q, k] or its last axes, not empty", array)
    wrong = array[~(np.isfinite(array) & (array >= 0))][:1].tolist()
    require(not wrong, "weights", "be finite and not negative", wrong)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _codes(shares: np.ndarray, bits: int) -> bytes:
    """Square roots as integers of so many bits, little endian: 0 means 0 and nothing else does."""
    most = 2**bits - 1
    codes = np.clip(np.rint(np.sqrt(shares) * most), 1, most)
    return np.where(shares > 0, codes, 0).astype(f"<u{bits // 8}").tobytes()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _image(image: ArrayLike, keys: int) -> dict[str, Any]:
    """A PNG, and the grid of the keys on it."""
    from PIL import Image

    array = np.asarray(image)
    proper = array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8 and array.size > 0
    require(proper, "image", "be [height, width, 3], uint8", array)
    rows = round((keys * array.shape[0] / array.shape[1]) ** 0.5)
    require(rows > 0 and keys % rows == 0, "keys", "fill a grid of the image's proportions", keys)
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG", optimize=True)
    url = f"data:image/png;base64,{_base64(stream.getvalue())}"
    return {"url": url, "rows": rows, "columns": keys // rows}


def _audio(samples: ArrayLike, rate: int) -> dict[str, Any]:
    """A WAV of 16 bits, and its length in seconds."""
    array = np.asarray(samples, np.float64)
    proper = array.ndim == 1 and array.size > 0 and bool(np.isfinite(array).all()) and rate > 0
    require(proper, "audio", "be finite samples [n] and a positive rate", f"{array.shape}, {rate}")
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(array, -1, 1) * 32767).astype("<i2").tobytes())
    return {
        "url": f"data:audio/wav;base64,{_base64(stream.getvalue())}",
        "seconds": array.size / rate,
    }


def _filled(title: str, data: Mapping[str, Any]) -> str:
    """The page with its data: no character of a token can end the element that holds it."""
    template = resources.files("attn_jax.plots").joinpath("explore.html").read_text("utf-8")
    text = json.dumps(data, allow_nan=False)  # ASCII, half a surrogate pair too
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    before, between, after = template.split("{{}}")
    title = title.encode("utf-8", "replace").decode()
    return before + html.escape(title) + between + text + after
