"""Kernel regression is attention: query = where to predict, key = x, value = y.

    python -m experiments kernel-regression                     the textbook curve, about a minute
    python -m experiments kernel-regression --data engel
    python -m experiments kernel-regression --csv FILE --x COLUMN --y COLUMN

Expected on the textbook curve (float64, test error against the noiseless curve): a fixed bandwidth
of 1 stays near 0.38 however many points there are; the bandwidth trained on the leave-one-out error
goes to 0.203, 0.130, 0.126 and its test error falls to 0.0285, 0.0096, 0.0053 at n = 50, 500, 1000.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments import curves, tables
from experiments.curves import Curve, CurveOptions
from experiments.errors import UserError
from experiments.runs import Output, Run, start

TEXTBOOK_SIZES = (50, 500, 1000)
KernelName = Literal[
    "gaussian", "boxcar", "triangular", "epanechnikov", "biweight", "triweight", "tricube",
    "cosine", "logistic", "laplace",
]  # fmt: skip
FIXED, LEARNED, SEARCHED, ENTMAX = (
    "fixed bandwidth", "learned bandwidth", "searched bandwidth", "entmax, α learned",
)  # fmt: skip


@dataclass(frozen=True)
class KernelRegression:
    """Fit a curve by attention: baselines without a query, a fixed, a learned, a searched kernel.

    Prints a table, and writes config.json, metrics.json, predictions.csv and figures.
    """

    curve: CurveOptions = field(default_factory=CurveOptions)
    output: Output = field(default_factory=Output)
    kernel: KernelName = "gaussian"
    """The kernel."""
    normalizer: Literal["softmax", "sparsemax", "entmax15"] = "softmax"
    """What turns log-kernels into weights; softmax is Nadaraya-Watson."""
    degree: Literal[0, 1] = 0
    """0 fits a constant around each query, 1 a line."""
    outside: Literal["nearest", "mean", "zero", "nan"] = "nearest"
    """The answer for a query that no point supports (compact kernels)."""
    bandwidth: float | None = None
    """Fixed bandwidth, and the start of training. Default: 1 for the textbook curve, Scott's rule
    in each input elsewhere."""
    criterion: Literal["loo", "aicc"] = "loo"
    """What the bandwidth search minimizes: leave-one-out error or corrected AIC."""
    optimizer: Literal["lbfgs", "adam"] = "lbfgs"
    """The Optax optimizer of bandwidth and α; all points at each step."""
    steps: int | None = None
    """Training steps. Default: 30 of lbfgs, 300 of adam."""
    learning_rate: float = 0.1
    """Adam's, at the start; it falls to 0 along a cosine."""
    max_rows: int = 4000
    """Larger data are thinned to a random sample of this size: time and memory grow with rows²."""
    seed: int = 0
    """Seed of the textbook's noise and of the sample."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds."""

    def __post_init__(self):
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise UserError(f"--bandwidth must be positive and finite. Got {self.bandwidth}.")
        for flag, number in (("steps", self.steps), ("max-rows", self.max_rows)):
            if number is not None and number < 2:
                raise UserError(f"--{flag} must be at least 2. Got {number}.")
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"--learning-rate must be positive. Got {self.learning_rate}.")


@dataclass(frozen=True)
class Fitted:
    """One row of the table: a method fitted to one data set."""

    predict: Callable[[np.ndarray], np.ndarray]  # query [q, d] -> [q, outputs]
    left_out: np.ndarray  # [n, outputs], each point predicted from the others
    model: Any = None  # the NadarayaWatson, where the method is one
    bandwidth: Any = None  # a number, one per input [d], or None: there is none
    alpha: float | None = None
    history: tuple[Mapping[str, Any], ...] = ()  # rows of training, if it was trained


@dataclass(frozen=True)
class Problem:
    """Data to fit, and to test on where the truth is known."""

    data: Curve
    test: Curve | None
    start: Any  # bandwidth: a number, or one per input [d]


