"""Data for regression: the textbook's curve, data sets that pip brings, and the user's own file."""

import importlib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import arg

from experiments.data import columns as reading
from experiments.data import delimited
from experiments.data.delimited import Form
from experiments.harness.errors import UserError, listed, unknown
from experiments.harness.options import Options, at_least

Columns = Mapping[str, np.ndarray]
USUAL = "(default: the data set's usual ones)"
AtLeast2 = Annotated[int, at_least(2)]
LARGEST = 1e50  # and the smallest range is 1 / LARGEST: errors and distances are squared, twice


@dataclass(frozen=True)
class CurveOptions(Options):
    """Which data to fit: a named set, or columns of your own file."""

    data: Annotated[str, arg(metavar="NAME")] = "textbook"
    """textbook, engel, nile, sunspots, co2, elnino or diabetes."""
    csv: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Your own CSV or TSV file with a header line, gzipped or not; needs --x and --y."""
    x: Annotated[tuple[str, ...], arg(metavar="COLUMN...", help_behavior_hint=USUAL)] = ()
    """Input columns."""
    y: Annotated[tuple[str, ...], arg(metavar="COLUMN...", help_behavior_hint=USUAL)] = ()
    """Output columns."""
    n: Annotated[AtLeast2 | None, arg(metavar="INT", help_behavior_hint="(default: 50)")] = None
    """Points of the textbook curve."""
    form: Form = field(default_factory=Form)

    @property
    def textbook(self) -> bool:
        """Whether the textbook's curve is chosen."""
        return self.csv is None and self.data == "textbook"


@dataclass(frozen=True, eq=False)
class Curve:
    """Points to regress: x [n, d] and y [n, outputs] in float64, finite, in the source's order."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    """What was dropped or converted, to be printed."""


def textbook(n: int, seed: int = 0) -> Curve:
    """Return n noisy points of y = 2 sin x + x^0.8 + N(0, 0.5²), x sorted and uniform on [0, 5].

    The data of Dive into Deep Learning (Zhang et al. 2023), section 11.2.
    """
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 5, n))
    y = textbook_truth(x) + rng.normal(0, 0.5, n)
    source = f"y = 2 sin x + x^0.8 + N(0, 0.5²), {n} points, seed {seed}"
    return Curve("textbook", x[:, None], y[:, None], ("x",), ("y",), source)


def textbook_truth(x: np.ndarray) -> np.ndarray:
    """Return the textbook's curve without noise: 2 sin x + x^0.8, for x ≥ 0."""
    return 2 * np.sin(x) + x**0.8


def textbook_test() -> Curve:
    """Return the textbook's 50 test points, x = 0, 0.1, … 4.9, without noise."""
    x = np.arange(0, 5, 0.1)[:, None]
    return Curve("textbook test", x, textbook_truth(x), ("x",), ("y",), "y = 2 sin x + x^0.8")


def load(options: CurveOptions, *, seed: int = 0) -> Curve:
    """Return the data that the options choose; `seed` is the textbook's noise."""
    if options.csv is not None and options.data != "textbook":
        raise UserError("--data and --csv exclude each other: give one.")
    if options.n is not None and not options.textbook:
        raise UserError("--n is for the textbook curve only; other data are taken whole.")
    if options.csv is not None:
        return from_file(options.csv, options.x, options.y, options.form)
    if options.form != Form():
        flags = ", ".join(f"--{each.name}" for each in fields(Form))
        raise UserError(f"{flags} are for --csv FILE.")
    if not options.textbook:
        return named(options.data, options.x, options.y)
    if options.x or options.y:
        raise UserError("--x and --y need --csv FILE, or --data with named columns.")
    return textbook(options.n or 50, seed)


def from_file(path: Path, x: Sequence[str], y: Sequence[str], form: Form) -> Curve:
    """Return columns of a person's CSV or TSV file."""
    table = delimited.read(path, form)
    x, y = ([unicodedata.normalize("NFC", name) for name in side] for side in (x, y))
    for flag, names in (("--x", x), ("--y", y)):
        if not names:
            choice = f"choose from the columns {listed(table.names)}."
            raise UserError(f"--csv needs {flag}: {choice}{table.headerless}")
    read = {name: reading.column(table, name) for name in (*x, *y)}
    columns = {name: values for name, (values, _) in read.items()}
    notes = [note for _, its_notes in read.values() for note in its_notes]
    return curve(path.stem, str(path), columns, x, y, notes)


def named(name: str, x: Sequence[str], y: Sequence[str]) -> Curve:
    """Return a data set that pip brought, its usual columns or those chosen."""
    if name not in DATA_SETS:
        raise unknown("data set", name, ("textbook", *DATA_SETS), hint=" Your own file: --csv FILE")
    row = DATA_SETS[name]
    try:
        columns = row.load(name)
    except ModuleNotFoundError as error:
        install = "pip install -r requirements.txt"
        raise UserError(f"--data {name} needs {error.name}: {install}") from error
    x, y = x or row.x, y or row.y
    for each in (*x, *y):
        if each not in columns:
            raise unknown("column", each, columns)
    return curve(name, row.source, columns, x, y, [])


