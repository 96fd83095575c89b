"""Ctrl-C as a request."""

import signal
import threading


class Interrupt:
    """Ctrl-C asks for a stop at the next step boundary; a second one stops at once."""

    def __init__(self):
        self.requested = self.twice = False

    def __enter__(self) -> "Interrupt":
        self._previous = signal.getsignal(signal.SIGINT)
        # Only the main thread may install handlers, and a job that ignores SIGINT (nohup) means it.
        ours = threading.current_thread() is threading.main_thread()
        self._installed = ours and self._previous not in (signal.SIG_IGN, None)
        if self._installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_) -> None:
        if self.requested:
            self.twice = True
            raise KeyboardInterrupt
        self.requested = True
