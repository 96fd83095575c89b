"""A run's directory, OUTPUT_DIR/EXPERIMENT/NAME, and the files in it.

    config.json        every option, checksums of what a resumed run must share, versions, devices
    metrics.json       the numbers that the experiment reports
    predictions.csv    one row per example
    figures/*.png

While a run is under way, OUTPUT_DIR/EXPERIMENT/.NAME.lock keeps others of its name out.
"""

import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from experiments.harness.errors import UserError
from experiments.harness.files import plain, read_json, refusing, to_csv, to_json, write, write_with

VERSIONS_OF = ("attn_jax", "jax", "flax", "numpy")
NO_CHECKSUMS: Mapping[str, Any] = MappingProxyType({})
# options that a resumed run may change: its directory may have moved, to other machines
FREE = ("resume", "output", "processes")
UNDER_WAY: dict[Path, Any] = {}  # this process's runs, and their locks


@dataclasses.dataclass(frozen=True)
class Output:
    """Where the files of a run go: OUTPUT_DIR/EXPERIMENT/NAME."""

    name: str = "default"
    """Name of the run. An earlier run of the same name is replaced."""
    output_dir: Path = Path("runs")
    """Directory that holds all runs."""

    def directory(self, experiment: str) -> Path:
        """Return the directory of the run of this name."""
        return self.output_dir / experiment / checked_name(self.name)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run's directory, which exists."""

    directory: Path
    writes: bool = True  # of several processes the first one

    def write_metrics(self, metrics: Mapping[str, Any]) -> Path:
        """Write metrics.json."""
        path = self.directory / "metrics.json"
        return write(path, to_json(metrics)) if self.writes else path

    def update_metrics(self, metrics: Mapping[str, Any]) -> Path:
        """Write numbers into metrics.json beside those that it has."""
        return self.write_metrics(self.read_metrics() | dict(metrics))

    def read_metrics(self) -> dict[str, Any]:
        """Return the numbers in metrics.json, none where there is none."""
        path = self.directory / "metrics.json"
        return read_json(path) if path.exists() else {}

    def write_predictions(self, columns: Mapping[str, ArrayLike]) -> Path:
        """Write predictions.csv: each column is [n], floats keep all their digits."""
        return write(self.directory / "predictions.csv", to_csv(columns))

    def write_figure(self, name: str, figure: Any, *, dpi: int = 150) -> Path:
        """Write a matplotlib Figure to figures/NAME.png, a page of `plots.explore` to NAME.html."""
        from attn_jax import plots

        page = hasattr(figure, "html")
        path = self.directory / "figures" / f"{name}.{'html' if page else 'png'}"
        if not self.writes:
            return path
        if page:
            return write_with(path, figure.save)
        return write_with(path, lambda temporary: plots.save(figure, temporary, dpi=dpi))

    def say_where(self) -> None:
        """Print where everything is."""
        print(f"\nresults in  {self.directory}/")
        print(f"pictures in {self.directory / 'figures'}/")

    def clear_figures(self, pattern: str = "*") -> None:
        """Make figures/ if there is none, and take earlier pictures of these names out of it."""
        figures = self.directory / "figures"
        with refusing(figures):
            figures.mkdir(parents=True, exist_ok=True)
            for stale in figures.glob(f"{pattern}.png"):
                stale.unlink(missing_ok=True)


def start(
    experiment: str,
    options: Any,
    output: Output,
    *,
    resume: bool = False,
    checksums: Mapping[str, Any] = NO_CHECKSUMS,
) -> Run:
    """Make the run's directory, clear an earlier run of this name out of it, write config.json.

    Call it before the long computation, and after all that can be refused: an earlier run of this
    name is gone then. A bad name or an unwritable place is refused here, as is a name whose run
    another process has under way, until `end`. With `resume` what is under training/ stays, and the
    earlier run's options and checksums (name → value: of data, say, which options only point to)
    have to be these.
    """
    from attn_jax.training import processes

    run = Run(output.directory(experiment), writes=processes.is_first())
    if resume:
        require_same(run.directory, options, checksums)
    if not run.writes:
        processes.wait("the first one has made the run's directory")
        return run
    begin(run.directory)
    with refusing(run.directory):
        if not resume and (run.directory / "training").exists():
            shutil.rmtree(run.directory / "training")
        run.directory.mkdir(exist_ok=True)
        if (run.directory / "config.json").exists():
            shutil.rmtree(run.directory / "evaluation", ignore_errors=True)
            for stale in ("metrics.json", "predictions.csv"):
                (run.directory / stale).unlink(missing_ok=True)
            run.clear_figures()
        (run.directory / "figures").mkdir(exist_ok=True)
    config = {"experiment": experiment, "options": options}
    config |= {"checksums": checksums} if checksums else {}
    write(run.directory / "config.json", to_json(config | environment()))
    processes.wait("the first one has made the run's directory")
    return run


def begin(directory: Path) -> None:
    """Refuse a run that another process has under way, and others from now on, until `end`."""
    from attn_jax.training.lock import InUse, Lock

    with refusing(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        file = directory.parent.resolve() / f".{directory.name}.lock"
        try:
            UNDER_WAY[file] = UNDER_WAY.get(file) or Lock(file)
        except InUse as holder:
            told = f"{directory} is being written by another run: {holder}"
            raise UserError(f"{told}. Choose another --name, or wait.") from holder


def end() -> None:
    """Let others write what this process has written."""
    while UNDER_WAY:
        UNDER_WAY.popitem()[1].release()


def require_same(
    directory: Path, options: Any, checksums: Mapping[str, Any] = NO_CHECKSUMS
) -> None:
    """Refuse to resume what is not there, or what began with other options or other data."""
    config = directory / "config.json"
    if not config.exists():
        raise UserError(f"--resume needs an earlier run. Got none in {directory}.")
    before = read_json(config)
    for what, given in (("options", options), ("checksums", checksums)):
        now, there = plain(given), before.get(what, {})
        changed = [name for name in now if name not in FREE and there.get(name) != now[name]]
        if changed:
            what = what.replace("checksums", "data")
            names = ", ".join(changed)
            raise UserError(f"--resume needs the {what} of the earlier run. Changed: {names}.")


def read_config(directory: Path) -> dict[str, Any]:
    """Return what a run was started with: its options, and checksums of what it was trained on."""
    path = directory / "config.json"
    if not path.exists():
        raise UserError(f"{directory} holds no run. Train a model of this --name first.")
    config = read_json(path)
    for name in ("options", "checksums"):
        if not isinstance(config.get(name), dict):
            raise UserError(f"{path} is damaged, or another version's: it holds no {name}.")
    return config


def checked_name(name: str) -> str:
    """Return the run's name if it can be one directory's name everywhere."""
    if not re.fullmatch(r"\w[\w.=+,-]{0,99}", name):
        raise UserError(
            "--name must be 1 to 100 letters, digits and - _ . = + , and begin with a letter or "
            f"digit (no path: --output-dir is for that). Got {name!r}."
        )
    return name


def compile_quickly() -> None:
    """Leave LLVM's optimizer off, before JAX starts: a tiny run's time is nearly all compiling."""
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def environment() -> dict[str, Any]:
    """Return the versions (null: not installed as a package) and devices of this process."""
    import jax

    return {
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in VERSIONS_OF},
        "devices": [f"{each.platform}:{each.id} {each.device_kind}" for each in jax.devices()],
        "jax_enable_x64": bool(jax.config.jax_enable_x64),
    }


def version(package: str) -> str | None:
    """Return the installed version of a package, None for a bare checkout on the path."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
