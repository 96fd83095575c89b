"""The lowest of several minima of a function of few logarithms: a grid, then bounded refinement.

Where a value at all rows is expensive, the grid is evaluated at some of the rows, and only the best
of its lowest minima is refined at all of them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.regression.chunks import compiled

PER_DECADE = 12  # points of the grid for each factor of ten
MINIMA, FEW_MINIMA = 6, 3  # lowest minima of a grid at all rows, or at some of them, that go on
EVALUATIONS = 8  # of one refinement in a box, where they are expensive


class Objective:
    """`function(free, rows, *fixed)` of logarithms [features] at some rows, for SciPy's optimizers.

    `on_value` gets each point that is evaluated and the value there.
    """

    def __init__(
        self, function: Callable, fixed: tuple, dtype: Any, on_value: Callable[[Any, float], None]
    ):
        self._value = compiled(function, *fixed)
        self._gradient = compiled(_value_and_gradient, function, fixed)
        self._dtype, self._on_value = dtype, on_value

    def value(self, free: Any, rows: np.ndarray | None) -> float:
        """The value, infinite where it is NaN (no prediction outside the support)."""
        free = jnp.asarray(free, self._dtype)
        value = float(self._value(free, rows))
        value = math.inf if math.isnan(value) else value
        self._on_value(free, value)
        return value

    def with_gradient(self, free: Any, rows: np.ndarray | None) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        free = jnp.asarray(free, self._dtype)
        value, gradient = self._gradient(free, rows)
        value = math.inf if math.isnan(value) else float(value)
        self._on_value(free, value)
        return value, np.nan_to_num(np.asarray(gradient, np.float64))


def _value_and_gradient(free, rows, function, fixed):
    return jax.value_and_grad(function)(free, rows, *fixed)


def lowest(
    objective: Objective,
    ends: tuple[float, float],
    features: int,
    rows: np.ndarray | None,
    some: np.ndarray | None,
) -> np.ndarray:
    """Where the value at `rows` is least, [features], each between the ends.

    The grid is evaluated at `some` of the rows. Of equal values the largest logarithms win: AICc
    prefers nothing to a perfect fit, which there may be over a range of bandwidths.
    """
    points, whole = starts(*ends, features), some is rows
    sums = points.sum(axis=1)
    values = np.array([objective.value(point, some) for point in points])
    order = np.lexsort((-sums, values))
    if features == 1:
        padded = np.concatenate([[np.inf], values, [np.inf]])
        order = order[((values <= padded[:-2]) & (values <= padded[2:]))[order]]
    order = order[: MINIMA if whole else FEW_MINIMA]
    if not whole:
        rank = functools.cache(lambda i: (objective.value(points[i], rows), -sums[i]))
        best, lower = None, min(order, key=rank)
        while features == 1 and lower != best:  # downhill on the grid
            best = lower
            lower = min(range(max(best - 1, 0), min(best + 2, len(points))), key=rank)
        values[lower], order = rank(lower)[0], [lower]
    if values[order[0]] == -np.inf:
        return points[order[0]]
    best = values[order[0]], points[order[0]]
    if features == 1:
        found = [_on_a_line(objective, points, i, rows, whole) for i in order]
        return min([best, *found], key=lambda each: each[0])[1]
    return _in_a_box(objective, points[order], best, [ends] * features, rows, whole)


def starts(low: float, high: float, features: int) -> np.ndarray:
    """Points [n, features] of a box: its diagonal, and for several features a Sobol sequence."""
    from scipy.stats import qmc

    steps = math.ceil(PER_DECADE * (high - low) / math.log(10))
    equal = np.repeat(np.linspace(low, high, steps + 1)[:, None], features, axis=1)
    if features == 1:
        return equal
    spread = qmc.Sobol(features, seed=0).random(64 * 2 ** min(features, 4))
    return np.concatenate([equal, qmc.scale(spread, low, high)])


def _on_a_line(objective, points, i, rows, whole):
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda free: objective.value([free], rows),
        bounds=(points[max(i - 1, 0), 0], points[min(i + 1, len(points) - 1), 0]),
        method="bounded",
        options={"xatol": 1e-9 if whole else 1e-3},
    )
    return found.fun, np.asarray([found.x])


def _in_a_box(objective, candidates, best, bounds, rows, whole):
    from scipy.optimize import minimize

    flat, limits = True, {} if whole else {"maxfun": EVALUATIONS, "ftol": 1e-6}
    for start in candidates:
        first = _, gradient = objective.with_gradient(start, rows)
        unit = 3 * np.linalg.norm(gradient) or 1.0  # SciPy's first step is as long as the gradient
        flat &= not gradient.any()

        def in_units(free, start=start, first=first, unit=unit):
            known = np.array_equal(free, start)
            value, gradient = first if known else objective.with_gradient(free, rows)
            return value / unit, gradient / unit

        how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": limits}
        found = minimize(in_units, start, **how)
        best = min(best, (found.fun * unit, found.x), key=lambda each: each[0])
    if whole or flat:  # a kernel with steps has no useful gradient
        most = (100 if whole else EVALUATIONS) * len(bounds)
        limits = {"xatol": 1e-6, "fatol": 1e-12, "maxfev": most}
        how = {"args": (rows,), "method": "Nelder-Mead", "bounds": bounds, "options": limits}
        found = minimize(objective.value, best[1], **how)
        best = min(best, (found.fun, found.x), key=lambda each: each[0])
    return best[1]


def spread(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, evenly over their order.

    >>> spread(np.arange(9), 3).tolist()
    [0, 4, 8]
    """
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
