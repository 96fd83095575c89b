"""The pictures of the kernel-regression experiment; of large data they show a sample."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attn_jax import plots
from experiments.data import curves
from experiments.harness.parts import in_parts
from experiments.kernel_regression.methods import (
    ENTMAX,
    FIXED,
    LEARNED,
    SEARCHED,
    Fitted,
    Problem,
    band_of,
    test_error,
)

Fits = Mapping[int, Mapping[str, Fitted]]
MOST_OUTPUTS = 3  # pictures of fits and data, for data with many outputs
MOST_WEIGHTS = 256  # queries and keys in a picture of weights of large data


def draw(problems: list[Problem], fits: Fits) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure): fits, weights, training, and error against n where n varies."""
    problem = problems[0]  # the smallest: its points can be told apart
    fitted = fits[len(problem.data.x)]
    yield from fit_figures(problem, fitted)
    yield "weights", weights(problem, fitted)
    yield "training", training(fitted)
    if len(problems) > 1:
        sizes = [len(p.data.x) for p in problems]
        errors = {
            name: [test_error(p, fits[n][name]) for n, p in zip(sizes, problems, strict=True)]
            for name in (LEARNED, ENTMAX, FIXED, "average pooling", "linear layer")
        }
        yield "error_against_n", plots.error_against_n(sizes, errors, exponent=-0.8)


def fit_figures(problem: Problem, fitted: Mapping[str, Fitted]) -> Iterator[tuple[str, Any]]:
    """Yield one figure for each input and output, the other inputs at their median."""
    data = problem.data
    x, y = problem.left_out  # of large data a sample is drawn
    band = band_of(fitted[SEARCHED], problem)
    for i, x_name in enumerate(data.x_names):
        grid = np.linspace(data.x[:, i].min(), data.x[:, i].max(), 400)
        query = np.repeat(np.median(data.x, axis=0)[None], len(grid), axis=0)
        query[:, i] = grid
        low, high = band(query)
        curves_of = {method: fitted[method].predict(query) for method in _labels(fitted).values()}
        for o, y_name in enumerate(data.y_names[:MOST_OUTPUTS]):
            several = len(data.x_names) > 1 or len(data.y_names) > 1
            name = f"fits_{x_name}_{y_name}" if several else "fits"
            others = [each for each in data.x_names if each != x_name]
            truth = None if problem.test is None else curves.textbook_truth(grid)
            yield (
                _file_name(name),
                plots.curve_fit(
                    x[:, i],
                    y[:, o],
                    grid=grid,
                    fits={
                        label: curves_of[method][:, o] for label, method in _labels(fitted).items()
                    },
                    truth=truth,
                    band=(low[:, o], high[:, o]),
                    x_axis=x_name,
                    y_axis=y_name,
                    title=f"{', '.join(others)} at the median" if others else None,
                ),
            )


def weights(problem: Problem, fitted: Mapping[str, Fitted]) -> Any:
    """Attention weights before and after training: queries × keys, both sorted.

    Of large data the weights of some of the keys, among all.
    """
    data = problem.data
    order = np.lexsort(data.x.T[::-1])
    if problem.rows is not None:
        order = order[_evenly(len(order), MOST_WEIGHTS)]
    keys = data.x[order]
    one = keys.shape[1] == 1
    queries = np.linspace(keys[0], keys[-1], 100) if one else keys
    panels = [
        (f"before training: {FIXED}", fitted[FIXED]),
        (f"after: {LEARNED}", fitted[LEARNED]),
        (f"after: entmax, α = {fitted[ENTMAX].alpha:.3g}", fitted[ENTMAX]),
    ]
    x_name = data.x_names[0]
    return plots.attention_heatmaps(
        [_weights(each.model, queries, problem, order) for _, each in panels],
        titles=[title for title, _ in panels],
        query_labels=queries[:, 0] if one else None,
        key_labels=keys[:, 0] if one else None,
        query_axis=f"query: {x_name}" if one else f"query, sorted by {x_name}",
        key_axis=f"key: {x_name}" if one else f"key, sorted by {x_name}",
        columns=3,
    )


def _weights(model: Any, queries: np.ndarray, problem: Problem, order: np.ndarray) -> np.ndarray:
    """Return each query's weights of these keys."""
    if problem.rows is None:
        return np.asarray(model.weights(queries, problem.data.x[order]))

    def question(model, query, keys):
        return model.per_query(lambda weights: weights[:, order], query, keys)

    return in_parts(model, question, problem.data.x)(queries)


def _evenly(n: int, most: int) -> np.ndarray:
    """Return at most so many of n places, the first and the last among them."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(int)


def training(fitted: Mapping[str, Fitted]) -> Any:
    """The leave-one-out error while training, and the bandwidth below it."""
    histories = {name: fitted[name].history for name in (LEARNED, ENTMAX)}
    steps = [row["step"] for row in histories[LEARNED]]
    return plots.learning_curve(
        steps,
        {name: [row["loss"] for row in rows] for name, rows in histories.items()},
        beside={name: [row["bandwidth"] for row in rows] for name, rows in histories.items()},
        beside_axis="bandwidth",
        loss_axis="leave-one-out error",
    )


def _labels(fitted: Mapping[str, Fitted]) -> dict[str, str]:
    """Legend entry → method, with the bandwidth where it is one number."""
    labels = {}
    for name in (FIXED, LEARNED):
        bandwidth = fitted[name].bandwidth
        known = isinstance(bandwidth, float)
        labels[f"{name} ({bandwidth:.3g})" if known and bandwidth < 1000 else name] = name
    return labels | {ENTMAX: ENTMAX}


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
