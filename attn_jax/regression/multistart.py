"""The lowest of several valleys of a function of few logarithms: look everywhere, then refine."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.regression.chunks import once

PER_DECADE = 12  # points of the grid for each factor of ten
VALLEYS = 6  # local minima that are refined


def grid(low: float, high: float) -> np.ndarray:
    """Points from low to high, `PER_DECADE` for each factor of ten."""
    return np.linspace(low, high, math.ceil(PER_DECADE * (high - low) / math.log(10)) + 1)


def starts(low: float, high: float, features: int) -> np.ndarray:
    """Points [n, features] of a box: its diagonal, and a Sobol sequence."""
    from scipy.stats import qmc

    equal = np.repeat(grid(low, high)[:, None], features, axis=1)
    spread = qmc.Sobol(features, seed=0).random(64 * 2 ** min(features, 4))
    return np.concatenate([equal, qmc.scale(spread, low, high)])


def deepest(values: np.ndarray) -> np.ndarray:
    """Where the `VALLEYS` lowest local minima of a row of values are, the lowest first."""
    padded = np.concatenate([[np.inf], values, [np.inf]])
    valleys = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    return valleys[np.argsort(values[valleys], kind="stable")][:VALLEYS]


def finite(values: Any) -> np.ndarray:
    """NaN (no answer outside the support) counts as infinitely bad."""
    values = np.asarray(values, np.float64)
    return np.where(np.isnan(values), np.inf, values)


class Objective:
    """`function(free, *fixed)` of logarithms [features], for SciPy's optimizers."""

    def __init__(self, function: Callable, fixed: tuple, dtype: Any):
        self.exact = once(_value, function, fixed)
        self._each, self._gradient = once(_values, function, fixed), once(_slope, function, fixed)
        self._dtype = dtype

    def each(self, points: np.ndarray) -> np.ndarray:
        """The values at points [n, features], one after the other."""
        return finite(self._each(jnp.asarray(points, self._dtype)))

    def value(self, free: Any) -> float:
        """The value, infinite where it is NaN."""
        return float(finite(self.exact(jnp.asarray(free, self._dtype))))

    def with_gradient(self, free: Any) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        value, slope = self._gradient(jnp.asarray(free, self._dtype))
        return float(finite(value)), np.nan_to_num(np.asarray(slope, np.float64))


def _value(free, function, fixed):
    return function(free, *fixed)


def _values(points, function, fixed):
    return jax.lax.map(lambda free: function(free, *fixed), points)


def _slope(free, function, fixed):
    return jax.value_and_grad(function)(free, *fixed)


def lowest_on_a_line(objective: Objective, low: float, high: float) -> np.ndarray:
    """The place of the minimum, [1], of a function of one logarithm."""
    from scipy.optimize import minimize_scalar

    points = grid(low, high)
    values = objective.each(points[:, None])
    if values.min() == -np.inf:  # a perfect fit, to which AICc prefers nothing: the smoothest one
        return points[[np.flatnonzero(values == -np.inf)[-1]]]
    best = points[values.argmin()], values.min()
    for i in deepest(values):
        found = minimize_scalar(
            lambda t: objective.value([t]),
            bounds=(points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]),
            method="bounded",
            options={"xatol": 1e-9},
        )
        if found.fun < best[1]:
            best = found.x, found.fun
    return np.asarray([best[0]])


def lowest_in_a_box(objective: Objective, low: float, high: float, features: int) -> np.ndarray:
    """The place of the minimum, [features], of a function of several logarithms."""
    from scipy.optimize import minimize

    points = starts(low, high, features)
    values = objective.each(points)
    if values.min() == -np.inf:
        perfect = points[values == -np.inf]
        return perfect[perfect.sum(axis=1).argmax()]
    best = points[values.argmin()], values.min()
    bounds = [(low, high)] * features
    for start in points[np.argsort(values, kind="stable")[:VALLEYS]]:
        found = minimize(objective.with_gradient, start, jac=True, bounds=bounds, method="L-BFGS-B")
        if found.fun < best[1]:
            best = found.x, found.fun
    # A kernel with steps has no useful gradient: finish without one.
    found = minimize(
        objective.value,
        best[0],
        bounds=bounds,
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-12, "maxfev": 100 * features},
    )
    return found.x if found.fun < best[1] else best[0]
