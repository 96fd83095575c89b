"""Data for regression: the textbook's curve, data sets that pip brings, and the user's own file."""

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

Columns = dict[str, np.ndarray]
USUAL = "(default: the data set's usual ones)"


@dataclass(frozen=True)
class CurveOptions:
    """Which data to fit: a named set, or columns of your own file."""

    data: Annotated[str, arg(metavar="NAME")] = "textbook"
    """textbook, engel, nile, sunspots, co2, elnino or diabetes."""
    csv: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Your own CSV or TSV file with a header line, gzipped or not; needs --x and --y."""
    x: Annotated[tuple[str, ...], arg(metavar="COLUMN...", help_behavior_hint=USUAL)] = ()
    """Input columns."""
    y: Annotated[tuple[str, ...], arg(metavar="COLUMN...", help_behavior_hint=USUAL)] = ()
    """Output columns."""
    n: Annotated[int | None, arg(metavar="INT", help_behavior_hint="(default: 50)")] = None
    """Points of the textbook curve."""
    form: Form = field(default_factory=Form)


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
    if n < 2:
        raise UserError(f"n must be at least 2. Got {n}.")
    if seed < 0:
        raise UserError(f"seed must not be negative. Got {seed}.")
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
    """Return the data that the options ask for; `seed` is the textbook's noise."""
    if options.csv is not None and options.data != "textbook":
        raise UserError("--data and --csv exclude each other: give one.")
    textual = options.csv is None and options.data == "textbook"
    if options.n is not None and not textual:
        raise UserError("--n is for the textbook curve only; other data are taken whole.")
    if options.csv is not None:
        return from_file(options.csv, options.x, options.y, options.form)
    if options.form != Form():
        flags = ", ".join(f"--{each.name}" for each in fields(Form))
        raise UserError(f"{flags} are for --csv FILE.")
    if not textual:
        return named(options.data, options.x, options.y)
    if options.x or options.y:
        raise UserError("--x and --y need --csv FILE, or --data with named columns.")
    return textbook(50 if options.n is None else options.n, seed)


def from_file(path: Path, x: Sequence[str], y: Sequence[str], form: Form | None = None) -> Curve:
    """Return columns of a person's CSV or TSV file."""
    table = delimited.read(path, form)
    x, y = ([unicodedata.normalize("NFC", name) for name in side] for side in (x, y))
    for flag, names in (("--x", x), ("--y", y)):
        if not names:
            raise UserError(
                f"--csv needs {flag}: choose from the columns {listed(table.names)}."
                + delimited.headerless(table)
            )
    read = {name: reading.column(table, name) for name in (*x, *y)}
    columns = {name: values for name, (values, _) in read.items()}
    notes = [note for _, its_notes in read.values() for note in its_notes]
    return curve(path.stem, str(path), columns, x, y, notes)


def named(name: str, x: Sequence[str] = (), y: Sequence[str] = ()) -> Curve:
    """Return a data set that pip brought, its usual columns or those chosen."""
    if name not in DATA_SETS:
        raise unknown("data set", name, ("textbook", *DATA_SETS), hint=" Your own file: --csv FILE")
    row = DATA_SETS[name]
    try:
        columns = row.load()
    except ModuleNotFoundError as error:
        raise UserError(
            f"--data {name} needs {error.name}: pip install -r requirements.txt"
        ) from error
    x, y = x or row.x, y or row.y
    for each in (*x, *y):
        if each not in columns:
            raise unknown("column", each, columns)
    return curve(name, row.source, columns, x, y)


