"""Text files: read exactly, or refused with the line that is wrong and advice."""

import codecs
import gzip
import re
import zlib
from pathlib import Path

BEGINNINGS = {
    codecs.BOM_UTF32_LE: "UTF-32: iconv -f utf-32 -t utf-8 converts it",  # begins as UTF-16 does
    codecs.BOM_UTF16_LE: "UTF-16: iconv -f utf-16 -t utf-8 converts it",
    codecs.BOM_UTF16_BE: "UTF-16: iconv -f utf-16 -t utf-8 converts it",
    codecs.BOM_UTF32_BE: "UTF-32: iconv -f utf-32 -t utf-8 converts it",
    b"PK\x03\x04": "a workbook or a zip archive: save it as plain text, or unpack it",
    b"\xd0\xcf\x11\xe0": "an old Office file: save it as plain text",
    b"BZh": "compressed: bunzip2 unpacks it",
    b"\xfd7zXZ": "compressed: unxz unpacks it",
    b"\x28\xb5\x2f\xfd": "compressed: unzstd unpacks it",
}


def read_text(path: Path | str, encoding: str = "utf-8") -> str:
    """The text of a file, gzipped or not, without the byte-order marks that begin its lines.

    Of files that were joined each one's first line has a mark. Line ends stay as they are: a line
    feed ends a line, in a file without any a carriage return does.
    """
    data = _read(Path(path))
    try:
        text = data.decode(encoding)
    except LookupError:
        raise ValueError(
            f"encoding must be one of text that Python knows. Got {encoding!r}."
        ) from None
    except UnicodeError as error:  # that of UTF-16 without a mark has no position
        start = getattr(error, "start", 0)
        whole, before = (part.decode(encoding, "replace") for part in (data, data[:start]))
        where = f"byte 0x{data[start]:02x} on line {before.count(line_end(whole)) + 1}"
        what = next((each for begin, each in BEGINNINGS.items() if data.startswith(begin)), None)
        advice = f"it looks like {what}" if what else "iconv -f latin1 -t utf-8, say, converts it"
        raise ValueError(f"{path} is not {encoding.upper()} ({where}): {advice}.") from error
    end = line_end(text)
    if "\0" in text:
        place = text.index("\0")
        told = f"{path} holds a NUL character on line {text.count(end, 0, place) + 1}"
        if data.find(b"\0") == place:  # each character before it is one byte
            order = "le" if place % 2 else "be"
            told += f": is it UTF-16? iconv -f utf-16{order} -t utf-8 converts it"
        raise ValueError(f"{told}.")
    return re.sub(f"(^|{end})\ufeff+", r"\1", text)


def line_end(text: str) -> str:
    """What ends the lines of a text: line feeds, or carriage returns where there are none."""
    return "\n" if "\n" in text else "\r"


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
