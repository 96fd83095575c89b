"""The methods, fitted to data of any size."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from attn_jax import kernels, normalizers, regression, training
from attn_jax.nn import NadarayaWatson
from experiments.harness.parts import in_parts
from experiments.harness.training import fit
from experiments.kernel_regression import Fit, baselines
from experiments.kernel_regression.data import Problem

FIXED, LEARNED, SEARCHED, ENTMAX = (
    "fixed bandwidth", "learned bandwidth", "searched bandwidth", "entmax, α learned",
)  # fmt: skip
BATCH_PAIRS = 2**21  # of left-out rows and keys in a training step on a batch
BATCH_ROWS = (16, 256)  # at least and at most
Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Fitted:
    """One row of the table: a method fitted to one data set."""

    predict: Predict  # query [q, d] -> [q, outputs]
    left_out: np.ndarray  # [rows, outputs], each left-out row predicted from all others
    neighbours: Predict  # query [q, d] -> effective ones [q]
    model: NadarayaWatson | None = None
    bandwidth: float | np.ndarray | None = None
    alpha: float | None = None
    history: tuple[Mapping[str, Any], ...] = ()  # rows of training, if it was trained


Results = Sequence[tuple[Problem, Mapping[str, Fitted]]]  # of each problem, by method


def fit_all(problem: Problem, options: Fit, directory: Path) -> dict[str, Fitted]:
    """Fit the methods, those without a query first; trainings go to a directory each."""
    x, y, n = problem.data.x, problem.data.y, len(problem.data.x)
    chosen = normalizers.BY_NAME[options.normalizer]()
    make = partial(
        NadarayaWatson,
        problem.bandwidth,
        kernel=kernels.BY_NAME[options.kernel],
        outside=options.outside,
        degree=options.degree,
    )

    def baseline(fit: Callable, neighbours: int) -> Fitted:
        predict, left_out = fit(x, y, problem.rows)
        return Fitted(predict, left_out, lambda query: np.full(len(query), float(neighbours)))

    def trained(name: str, model: NadarayaWatson) -> Fitted:
        print(f"n = {n}: {name}")
        return train(model, problem, options, directory / f"{n}-{name.split(',')[0].split()[0]}")

    searched = make(normalizer=chosen)
    search(searched, problem, options)
    return {
        "average pooling": baseline(baselines.average_pooling, n),
        "max pooling": baseline(baselines.max_pooling, 1),
        "linear layer": baseline(baselines.linear_layer, n),
        FIXED: of_model(make(normalizer=chosen), problem),
        LEARNED: trained(LEARNED, make(normalizer=chosen)),
        SEARCHED: of_model(searched, problem),
        ENTMAX: trained(ENTMAX, make(normalizer=normalizers.Entmax(1.5), learn_alpha=True)),
    }


def search(model: NadarayaWatson, problem: Problem, options: Fit) -> None:
    """Set the model's bandwidth by the global search; say each ten seconds how far it is."""
    x, y = problem.data.x, problem.data.y
    rows = usual = regression.sampled_rows(len(x))
    if problem.sampled:
        rows = problem.rows
        if len(rows) > len(usual):
            rows = rows[np.linspace(0, len(rows) - 1, len(usual)).astype(int)]
        print(f"n = {len(x)}: {SEARCHED}, {len(rows)} rows left out")
    count, said = 0, time.perf_counter()

    def on_value(bandwidth: Any, value: float) -> None:
        nonlocal count, said
        count += 1
        if time.perf_counter() - said >= 10:
            said = time.perf_counter()
            print(f"  {count} bandwidths evaluated, the last one's value {value:.4g}", flush=True)

    model.search(x, y, criterion=options.criterion, rows=rows, on_value=on_value)


def train(model: NadarayaWatson, problem: Problem, options: Fit, directory: Path) -> Fitted:
    """Train the model's bandwidth (and alpha) on the leave-one-out error."""
    optimizer = options.optimizer or ("adam" if problem.sampled else "lbfgs")
    usual = {"lbfgs": 30, "adam": 60 if problem.sampled else 300}[optimizer]
    steps = options.steps or usual
    rate = optax.cosine_decay_schedule(options.learning_rate, steps)

    def loss(model, batch, rng):
        del rng  # nothing is random
        watched = {"bandwidth": model.bandwidth.mean()}
        if model.free_alpha is not None:
            watched["alpha"] = model.normalizer.alpha
        return model.leave_one_out_error(batch["x"], batch["y"], rows=batch.get("rows")), watched

    found = fit(
        model,
        loss,
        batches(problem, on_batches=optimizer == "adam", seed=options.seed),
        replace(options, steps=steps),
        optimizer=optax.lbfgs() if optimizer == "lbfgs" else optax.adam(rate),
        directory=directory,
        log_every=1,
    )
    return of_model(found.model, problem, history=tuple(found.history))


def batches(problem: Problem, *, on_batches: bool, seed: int) -> training.Batches:
    """Return what training takes: all the data each time, and rows to leave out where sampled."""
    data = {"x": problem.data.x, "y": problem.data.y}
    if not problem.sampled:
        return training.Batches(data)
    least, most = BATCH_ROWS
    size = min(max(BATCH_PAIRS // len(data["x"]), least), most, len(problem.rows))
    return LeftOut(data, problem.rows, batch_size=size if on_batches else None, seed=seed)


class LeftOut(training.Batches):
    """All the data at each step, and a batch of the rows that are left out."""

    def __init__(self, data: Mapping[str, np.ndarray], rows: np.ndarray, **options: Any):
        super().__init__({"rows": rows}, **options)
        self._data = {name: jax.numpy.asarray(each) for name, each in data.items()}

    def __next__(self) -> dict[str, Any]:
        """The next rows beside the data."""
        return self._data | super().__next__()


def of_model(model: NadarayaWatson, problem: Problem, *, history: tuple = ()) -> Fitted:
    """Return what the table and the pictures take of a model of one data set."""
    x, y = problem.data.x, problem.data.y
    bandwidth = np.asarray(model.bandwidth)
    return Fitted(
        predict=in_parts(model, NadarayaWatson.__call__, x, y),
        left_out=in_parts(model, _left_out, x, y)(problem.rows),
        neighbours=in_parts(model, NadarayaWatson.effective_neighbours, x),
        model=model,
        bandwidth=bandwidth if bandwidth.ndim else float(bandwidth),
        alpha=float(model.normalizer.alpha) if hasattr(model.normalizer, "alpha") else None,
        history=history,
    )


def _left_out(model: NadarayaWatson, rows: Any, x: Any, y: Any) -> Any:
    return model.leave_one_out(x, y, rows=rows)


def test_error(problem: Problem, fitted: Fitted) -> float:
    """Return the mean squared error against the truth at the test points."""
    return float(np.mean((problem.test.y - fitted.predict(problem.test.x)) ** 2))


def band_of(fitted: Fitted, problem: Problem) -> Callable[[np.ndarray], tuple]:
    """Return query [q, d] -> lower and upper end [q, outputs] of a model's confidence band."""
    x, y = problem.data.x, problem.data.y
    rows = problem.rows if problem.sampled else None
    return in_parts(fitted.model, _band, x, y, _noise_variance(fitted.model, x, y, rows=rows))


_noise_variance = nnx.jit(NadarayaWatson.noise_variance)


def _band(model: NadarayaWatson, query: Any, x: Any, y: Any, variance: Any) -> Any:
    return model.confidence_band(query, x, y, variance=variance)
