"""What needs no weights: poolings and the line, each with its left-out predictions.

Each function gets the data and the rows to leave out, one by one (None: all of them), and returns
(predict: query [q, d] -> [q, outputs], left_out [rows, outputs]).
"""

from collections.abc import Callable

import numpy as np

Baseline = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]
Rows = np.ndarray | list[int] | None


def max_pooling(x: np.ndarray, y: np.ndarray, rows: Rows) -> Baseline:
    """The largest target for every query: the other pooling that asks no question."""
    del x
    largest = y.max(axis=0)
    top = y.argmax(axis=0)
    second = np.sort(y, axis=0)[-2]
    left_out = np.broadcast_to(largest, y.shape).copy()
    left_out[top, np.arange(y.shape[1])] = second
    return lambda query: np.broadcast_to(largest, (len(query), y.shape[1])), at(left_out, rows)


def average_pooling(x: np.ndarray, y: np.ndarray, rows: Rows) -> Baseline:
    """The mean of all targets: attention by a kernel that is flat."""
    del x
    n, mean = len(y), y.mean(axis=0)
    left_out = mean + (mean - at(y, rows)) / (n - 1)
    return lambda query: np.broadcast_to(mean, (len(query), y.shape[1])), left_out


def linear_layer(x: np.ndarray, y: np.ndarray, rows: Rows) -> Baseline:
    """Least squares: a local line by a kernel that is flat."""
    center, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)

    def design(x):
        return np.column_stack([np.ones(len(x)), (x - center) / scale])

    vectors, values, directions = np.linalg.svd(design(x), full_matrices=False)
    kept = values > values[0] * len(x) * np.finfo(np.float64).eps
    vectors, inverse = vectors[:, kept], directions[kept].T / values[kept]
    slopes = inverse @ (vectors.T @ y)
    there = at(vectors, rows)
    leverage = np.sum(there**2, axis=1, keepdims=True)
    alone = leverage > 1 - 1e-9  # without it, nothing is known of some direction
    residual = at(y, rows) - there @ (vectors.T @ y)
    left_out = at(y, rows) - residual / np.where(alone, 1.0, 1 - leverage)
    for i in np.flatnonzero(alone):
        row = i if rows is None else rows[i]
        predict, _ = linear_layer(np.delete(x, row, axis=0), np.delete(y, row, axis=0), [])
        left_out[i] = predict(x[row][None])[0]
    return lambda query: design(query) @ slopes, left_out


def at(array: np.ndarray, rows: Rows) -> np.ndarray:
    """Return these rows of an array."""
    return array if rows is None else array[rows]
