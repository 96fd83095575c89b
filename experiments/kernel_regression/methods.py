"""The methods of the kernel-regression experiment, fitted to data of any size.

Up to `--left-out-rows` rows, each row is left out and predicted from all the others: in training,
in the search, in the table. Of larger data a sample of rows is, each from all the others still, so
that time grows with n instead of n²; training takes a batch of the sample at each step.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.data.curves import Curve
from experiments.harness.errors import UserError
from experiments.harness.parts import in_parts
from experiments.harness.training import fit
from experiments.kernel_regression import baselines

KernelName = Literal[
    "gaussian", "boxcar", "triangular", "epanechnikov", "biweight", "triweight", "tricube",
    "cosine", "logistic", "laplace",
]  # fmt: skip
FIXED, LEARNED, SEARCHED, ENTMAX = (
    "fixed bandwidth", "learned bandwidth", "searched bandwidth", "entmax, α learned",
)  # fmt: skip
LEFT_OUT_ROWS, LEFT_OUT_PAIRS = 4000, 2**31  # at most, by default
BATCH_PAIRS = 2**21  # of left-out rows and keys in a training step on a batch
BATCH_ROWS = (16, 256)  # at least and at most


@dataclass(frozen=True)
class FitOptions:
    """How to fit."""

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
    optimizer: Literal["lbfgs", "adam"] | None = None
    """The Optax optimizer of bandwidth and α. Default: lbfgs, all rows left out at each step; for
    more than --left-out-rows adam, a batch of them at each step."""
    steps: int | None = None
    """Training steps. Default: 30 of lbfgs, 300 of adam, 60 of adam on batches."""
    learning_rate: float = 0.1
    """Adam's, at the start; it falls to 0 along a cosine."""
    left_out_rows: int | None = None
    """At most so many rows, a seeded sample of larger data, are left out and predicted from all the
    others: in training, in the search, for the errors reported and in predictions.csv. All rows are
    keys. Default: 4000, and from 536,871 rows on 2^31 / rows."""
    seed: int = 0
    """Seed of the textbook's noise and of samples."""

    def __post_init__(self):
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise UserError(f"--bandwidth must be positive and finite. Got {self.bandwidth}.")
        for flag, number in (("steps", self.steps), ("left-out-rows", self.left_out_rows)):
            if number is not None and number < 2:
                raise UserError(f"--{flag} must be at least 2. Got {number}.")
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"--learning-rate must be positive. Got {self.learning_rate}.")


@dataclass(frozen=True)
class Problem:
    """Data to fit, and to test on where the truth is known."""

    data: Curve
    test: Curve | None
    start: Any  # bandwidth: a number, or one per input [d]
    rows: np.ndarray | None = None  # those left out one by one; None: all

    @property
    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and outputs of the rows that are left out one by one."""
        return baselines.at(self.data.x, self.rows), baselines.at(self.data.y, self.rows)


@dataclass(frozen=True)
class Fitted:
    """One row of the table: a method fitted to one data set."""

    predict: Callable[[np.ndarray], np.ndarray]  # query [q, d] -> [q, outputs]
    left_out: np.ndarray  # [rows, outputs], each left-out row predicted from all others
    neighbours: Callable[[np.ndarray], np.ndarray]  # query [q, d] -> effective ones [q]
    model: Any = None  # the NadarayaWatson, where the method is one
    bandwidth: Any = None  # a number, one per input [d], or None: there is none
    alpha: float | None = None
    history: tuple[Mapping[str, Any], ...] = ()  # rows of training, if it was trained


def fit_all(problem: Problem, options: FitOptions, directory: Path) -> dict[str, Fitted]:
    """Fit the methods, those without a query first; trainings go to a directory each."""
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
    n, begin = len(problem.data.x), problem.start

    def train(name: str, model: Any) -> Fitted:
        print(f"n = {n}: {name}")
        where = directory / f"{n}-{name.split(',')[0].split()[0]}"
        return trained(model, problem, options, where)

    searched = NadarayaWatson(begin, normalizer=chosen, **common)
    search(searched, problem, options)
    return {
        **without_weights(problem),
        FIXED: of_model(NadarayaWatson(begin, normalizer=chosen, **common), problem),
        LEARNED: train(LEARNED, NadarayaWatson(begin, normalizer=chosen, **common)),
        SEARCHED: of_model(searched, problem),
        ENTMAX: train(
            ENTMAX,
            NadarayaWatson(begin, normalizer=normalizers.Entmax(1.5), learn_alpha=True, **common),
        ),
    }


def without_weights(problem: Problem) -> dict[str, Fitted]:
    """Return the baselines: attention by a flat kernel, and the pooling that is none.

    For large data by their closed forms, which are the same numbers to rounding.
    """
    from attn_jax.nn import NadarayaWatson

    x, y, n = problem.data.x, problem.data.y, len(problem.data.x)

    def closed(baseline: Callable, neighbours: float) -> Fitted:
        predict, left_out = baseline(x, y, problem.rows)
        return Fitted(predict, left_out, lambda query: np.full(len(query), neighbours))

    if problem.rows is None:
        flat = {"kernel": _flat, "learn_bandwidth": False}
        mean = of_model(NadarayaWatson(**flat), problem, bandwidth=None)
        line = of_model(NadarayaWatson(degree=1, **flat), problem, bandwidth=None)
    else:
        mean = closed(baselines.average_pooling, float(n))
        line = closed(baselines.linear_layer, float(n))
    largest = closed(baselines.max_pooling, 1.0)
    return {"average pooling": mean, "max pooling": largest, "linear layer": line}


def search(model: Any, problem: Problem, options: FitOptions) -> None:
    """Set the model's bandwidth by the global search."""
    x, y, rows = problem.data.x, problem.data.y, problem.rows
    if rows is None:
        model.search(x, y, criterion=options.criterion)
        return
    from attn_jax import regression

    most = len(regression.sampled_rows(len(x)))
    rows = rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(int)]
    print(f"n = {len(x)}: {SEARCHED}, {len(rows)} rows left out")
    model.search(x, y, criterion=options.criterion, rows=rows, on_value=_saying_now_and_then())


