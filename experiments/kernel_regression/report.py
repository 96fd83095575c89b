"""Every method on each data set: rows of the table, columns of predictions.csv, pictures."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from attn_jax import regression
from experiments.harness.runs import start
from experiments.harness.tables import print_table
from experiments.kernel_regression import Fit, data, figures, methods
from experiments.kernel_regression.data import Problem
from experiments.kernel_regression.methods import SEARCHED, Fitted, Results, band_of, test_error

MOST_NEIGHBOURS = 500  # rows of a sample whose effective neighbours are counted
HEADINGS = {
    "alpha": "α",
    "loo_error": "LOO error",
    "test_error": "test error",
    "r_squared": "R²",
    "effective_neighbours": "effective\nneighbours",
}


def fit(options: Fit) -> None:
    """Fit every method to every data set; print, write and draw the results."""
    jax.config.update("jax_enable_x64", True)
    problems = data.load(options)
    output = start(
        "kernel-regression",
        options,
        options.output,
        resume=options.resume,
        checksums={"data": [each.checksum for each in problems]},
    )
    for problem in problems:
        curve = problem.data
        print(f"{curve.source}: {len(curve.x)} rows, {curve.x_names} → {curve.y_names}")
        for note in curve.notes:
            print(f"  {note}")
    results = []
    rows = []
    for problem in problems:
        fitted = methods.fit_all(problem, options, output.directory / "training")
        results.append((problem, fitted))
        rows += [row(problem, name, each) for name, each in fitted.items()]
        output.write_metrics({"rows": rows})  # what is done stays, whatever comes
    output.write_predictions(predictions(results))
    title = problems[0].data.source if len(problems) == 1 else "the textbook curve"
    print_table(list(map(readable, rows)), title=title)
    for name, figure in figures.draw(results):
        output.write_figure(name, figure)
    output.say_where()


def row(problem: Problem, name: str, fitted: Fitted) -> dict[str, Any]:
    """Return the row of metrics.json of one method on one data set."""
    x, y = problem.left_out
    if problem.test is not None:
        error, where = {"test_error": test_error(problem, fitted)}, problem.test.x
    else:
        error = {"r_squared": float(np.mean(regression.r_squared(y, fitted.predict(x))))}
        where = x[:: len(x) // MOST_NEIGHBOURS + 1] if problem.sampled else x
    return {
        "n": len(problem.data.x),
        "method": name,
        "bandwidth": fitted.bandwidth,
        "alpha": fitted.alpha,
        "loo_error": float(np.mean((y - fitted.left_out) ** 2)),
        **error,
        "effective_neighbours": float(np.mean(fitted.neighbours(where))),
    }


def readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table: several bandwidths in one cell."""
    bandwidth = row["bandwidth"]
    if isinstance(bandwidth, np.ndarray):
        row = {**row, "bandwidth": ", ".join(f"{each:.4g}" for each in bandwidth)}
    return {HEADINGS.get(name, name): value for name, value in row.items()}


def predictions(results: Results) -> dict[str, np.ndarray]:
    """Return the columns of predictions.csv.

    At the test points where there are any; else at the rows that are left out one by one, each
    predicted from all others. The band is of the searched fit.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for problem, fitted in results:
        taken = set()
        for name, column in _columns(problem, fitted):
            while name in taken:  # a column of the user's file may have any name
                name += "_"
            taken.add(name)
            columns.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _columns(problem: Problem, fitted: Mapping[str, Fitted]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of one data set."""
    data, tested = problem.data, problem.test is not None
    x, y = (problem.test.x, problem.test.y) if tested else problem.left_out
    low, high = band_of(fitted[SEARCHED], problem)(x)
    values = {name: each.predict(x) if tested else each.left_out for name, each in fitted.items()}
    if tested:
        yield "n", np.full(len(x), len(data.x))
    yield from zip(data.x_names, x.T, strict=True)
    for i, output in enumerate(data.y_names):
        yield f"{output} (truth)" if tested else output, y[:, i]
        prefix = f"{output}: " if len(data.y_names) > 1 else ""
        for name, each in (values | {"band low": low, "band high": high}).items():
            yield prefix + name, each[:, i]
