"""The pictures of the kernel-regression experiment; of large data they show a sample."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.nn import NadarayaWatson
from experiments.data import curves
from experiments.harness.parts import in_parts
from experiments.kernel_regression.data import Problem
from experiments.kernel_regression.methods import (
    ENTMAX,
    FIXED,
    LEARNED,
    SEARCHED,
    Fitted,
    Results,
    band_of,
    test_error,
)

MOST_OUTPUTS = 3  # pictures of fits and data, for data with many outputs
MOST_WEIGHTS = 256  # queries and keys in a picture of weights of large data


def draw(results: Results) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure): fits, weights, training, and error against n where n varies."""
    problem, fitted = results[0]  # the smallest: its points can be told apart
    yield from fit_figures(problem, fitted)
    yield "weights", weights(problem, fitted)
    yield "training", training(fitted)
    if len(results) > 1:
        methods = (LEARNED, ENTMAX, FIXED, "average pooling", "linear layer")
        errors = {name: [test_error(p, each[name]) for p, each in results] for name in methods}
        sizes = [len(problem.data.x) for problem, _ in results]
        yield "error_against_n", plots.error_against_n(sizes, errors, exponent=-0.8)


def fit_figures(problem: Problem, fitted: Mapping[str, Fitted]) -> Iterator[tuple[str, Figure]]:
    """Yield one figure for each input and output, the other inputs at their median."""
    data = problem.data
    x, y = problem.left_out
    band = band_of(fitted[SEARCHED], problem)
    labels = {_label(fitted, FIXED): FIXED, _label(fitted, LEARNED): LEARNED, ENTMAX: ENTMAX}
    for i, x_name in enumerate(data.x_names):
        grid = np.linspace(data.x[:, i].min(), data.x[:, i].max(), 400)
        query = np.repeat(np.median(data.x, axis=0)[None], len(grid), axis=0)
        query[:, i] = grid
        low, high = band(query)
        fits = {label: fitted[name].predict(query) for label, name in labels.items()}
        others = ", ".join(each for each in data.x_names if each != x_name)
        for o, y_name in enumerate(data.y_names[:MOST_OUTPUTS]):
            several = len(data.x_names) > 1 or len(data.y_names) > 1
            name = f"fits_{x_name}_{y_name}" if several else "fits"
            figure = plots.curve_fit(
                x[:, i],
                y[:, o],
                grid=grid,
                fits={label: values[:, o] for label, values in fits.items()},
                truth=None if problem.test is None else curves.textbook_truth(grid),
                band=(low[:, o], high[:, o]),
                x_axis=x_name,
                y_axis=y_name,
                title=f"{others} at the median" if others else None,
            )
            yield "".join(c if c.isalnum() or c in "-_" else "_" for c in name), figure


def _label(fitted: Mapping[str, Fitted], name: str) -> str:
    """Return a legend entry, with the bandwidth where it is one number."""
    bandwidth = fitted[name].bandwidth
    known = isinstance(bandwidth, float) and bandwidth < 1000
    return f"{name} ({bandwidth:.3g})" if known else name


def weights(problem: Problem, fitted: Mapping[str, Fitted]) -> Figure:
    """Attention weights before and after training: queries × keys, both sorted.

    Of large data the weights of some of the keys, among all.
    """
    data = problem.data
    order = np.lexsort(data.x.T[::-1])
    if problem.sampled:
        evenly = np.linspace(0, len(order) - 1, min(len(order), MOST_WEIGHTS))
        order = order[evenly.round().astype(int)]
    keys = data.x[order]
    one = keys.shape[1] == 1
    queries = np.linspace(keys[0], keys[-1], 100) if one else keys
    panels = {
        f"before training: {FIXED}": fitted[FIXED],
        f"after: {LEARNED}": fitted[LEARNED],
        f"after: entmax, α = {fitted[ENTMAX].alpha:.3g}": fitted[ENTMAX],
    }
    axis = data.x_names[0] if one else f"sorted by {data.x_names[0]}"
    return plots.attention_heatmaps(
        [in_parts(each.model, _weights, data.x, order)(queries) for each in panels.values()],
        titles=list(panels),
        query_labels=queries[:, 0] if one else None,
        key_labels=keys[:, 0] if one else None,
        query_axis=f"query: {axis}" if one else f"query, {axis}",
        key_axis=f"key: {axis}" if one else f"key, {axis}",
        columns=3,
    )


def _weights(model: NadarayaWatson, query: Any, keys: Any, order: Any) -> Any:
    """Return each query's weights of these keys."""
    return model.per_query(lambda weights: weights[:, order], query, keys)


def training(fitted: Mapping[str, Fitted]) -> Figure:
    """The leave-one-out error while training, and the bandwidth below it."""
    histories = {name: fitted[name].history for name in (LEARNED, ENTMAX)}
    return plots.learning_curve(
        [row["step"] for row in histories[LEARNED]],
        {name: [row["loss"] for row in rows] for name, rows in histories.items()},
        beside={name: [row["bandwidth"] for row in rows] for name, rows in histories.items()},
        beside_axis="bandwidth",
        loss_axis="leave-one-out error",
    )
