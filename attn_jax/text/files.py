"""The text of a person's file: as it is, or refused with the line that is wrong and a way out."""

import codecs
import gzip
import re
import zlib
from pathlib import Path

LINE_END = re.compile(rb"\r\n?|\n")
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

    Of files that were joined each one's first line has a mark. Line ends stay as they are.
    """
    data = _read(Path(path))
    try:
        text = data.decode(encoding)
    except LookupError:
        raise ValueError(
            f"encoding must be one of text that Python knows. Got {encoding!r}."
        ) from None
    except UnicodeError as error:  # UTF-16 without a mark has no place
        start = getattr(error, "start", 0)
        where = f"byte 0x{data[start]:02x} on line {_line(data, start)}" if data else "no byte"
        what = next((each for begin, each in BEGINNINGS.items() if data.startswith(begin)), None)
        advice = f"it looks like {what}" if what else "iconv -f latin1 -t utf-8, say, converts it"
        raise ValueError(f"{path} is not {encoding.upper()} ({where}): {advice}.") from error
    if "\0" in text:
        place = data.index(0)
        order = "le" if place % 2 else "be"
        raise ValueError(
            f"{path} holds a NUL character on line {_line(data, place)}: is it UTF-16? "
            f"iconv -f utf-16{order} -t utf-8 converts it."
        )
    return re.sub("(^|[\r\n])\ufeff+", r"\1", text)


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
    return len(LINE_END.findall(data, 0, place)) + 1
