"""Kernel regression is attention: query = where to predict, key = x, value = y.

    python -m experiments kernel-regression                     the textbook curve, about a minute
    python -m experiments kernel-regression --data engel
    python -m experiments kernel-regression --csv FILE --x COLUMN --y COLUMN

Expected on the textbook curve (float64, test error against the noiseless curve): a fixed bandwidth
of 1 stays near 0.38 however many points there are; the bandwidth trained on the leave-one-out error
goes to 0.203, 0.130, 0.126 and its test error falls to 0.0285, 0.0096, 0.0053 at n = 50, 500, 1000.

Of larger data all rows are keys; a sample of them, `--left-out-rows`, is left out one by one in
training, in the search and in the table, in bounded memory.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.data import curves
from experiments.data.curves import Curve, CurveOptions
from experiments.harness import tables
from experiments.harness.runs import Output, compile_quickly, start
from experiments.kernel_regression import methods as fits
from experiments.kernel_regression.methods import SEARCHED, FitOptions, Fitted, Problem

TEXTBOOK_SIZES = (50, 500, 1000)
SMOKE_ROWS = 60
MOST_NEIGHBOURS = 500  # rows of a sample that are asked for their neighbours: the mean is reported


@dataclass(frozen=True)
class KernelRegression(FitOptions):
    """Fit a curve by attention: baselines without a query, a fixed, a learned, a searched kernel.

    Prints a table, and writes config.json, metrics.json, predictions.csv and figures.
    """

    curve: CurveOptions = field(default_factory=CurveOptions)
    output: Output = field(default_factory=Output)
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds, of 60 rows at most."""


def run(options: KernelRegression) -> None:
    """Fit every method to every data set; print, write and draw the results."""
    if options.smoke:
        compile_quickly()
        options = dataclasses.replace(options, steps=options.steps or 5)
    import jax

    jax.config.update("jax_enable_x64", True)
    problems = load(options)
    output = start("kernel-regression", options, options.output, resume=options.resume)
    describe(problems)

    fitted: dict[int, dict[str, Fitted]] = {}
    rows: list[dict[str, Any]] = []
    for problem in problems:
        n = len(problem.data.x)
        fitted[n] = fits.fit_all(problem, options, output.directory / "training")
        rows += [table_row(problem, name, each) for name, each in fitted[n].items()]
        output.write_metrics({"rows": rows})  # what is done stays, whatever comes
    output.write_predictions(predictions(problems, fitted))
    tables.print_table(
        [readable(row) for row in rows],
        title=problems[0].data.source if len(problems) == 1 else "the textbook curve",
    )

    from experiments.kernel_regression import figures

    for name, figure in figures.draw(problems, fitted):
        output.write_figure(name, figure)
    output.say_where()


def load(options: KernelRegression) -> list[Problem]:
    """Return the data sets: three sizes of the textbook's curve, or the one that was asked for."""
    chosen = options.curve
    textbook = chosen.csv is None and chosen.data == "textbook"
    if textbook and chosen.n is None:
        sizes = (20, 30) if options.smoke else TEXTBOOK_SIZES
        loaded = [curves.load(dataclasses.replace(chosen, n=n), seed=options.seed) for n in sizes]
    else:
        loaded = [curves.load(chosen, seed=options.seed)]
    return [
        problem(thinned(data, options) if options.smoke else data, options, textbook)
        for data in loaded
    ]


