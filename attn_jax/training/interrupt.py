"""Ctrl-C and SIGTERM as a request."""

import signal
import threading
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a person's, and that of Slurm, Kubernetes and `kill`


class Interrupt:
    """A signal requests a stop at the next step boundary; a second one stops at once.

    Afterwards a SIGTERM does what it would have done, unless an error is under way that would be
    lost: the program's own handler is called, or else the program ends with exit code 143. Inside
    another one signals are the outer one's, and requested of both.
    """

    def __init__(self):
        self._requested = self._twice = self._terminated = False
        self._previous: dict[int, Any] = {}
        self._outer: Interrupt | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._requested or (self._outer is not None and self._outer.requested)

    @property
    def twice(self) -> bool:
        """Whether a second one came."""
        return self._twice or (self._outer is not None and self._outer.twice)

    def __enter__(self) -> "Interrupt":
        # Only the main thread may install handlers, and a job that ignores a signal (nohup) means
        # it, as does one whose handler is not Python's (None).
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in SIGNALS:
            handler = signal.getsignal(number)
            owner = getattr(handler, "__self__", None)
            if isinstance(owner, Interrupt):
                self._outer = owner
            elif handler not in (signal.SIG_IGN, None):
                self._previous[number] = handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if not self._terminated:
            return
        if callable(self._previous[signal.SIGTERM]):
            if kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit)):
                signal.raise_signal(signal.SIGTERM)
        elif kind is None:
            raise SystemExit(128 + signal.SIGTERM)

    def _handle(self, number: int, _: Any) -> None:
        self._terminated |= number == signal.SIGTERM
        if self._requested:
            self._twice = True
            raise SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt
        self._requested = True