def run(options: KernelRegression) -> None:
    """Fit every method to every data set; print, write and draw the results."""
    if options.smoke:  # all of its time is compiling
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        options = dataclasses.replace(options, steps=options.steps or 5)
    import jax

    jax.config.update("jax_enable_x64", True)
    problems = load(options)
    output = start("kernel-regression", options, options.output, resume=options.resume)
    describe(problems)

    fits: dict[int, dict[str, Fitted]] = {}
    rows: list[dict[str, Any]] = []
    for problem in problems:
        n = len(problem.data.x)
        fits[n] = fit_all(problem, options, output)
        rows += [table_row(problem, name, each) for name, each in fits[n].items()]
        output.write_metrics({"rows": rows})  # what is done stays, whatever comes
    output.write_predictions(predictions(problems, fits))
    tables.print_table(
        [readable(row) for row in rows],
        title=problems[0].data.source if len(problems) == 1 else "the textbook curve",
    )

    from experiments import kernel_regression_figures as figures

    for name, figure in figures.draw(problems, fits):
        output.write_figure(name, figure)
    print(f"\nresults in  {output.directory}/")
    print(f"pictures in {output.directory / 'figures'}/")


def load(options: KernelRegression) -> list[Problem]:
    """Return the data sets: three sizes of the textbook's curve, or the one that was asked for."""
    chosen = options.curve
    textbook = chosen.csv is None and chosen.data == "textbook"
    if textbook and chosen.n is None:
        sizes = (20, 30) if options.smoke else TEXTBOOK_SIZES
        loaded = [curves.load(dataclasses.replace(chosen, n=n), seed=options.seed) for n in sizes]
    else:
        loaded = [curves.load(chosen, seed=options.seed)]
    most = min(options.max_rows, 60) if options.smoke else options.max_rows
    return [
        Problem(
            thinned(data, most, options.seed),
            curves.textbook_test() if textbook else None,
            initial_bandwidth(data, options, textbook),
        )
        for data in loaded
    ]


def thinned(data: Curve, most: int, seed: int) -> Curve:
    """Return at most this many rows, a seeded random sample in the order of the source."""
    n = len(data.x)
    if n <= most:
        return data
    kept = np.sort(np.random.default_rng(seed).choice(n, most, replace=False))
    note = f"a random sample of {most} of {n} rows (--max-rows)"
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


def fit_all(problem: Problem, options: KernelRegression, output: Run) -> dict[str, Fitted]:
    """Fit the methods, those without a query first."""
    from attn_jax import kernels, normalizers
    from attn_jax.nn import NadarayaWatson

    common = {
        "kernel": kernels.BY_NAME[options.kernel],
        "outside": options.outside,
        "degree": options.degree,
    }
    chosen = {
        "softmax": normalizers.Softmax(),
        "sparsemax": normalizers.Sparsemax(),
        "entmax15": normalizers.Entmax(1.5),
    }[options.normalizer]
    x, y, begin = problem.data.x, problem.data.y, problem.start

    def train(name: str, model: Any) -> Fitted:
        print(f"n = {len(x)}: {name}")
        directory = output.directory / "training" / f"{len(x)}-{name.split(',')[0].split()[0]}"
        return trained(model, x, y, options, directory)

    searched = NadarayaWatson(begin, normalizer=chosen, **common)
    searched.search(x, y, criterion=options.criterion)
    flat = {"kernel": _flat, "learn_bandwidth": False}
    return {
        "average pooling": _of_model(NadarayaWatson(**flat), x, y, bandwidth=None),
        "max pooling": max_pooling(y),
        "linear layer": _of_model(NadarayaWatson(degree=1, **flat), x, y, bandwidth=None),
        FIXED: _of_model(NadarayaWatson(begin, normalizer=chosen, **common), x, y),
        LEARNED: train(LEARNED, NadarayaWatson(begin, normalizer=chosen, **common)),
        SEARCHED: _of_model(searched, x, y),
        ENTMAX: train(
            ENTMAX,
            NadarayaWatson(begin, normalizer=normalizers.Entmax(1.5), learn_alpha=True, **common),
        ),
    }


def trained(
    model: Any, x: np.ndarray, y: np.ndarray, options: KernelRegression, directory: Path
) -> Fitted:
    """Train the model's bandwidth (and alpha) on the leave-one-out error, all points at a time."""
    import optax

    from attn_jax import training

    steps = options.steps or {"lbfgs": 30, "adam": 300}[options.optimizer]
    rate = optax.cosine_decay_schedule(options.learning_rate, steps)
    optimizer = optax.lbfgs() if options.optimizer == "lbfgs" else optax.adam(rate)

    def loss(model, batch, rng):
        del rng  # nothing is random
        watched = {"bandwidth": model.bandwidth.mean()}
        if model.free_alpha is not None:
            watched["alpha"] = model.normalizer.alpha
        return model.leave_one_out_error(batch["x"], batch["y"]), watched

    result = training.fit(
        model,
        loss,
        training.Batches({"x": x, "y": y}),
        steps=steps,
        optimizer=optimizer,
        directory=directory,
        log_every=1,
        seed=options.seed,
    )
    if result.stopped == "interrupted":
        print("interrupted: the same command with --resume goes on here")
        raise KeyboardInterrupt
    return _of_model(result.model, x, y, history=tuple(result.history))


