"""Lines of a stream: in order, as they arrive, UTF-8 whatever the machine is set to."""

import io
import threading

import pytest

from experiments.data import lines
from experiments.harness.errors import UserError


def test_lines_come_in_order_and_whole():
    written = "".join(f"{i}\r\n" for i in range(23)) + "\ufefflast"
    got = list(lines.chunks(io.StringIO("\ufeff" + written, newline=""), 5))
    assert [line for chunk in got for line in chunk] == [*map(str, range(23)), "last"]
    assert max(map(len, got)) <= 5


def test_a_line_that_comes_alone_goes_alone():
    class Slow:
        def __init__(self):
            self.more = threading.Event()

        def __iter__(self):
            yield "first\n"
            assert self.more.wait(10)
            yield "second\n"

    stream = Slow()
    got = lines.chunks(stream, 8)
    assert next(got) == ["first"]
    stream.more.set()
    assert next(got) == ["second"]
    assert list(got) == []


def test_what_was_read_before_a_failure_is_given():
    def failing():
        yield "first\n"
        raise OSError("gone")

    got = lines.chunks(failing(), 8)
    assert next(got) == ["first"]
    with pytest.raises(OSError, match="gone"):
        next(got)


def test_output_is_utf8_whatever_the_machine_asks_for():
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii", errors="replace", newline="\r\n")
    lines.as_utf8(stream)
    print("漢字 é", file=stream, flush=True)
    assert written.getvalue() == "漢字 é\n".encode()


def test_lines_are_utf8_whatever_the_machine_is_set_to():
    def read(data, encoding="ascii"):
        return lines.chunks(io.TextIOWrapper(io.BytesIO(data), encoding), 8)

    assert list(read("\ufeff1. März\r\n年\n".encode())) == [["1. März", "年"]]
    got = read("fine\nMärz\n".encode("latin1"))
    assert next(got) == ["fine"]
    with pytest.raises(UserError, match="line 2 of the input is not UTF-8"):
        next(got)
