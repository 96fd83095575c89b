"""Lines of text from a person's files: each one as it is, or refused with the line that is wrong.

Only a line feed, or a carriage return and a line feed, ends a line: Python's `splitlines` would
also split at form feeds and U+2028, and shift every later line against its translation.
"""

import gzip
import zlib
from pathlib import Path

BOM = b"\xef\xbb\xbf"


def read_lines(path: Path | str) -> list[str]:
    """The lines of a UTF-8 file, gzipped or not, without a byte-order mark and line ends.

    Empty lines keep their row, and the last line needs no line end. A file of no lines is refused,
    and so is a NUL, the trace of UTF-16.
    """
    data = _read(Path(path)).removeprefix(BOM)
    if not data:
        raise ValueError(f"{path} is empty: it needs at least one line.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} on line {_line(data, error.start)}"
        message = f"{path} is not UTF-8 ({where}): convert it, as by iconv -f latin1 -t utf-8."
        raise ValueError(message) from None
    if b"\0" in data:
        where = f"on line {_line(data, data.index(0))}"
        message = f"{path} holds a NUL character {where}: is it UTF-16? iconv -f utf-16 -t utf-8."
        raise ValueError(message)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_parallel(source: Path | str, target: Path | str) -> tuple[list[str], list[str]]:
    """Two files whose lines are translations of each other; no row is left out.

    A row may be empty on either side. What that means is the user's of the rows: an empty source is
    an example as any other, and `PairBatches` counts and leaves out a pair without a target.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        longer = source if len(sources) > len(targets) else target
        first = min(len(sources), len(targets)) + 1
        raise ValueError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}, but each line "
            f"needs its translation: line {first} of {longer} has none."
        )
    return sources, targets


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory; a text file is needed.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not data.startswith(b"\x1f\x8b"):  # no UTF-8 text begins so
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1
