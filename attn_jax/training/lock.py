"""One training at a time in a directory: a lock that its process takes with it when it dies."""

import contextlib
import os
import platform
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


class InUse(Exception):  # noqa: N818 (it says what is the case)
    """Another process or thread holds the lock; the message says which."""


class Lock:
    """A file that is locked from here until `release` or the end of the process.

    What a killed process left behind is taken over. Where the file system has no locks, no
    process is refused.
    """

    def __init__(self, file: Path):
        self._file = file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not self._locked():
                holder = os.read(self._descriptor, 1000).decode(errors="replace")
                raise InUse(holder or "another process")
        except BaseException:
            os.close(self._descriptor)
            raise
        _locks.add(self)
        with contextlib.suppress(OSError):  # a full disk: only who it is stays unknown
            os.ftruncate(self._descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {platform.node()}, since {since}"
            os.write(self._descriptor, holder.encode())

    def release(self) -> None:
        """Let others in."""
        if self in _locks:
            with contextlib.suppress(OSError):
                if self._in_place():
                    self._file.unlink()
            _locks.remove(self)
            os.close(self._descriptor)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *error) -> None:
        self.release()

    def _locked(self) -> bool:
        if fcntl is None:
            return True
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # no locks here
                return True
            if self._in_place():
                return True
            # The process that held it has deleted the file since it was opened.
            deleted = self._descriptor
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
            os.close(deleted)

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._file))
        except FileNotFoundError:
            return False


_locks: set[Lock] = set()


def _leave_to_parent() -> None:
    """Close what a forked child inherits: else a lock would outlive the process that took it."""
    for lock in _locks:
        os.close(lock._descriptor)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