def problem(data: Curve, options: KernelRegression, textbook: bool) -> Problem:
    """Return what is to be fitted, with the sample of rows to leave out of large data."""
    n = len(data.x)
    usual = min(fits.LEFT_OUT_ROWS, max(fits.LEFT_OUT_PAIRS // n, 2))
    rows = sample(n, options.left_out_rows or usual, options.seed)
    if rows is not None:
        note = (
            f"{len(rows)} of {n} rows, a random sample, are left out one by one: in training, "
            "search, table and predictions.csv (--left-out-rows); all rows are keys"
        )
        data = dataclasses.replace(data, notes=(*data.notes, note))
    test = curves.textbook_test() if textbook else None
    return Problem(data, test, initial_bandwidth(data, options, textbook), rows)


def sample(n: int, most: int, seed: int) -> np.ndarray | None:
    """Return a seeded random sample of so many of n rows, in their order; None: they are fewer."""
    if n <= most:
        return None
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def thinned(data: Curve, options: KernelRegression) -> Curve:
    """Return the few rows of a tiny run."""
    n, kept = len(data.x), sample(len(data.x), SMOKE_ROWS, options.seed)
    if kept is None:
        return data
    note = f"a random sample of {len(kept)} of {n} rows (--smoke)"
    return dataclasses.replace(data, x=data.x[kept], y=data.y[kept], notes=(*data.notes, note))


def initial_bandwidth(data: Curve, options: KernelRegression, textbook: bool) -> Any:
    """Return the bandwidth of the fixed row, where training starts too. (Scott 1992, eq. 6.42.)"""
    n, features = data.x.shape
    if options.bandwidth is not None or textbook:
        value = 1.0 if options.bandwidth is None else options.bandwidth
        return value if features == 1 else np.full(features, value)
    scott = np.std(data.x, axis=0, ddof=1) * n ** (-1 / (features + 4))
    return float(scott[0]) if features == 1 else scott


def describe(problems: list[Problem]) -> None:
    """Say what is fitted."""
    for problem in problems:
        data = problem.data
        print(f"{data.source}: {len(data.x)} rows, {data.x_names} → {data.y_names}")
        for note in data.notes:
            print(f"  {note}")


def table_row(problem: Problem, name: str, fitted: Fitted) -> dict[str, Any]:
    """Return the numbers of one method on one data set."""
    from attn_jax import regression

    n, (x, y) = len(problem.data.x), problem.left_out
    row: dict[str, Any] = {"n": n, "method": name, "bandwidth": fitted.bandwidth}
    row["alpha"] = fitted.alpha
    row["loo_error"] = float(np.mean((y - fitted.left_out) ** 2))
    where = x if problem.rows is None else x[:: len(x) // MOST_NEIGHBOURS + 1]
    if problem.test is not None:
        where = problem.test.x
        row["test_error"] = fits.test_error(problem, fitted)
    else:
        row["r_squared"] = float(np.mean(regression.r_squared(y, fitted.predict(x))))
    row["effective_neighbours"] = float(np.mean(fitted.neighbours(where)))
    return row


HEADINGS = {
    "alpha": "α",
    "loo_error": "LOO error",
    "test_error": "test error",
    "r_squared": "R²",
    "effective_neighbours": "effective\nneighbours",
}


def readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table: several bandwidths in one cell."""
    bandwidth = row["bandwidth"]
    if isinstance(bandwidth, np.ndarray):
        row = {**row, "bandwidth": ", ".join(f"{each:.4g}" for each in bandwidth)}
    return {HEADINGS.get(name, name): value for name, value in row.items()}


def predictions(
    problems: list[Problem], fitted: Mapping[int, Mapping[str, Fitted]]
) -> dict[str, np.ndarray]:
    """Return the columns of predictions.csv.

    At the test points where there are any; else at the rows that are left out one by one, each
    predicted from all others. The band is of the searched fit.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for problem in problems:
        for name, column in _predicted(problem, fitted[len(problem.data.x)]):
            columns.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _predicted(problem: Problem, fitted: Mapping[str, Fitted]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of one data set, each under a name of its own."""
    data = problem.data
    x, y = problem.left_out if problem.test is None else (problem.test.x, problem.test.y)
    taken: set[str] = set()

    def named(name: str, column: np.ndarray) -> tuple[str, np.ndarray]:
        while name in taken:  # a column of the user's file may have any name
            name += "_"
        taken.add(name)
        return name, np.asarray(column)

    if problem.test is not None:
        yield named("n", np.full(len(x), len(data.x)))
    yield from map(named, data.x_names, x.T)
    low, high = fits.band_of(fitted[SEARCHED], problem)(x)
    for i, output in enumerate(data.y_names):
        yield named(output if problem.test is None else f"{output} (truth)", y[:, i])
        prefix = f"{output}: " if len(data.y_names) > 1 else ""
        for method, each in fitted.items():
            values = each.left_out if problem.test is None else each.predict(x)
            yield named(prefix + method, values[:, i])
        yield named(f"{prefix}band low", low[:, i])
        yield named(f"{prefix}band high", high[:, i])


COMMANDS = {"run": run}
