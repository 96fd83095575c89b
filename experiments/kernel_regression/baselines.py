"""What needs no weights: poolings and the line, each with its left-out predictions.

Each function takes the data and the rows to leave out, one by one, and returns
(predict: query [q, d] -> [q, outputs], left_out [rows, outputs]).
"""

from collections.abc import Callable

import numpy as np

Baseline = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]


def max_pooling(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Baseline:
    """The largest target for every query: pooling that is no attention."""
    second, largest = np.sort(y, axis=0)[-2:]
    left_out = np.where(rows[:, None] == y.argmax(axis=0), second, largest)
    return lambda query: np.broadcast_to(largest, (len(query), y.shape[1])), left_out


def average_pooling(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Baseline:
    """The mean of all targets: attention by a kernel that is flat."""
    mean = y.mean(axis=0)
    left_out = mean + (mean - y[rows]) / (len(y) - 1)
    return lambda query: np.broadcast_to(mean, (len(query), y.shape[1])), left_out


def linear_layer(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Baseline:
    """Least squares: a local line by a kernel that is flat."""
    center, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)

    def design(x):
        return np.column_stack([np.ones(len(x)), (x - center) / scale])

    vectors, values, directions = np.linalg.svd(design(x), full_matrices=False)
    kept = values > values[0] * len(x) * np.finfo(np.float64).eps
    vectors, inverse = vectors[:, kept], directions[kept].T / values[kept]
    slopes = inverse @ (vectors.T @ y)
    residual = y[rows] - vectors[rows] @ (vectors.T @ y)
    leverage = np.sum(vectors[rows] ** 2, axis=1, keepdims=True)
    alone = leverage > 1 - 1e-9  # without it, nothing is known of some direction
    left_out = y[rows] - residual / np.where(alone, 1.0, 1 - leverage)
    for i in np.flatnonzero(alone):
        row = rows[i]
        predict, _ = linear_layer(np.delete(x, row, 0), np.delete(y, row, 0), rows[:0])
        left_out[i] = predict(x[row][None])[0]
    return lambda query: design(query) @ slopes, left_out
