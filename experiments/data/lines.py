"""Lines from a stream as they arrive, a file in full batches, a person's one by one; and out."""

import queue
import threading
from collections.abc import Iterator
from typing import IO

from experiments.harness.errors import UserError

PATIENCE = 0.02  # seconds that a line waits for others to come


def chunks(stream: IO[str] | None, most: int) -> Iterator[list[str]]:
    """Yield lists of at most `most` lines, without their ends, each as soon as it is there.

    A thread reads: what is there already comes together, and a line that comes alone goes alone.
    """
    if stream is None:
        raise UserError("there are lines to read from the standard input, which is closed.")
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=4 * most)
    threading.Thread(target=_read, args=(stream, arrived), daemon=True).start()
    over = False
    while not over:
        waiting = [arrived.get()]
        while len(waiting) < most and waiting[-1] is not None:
            try:
                waiting.append(arrived.get(timeout=PATIENCE))
            except queue.Empty:
                break
        over = waiting[-1] is None or isinstance(waiting[-1], BaseException)
        lines = waiting[:-1] if over else waiting
        if lines:
            yield lines
        if isinstance(waiting[-1], BaseException):
            raise waiting[-1]


def as_utf8(stream: IO[str]) -> None:
    """Make a stream write UTF-8 and line feeds, whatever the machine is set to."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8", errors="strict", newline="\n")


def _read(stream: IO[str], arrived: queue.Queue) -> None:
    try:
        for line in _decoded(stream):
            line = line.lstrip("\ufeff")  # of files that were joined each one may begin so
            arrived.put(line.removesuffix("\n").removesuffix("\r"))
    except BaseException as error:  # what is read so far is translated first
        arrived.put(error)
        return
    arrived.put(None)


def _decoded(stream: IO[str]) -> Iterator[str]:
    """Yield lines as UTF-8, whatever the machine is set to."""
    if not hasattr(stream, "buffer"):
        yield from stream
        return
    for number, line in enumerate(stream.buffer, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x}"
            raise UserError(f"line {number} of the input is not UTF-8 ({wrong}).") from error
