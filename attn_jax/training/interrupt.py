"""Ctrl-C and SIGTERM as a request."""

import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a person's, and that of Slurm, Kubernetes and `kill`


class Interrupt:
    """A signal asks for a stop at the next step boundary; a second one stops at once.

    Afterwards a SIGTERM goes on to the program's own handler, if it has one, unless an error is
    under way that would be lost.
    """

    def __init__(self):
        self.requested = self.twice = False
        self._previous, self._terminated = {}, False

    def __enter__(self) -> "Interrupt":
        # Only the main thread may install handlers, and a job that ignores a signal (nohup) means
        # it, as does one whose handler is not Python's (None).
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._previous = {
                number: handler
                for number, handler in handlers.items()
                if handler not in (signal.SIG_IGN, None)
            }
        for number in self._previous:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, kind, *error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        stopped = kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit))
        if self._terminated and stopped and callable(self._previous[signal.SIGTERM]):
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, _) -> None:
        self._terminated |= number == signal.SIGTERM
        if self.requested:
            self.twice = True
            raise SystemExit(128 + number) if number == signal.SIGTERM else KeyboardInterrupt
        self.requested = True