def _saying_now_and_then() -> Callable[[Any, float], None]:
    """Return what says each ten seconds how far a search is."""
    looks, said = 0, time.perf_counter()

    def on_value(bandwidth: Any, value: float) -> None:
        nonlocal looks, said
        looks += 1
        if time.perf_counter() - said >= 10:
            said = time.perf_counter()
            print(f"  {looks} bandwidths looked at, the last one's value {value:.4g}", flush=True)

    return on_value


def trained(model: Any, problem: Problem, options: FitOptions, directory: Path) -> Fitted:
    """Train the model's bandwidth (and alpha) on the leave-one-out error."""
    import optax

    sampled = problem.rows is not None
    chosen = options.optimizer or ("adam" if sampled else "lbfgs")
    usual = {"lbfgs": 30, "adam": 60 if sampled else 300}[chosen]
    steps = options.steps or usual
    rate = optax.cosine_decay_schedule(options.learning_rate, steps)

    def loss(model, batch, rng):
        del rng  # nothing is random
        watched = {"bandwidth": model.bandwidth.mean()}
        if model.free_alpha is not None:
            watched["alpha"] = model.normalizer.alpha
        return model.leave_one_out_error(batch["x"], batch["y"], rows=batch.get("rows")), watched

    result = fit(
        model,
        loss,
        batches(problem, on_batches=chosen == "adam", seed=options.seed),
        dataclasses.replace(options, steps=steps),
        optimizer=optax.lbfgs() if chosen == "lbfgs" else optax.adam(rate),
        directory=directory,
        log_every=1,
    )
    return of_model(result.model, problem, history=tuple(result.history))


def batches(problem: Problem, *, on_batches: bool, seed: int) -> Any:
    """Return what training takes: all the data each time, and rows to leave out where sampled."""
    from attn_jax import training

    data = training.Batches({"x": problem.data.x, "y": problem.data.y})
    if problem.rows is None:
        return data
    least, most = BATCH_ROWS
    size = min(max(BATCH_PAIRS // len(problem.data.x), least), most, len(problem.rows))
    rows = {"rows": problem.rows}
    return LeftOut(data, training.Batches(rows, batch_size=size if on_batches else None, seed=seed))


class LeftOut:
    """All the data at each step, and a batch of the rows that are left out."""

    def __init__(self, data: Any, rows: Any):
        self._data, self._rows = data, rows

    def __iter__(self) -> "LeftOut":
        """The batches from the first one on."""
        return LeftOut(iter(self._data), iter(self._rows))

    def __next__(self) -> dict[str, Any]:
        """The next rows beside the data."""
        return next(self._data) | next(self._rows)

    def get_state(self) -> dict[str, Any]:
        """The position in both."""
        return {"data": self._data.get_state(), "rows": self._rows.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position that `get_state` gave."""
        self._data.set_state(state["data"])
        self._rows.set_state(state["rows"])


def of_model(
    model: Any, problem: Problem, *, history: tuple = (), bandwidth: Any = "its own"
) -> Fitted:
    """Return the answers of a model of one data set."""
    x, y = problem.data.x, problem.data.y
    if bandwidth == "its own":
        known = np.asarray(model.bandwidth)
        bandwidth = float(known) if known.ndim == 0 else known
    alpha = float(model.normalizer.alpha) if hasattr(model.normalizer, "alpha") else None
    if problem.rows is None:
        predict, left_out, neighbours = (
            lambda query: np.asarray(model(query, x, y)),
            np.asarray(model.leave_one_out(x, y)),
            lambda query: model.effective_neighbours(query, x),
        )
    else:
        predict = in_parts(model, _prediction, x, y)
        left_out = in_parts(model, _left_out, x, y)(problem.rows)
        neighbours = in_parts(model, _neighbours, x)
    return Fitted(predict, left_out, neighbours, model, bandwidth, alpha, history)


def _prediction(model: Any, query: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    return model(query, x, y)


def _left_out(model: Any, rows: np.ndarray, x: np.ndarray, y: np.ndarray) -> Any:
    return model.leave_one_out(x, y, rows=rows)


def _neighbours(model: Any, query: np.ndarray, x: np.ndarray) -> Any:
    return model.effective_neighbours(query, x)


def test_error(problem: Problem, fitted: Fitted) -> float:
    """Return the mean squared error against the truth at the test points."""
    return float(np.mean((problem.test.y - fitted.predict(problem.test.x)) ** 2))


def band_of(fitted: Fitted, problem: Problem) -> Callable[[np.ndarray], tuple]:
    """Return query [q, d] -> lower and upper end [q, outputs] of a model's confidence band."""
    x, y = problem.data.x, problem.data.y
    if problem.rows is None:
        return lambda query: tuple(map(np.asarray, fitted.model.confidence_band(query, x, y)))
    variance = fitted.model.noise_variance(x, y, rows=problem.rows)

    def question(model, query, x, y):
        return model.confidence_band(query, x, y, variance=variance)

    return in_parts(fitted.model, question, x, y)


def _flat(u: Any) -> Any:
    """The kernel of a bandwidth without end: every key weighs the same."""
    return 0 * u