def curve(
    name: str, source: str, columns: Columns, x: Sequence[str], y: Sequence[str], notes: list[str]
) -> Curve:
    """Return the curve of columns [n], whose NaN are missing values: those rows are dropped.

    A constant input says nothing about the output: among others it is dropped, alone it is
    refused.
    """
    chosen = (*x, *y)
    twice = sorted({each for each in chosen if chosen.count(each) > 1})
    if twice:
        raise UserError(f"a column can be chosen once in --x and --y. Got {listed(twice)} twice.")
    missing = {each: np.isnan(columns[each]) for each in chosen}
    dropped = np.any(list(missing.values()), axis=0)
    rows = int(np.sum(~dropped))
    if rows < len(dropped):
        where = ", ".join(f"{each}: {gaps.sum()}" for each, gaps in missing.items() if gaps.any())
        dropped_rows = f"{len(dropped) - rows} of {len(dropped)} rows dropped"
        notes = [*notes, f"{dropped_rows}: missing values ({where})"]
    why = f" ({'; '.join(notes)})." if notes else "."
    if rows < 2:
        raise UserError(f"{source} must have at least 2 complete rows. Got {rows}{why}")
    kept = {each: columns[each][~dropped].astype(np.float64) for each in chosen}
    for each, values in kept.items():
        require_squares(each, values, source)
    varying = [each for each in x if np.ptp(kept[each]) > 0]
    constant = listed(each for each in x if each not in varying)
    if not varying:
        raise UserError(f"--x must vary from row to row. {constant} of {source} is constant{why}")
    if constant:
        notes = [*notes, f"input {constant} dropped: constant"]
    inputs, outputs = (np.stack([kept[each] for each in side], axis=1) for side in (varying, y))
    repeated = rows - len(np.unique(inputs, axis=0))
    if repeated:
        notes = [*notes, f"{repeated} of {rows} rows repeat the inputs of another row (kept)"]
    return Curve(name, inputs, outputs, tuple(varying), tuple(y), source, tuple(notes))


def require_squares(name: str, values: np.ndarray, source: str) -> None:
    """Refuse a column so large, or of so small a range, that squares of it are not numbers."""
    size = np.abs(values).max()
    spread = 0.0 if size > LARGEST else np.ptp(values)
    if size > LARGEST or 0 < spread < 1 / LARGEST:
        holds = f"numbers up to {size:.3g}" if not spread else f"a range of {spread:.3g} only"
        raise UserError(
            f"{name!r} of {source} holds {holds}: rescale it, so that its numbers are at most "
            f"{LARGEST:.0e} and their range is at least {1 / LARGEST:.0e}."
        )


def statsmodels(name: str) -> Columns:
    """Return one of statsmodels's data sets; names in lower case."""
    frame = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data
    columns = {each.lower(): frame[each].to_numpy(np.float64) for each in frame}
    if frame.index.dtype.kind == "M":
        columns["year"] = np.array([float(reading.decimal_year(day)) for day in frame.index])
    return columns


def scikit_learn(name: str) -> Columns:
    """Return one of scikit-learn's data sets in its own units."""
    load = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")
    frame = load(as_frame=True, scaled=False).frame
    return {name: frame[name].to_numpy(np.float64) for name in frame}


@dataclass(frozen=True)
class DataSet:
    """A named data set: its usual columns, where it comes from, its loader."""

    x: tuple[str, ...]
    y: tuple[str, ...]
    source: str
    load: Callable[[str], Columns] = statsmodels


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
ENGEL = "Engel's food expenditure of 235 Belgian households (statsmodels)"
NILE = "annual flow of the Nile at Aswan, 1871-1970 (statsmodels)"
SUNSPOTS = "yearly sunspot numbers, 1700-2008 (statsmodels)"
CO2 = "weekly CO₂ at Mauna Loa, 1958-2001 (statsmodels)"
ELNINO = "monthly sea temperatures of the El Niño region 1+2, 1950-2010 (statsmodels)"
DIABETES = "disease progression of 442 patients, Efron et al. 2004 (scikit-learn)"
DATA_SETS = {
    "engel": DataSet(("income",), ("foodexp",), ENGEL),
    "nile": DataSet(("year",), ("volume",), NILE),
    "sunspots": DataSet(("year",), ("sunactivity",), SUNSPOTS),
    "co2": DataSet(("year",), ("co2",), CO2),
    "elnino": DataSet(("year",), MONTHS, ELNINO),
    "diabetes": DataSet(("bmi",), ("target",), DIABETES, scikit_learn),
}