def curve(
    name: str,
    source: str,
    columns: Mapping[str, np.ndarray],
    x: Sequence[str],
    y: Sequence[str],
    notes: Sequence[str] = (),
) -> Curve:
    """Return the curve of columns [n], whose NaN are missing values: those rows are dropped.

    A constant input says nothing about the output: among others it is dropped, alone it is
    refused.
    """
    notes = list(notes)
    twice = {each for each in (*x, *y) if (*x, *y).count(each) > 1}
    if twice:
        raise UserError(
            f"a column can be chosen once in --x and --y. Got {listed(sorted(twice))} twice."
        )
    missing = {each: np.isnan(columns[each]) for each in (*x, *y)}
    dropped = np.any(list(missing.values()), axis=0)
    if dropped.any():
        where = ", ".join(f"{each}: {gaps.sum()}" for each, gaps in missing.items() if gaps.any())
        notes.append(f"{dropped.sum()} of {len(dropped)} rows dropped: missing values ({where})")
    rows = len(dropped) - int(dropped.sum())
    if rows < 2:
        raise UserError(f"{source} must have at least 2 complete rows. {said(notes, rows)}")
    kept = {each: columns[each][~dropped].astype(np.float64) for each in (*x, *y)}
    for each, values in kept.items():
        _require_squares(each, values, source)
    constant = [each for each in x if np.ptp(kept[each]) == 0]
    if len(constant) == len(x):
        why = f" ({'; '.join(notes)})" if notes else ""
        raise UserError(f"--x must vary from row to row. {listed(x)} of {source} is constant{why}.")
    if constant:
        notes.append(f"input {listed(constant)} dropped: constant")
    x = tuple(each for each in x if each not in constant)
    inputs = np.stack([kept[each] for each in x], axis=1)
    repeated = rows - len(np.unique(inputs, axis=0))
    if repeated:
        notes.append(f"{repeated} of {rows} rows repeat the inputs of another row (kept)")
    outputs = np.stack([kept[each] for each in y], axis=1)
    return Curve(name, inputs, outputs, x, tuple(y), source, tuple(notes))


LARGEST = 1e50  # and the smallest range is 1 / LARGEST: errors and distances are squared, twice


def _require_squares(name: str, values: np.ndarray, source: str) -> None:
    """Refuse a column so large, or of so small a range, that squares of it are not numbers."""
    size = np.abs(values).max()
    spread = 0.0 if size > LARGEST else np.ptp(values)
    if size > LARGEST or 0 < spread < 1 / LARGEST:
        holds = f"numbers up to {size:.3g}" if not spread else f"a range of {spread:.3g} only"
        raise UserError(
            f"{name!r} of {source} holds {holds}: rescale it, so that its numbers are at most "
            f"{LARGEST:.0e} and their range is at least {1 / LARGEST:.0e}."
        )


def said(notes: Sequence[str], rows: int) -> str:
    """Return what came, with the notes that explain it."""
    return f"Got {rows}" + (f" ({'; '.join(notes)})." if notes else ".")


@dataclass(frozen=True)
class DataSet:
    """A named data set: its loader, its usual columns, where it comes from."""

    load: Callable[[], Columns]
    x: tuple[str, ...]
    y: tuple[str, ...]
    source: str


def statsmodels(name: str) -> Callable[[], Columns]:
    """Return the loader of one of statsmodels's data sets; names in lower case."""

    def load() -> Columns:
        import importlib

        frame = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data
        columns = {each.lower(): frame[each].to_numpy(np.float64) for each in frame}
        if frame.index.dtype.kind == "M":
            columns["year"] = np.array([reading.decimal_year(day) for day in frame.index])
        return columns

    return load


def diabetes() -> Columns:
    """Return scikit-learn's diabetes data in their own units."""
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame
    return {name: frame[name].to_numpy(np.float64) for name in frame}


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

DATA_SETS = {
    "engel": DataSet(
        statsmodels("engel"),
        ("income",),
        ("foodexp",),
        "Engel's food expenditure of 235 Belgian households (statsmodels)",
    ),
    "nile": DataSet(
        statsmodels("nile"),
        ("year",),
        ("volume",),
        "annual flow of the Nile at Aswan, 1871-1970 (statsmodels)",
    ),
    "sunspots": DataSet(
        statsmodels("sunspots"),
        ("year",),
        ("sunactivity",),
        "yearly sunspot numbers, 1700-2008 (statsmodels)",
    ),
    "co2": DataSet(
        statsmodels("co2"),
        ("year",),
        ("co2",),
        "weekly CO₂ at Mauna Loa, 1958-2001 (statsmodels)",
    ),
    "elnino": DataSet(
        statsmodels("elnino"),
        ("year",),
        MONTHS,
        "monthly sea temperatures of the El Niño region 1+2, 1950-2010 (statsmodels)",
    ),
    "diabetes": DataSet(
        diabetes,
        ("bmi",),
        ("target",),
        "disease progression of 442 patients, Efron et al. 2004 (scikit-learn)",
    ),
}