def max_pooling(y: np.ndarray) -> Fitted:
    """Return the largest target for every query: the other pooling that asks no question."""
    largest = y.max(axis=0)
    top = y.argmax(axis=0)
    second = np.sort(y, axis=0)[-2]
    left_out = np.broadcast_to(largest, y.shape).copy()
    left_out[top, np.arange(y.shape[1])] = second
    return Fitted(lambda query: np.broadcast_to(largest, (len(query), y.shape[1])), left_out)


def table_row(problem: Problem, name: str, fitted: Fitted) -> dict[str, Any]:
    """Return the numbers of one method on one data set."""
    from attn_jax import regression

    x, y = problem.data.x, problem.data.y
    row: dict[str, Any] = {"n": len(x), "method": name, "bandwidth": fitted.bandwidth}
    row["alpha"] = fitted.alpha
    row["loo_error"] = float(np.mean((y - fitted.left_out) ** 2))
    where = x
    if problem.test is not None:
        where = problem.test.x
        row["test_error"] = test_error(problem, fitted)
    else:
        row["r_squared"] = float(np.mean(regression.r_squared(y, fitted.predict(x))))
    neighbours = 1.0
    if fitted.model is not None:
        neighbours = float(np.mean(fitted.model.effective_neighbours(where, x)))
    row["effective_neighbours"] = neighbours
    return row


def test_error(problem: Problem, fitted: Fitted) -> float:
    """Return the mean squared error against the truth at the test points."""
    return float(np.mean((problem.test.y - fitted.predict(problem.test.x)) ** 2))


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
    problems: list[Problem], fits: Mapping[int, Mapping[str, Fitted]]
) -> dict[str, np.ndarray]:
    """Return the columns of predictions.csv.

    At the test points where there are any; else at the data, each point predicted from the others.
    The band is of the searched fit.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for problem in problems:
        for name, column in _predicted(problem, fits[len(problem.data.x)]):
            columns.setdefault(name, []).append(column)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _predicted(problem: Problem, fitted: Mapping[str, Fitted]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of one data set, each under a name of its own."""
    data, points = problem.data, problem.test or problem.data
    taken: set[str] = set()

    def named(name: str, column: np.ndarray) -> tuple[str, np.ndarray]:
        while name in taken:  # a column of the user's file may have any name
            name += "_"
        taken.add(name)
        return name, np.asarray(column)

    if problem.test is not None:
        yield named("n", np.full(len(points.x), len(data.x)))
    yield from map(named, points.x_names, points.x.T)
    low, high = fitted[SEARCHED].model.confidence_band(points.x, data.x, data.y)
    for i, output in enumerate(points.y_names):
        yield named(output if problem.test is None else f"{output} (truth)", points.y[:, i])
        prefix = f"{output}: " if len(points.y_names) > 1 else ""
        for method, each in fitted.items():
            values = each.left_out if problem.test is None else each.predict(points.x)
            yield named(prefix + method, values[:, i])
        yield named(f"{prefix}band low", low[:, i])
        yield named(f"{prefix}band high", high[:, i])


def _of_model(
    model: Any, x: np.ndarray, y: np.ndarray, *, history: tuple = (), bandwidth: Any = "its own"
) -> Fitted:
    if bandwidth == "its own":
        known = np.asarray(model.bandwidth)
        bandwidth = float(known) if known.ndim == 0 else known
    alpha = float(model.normalizer.alpha) if hasattr(model.normalizer, "alpha") else None
    return Fitted(
        lambda query: np.asarray(model(query, x, y)),
        np.asarray(model.leave_one_out(x, y)),
        model,
        bandwidth,
        alpha,
        history,
    )


def _flat(u: Any) -> Any:
    """The kernel of a bandwidth without end: every key weighs the same."""
    return 0 * u
