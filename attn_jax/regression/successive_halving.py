"""The lowest valley where a look at all rows is dear: a race of places on more and more rows.

Every place is looked at on few rows. The better eighth of them is looked at again on four times as
many, and so on (successive halving: Jamieson & Talwalkar 2016); what is left is followed downhill
on all of them. The whole search costs some dozens of looks at all rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.regression.chunks import once
from attn_jax.regression.multistart import finite, grid, starts

FIRST_ROWS, MORE_ROWS = 8, 4  # of the race: at the start, and times as many each time
KEPT, FINALISTS = 8, 3  # one place of so many stays, and at least so many places
EVALUATIONS = 8  # of one descent


class Looks:
    """`function(free, rows, *fixed)` of logarithms [features] and of indices of rows, looked at.

    `tell` gets each place that is looked at and the value there.
    """

    def __init__(
        self, function: Callable, fixed: tuple, dtype: Any, tell: Callable[[Any, float], None]
    ):
        self._value = once(_value, function, fixed)
        self._gradient = once(_slope, function, fixed)
        self._dtype, self._tell = dtype, tell

    def value(self, free: Any, rows: np.ndarray) -> float:
        """The value, infinite where it is NaN."""
        free = jnp.asarray(free, self._dtype)
        value = float(finite(self._value(free, rows)))
        self._tell(free, value)
        return value

    def with_gradient(self, free: Any, rows: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        free = jnp.asarray(free, self._dtype)
        value, slope = self._gradient(free, rows)
        value = float(finite(value))
        self._tell(free, value)
        return value, np.nan_to_num(np.asarray(slope, np.float64))


def _value(free, rows, function, fixed):
    return function(free, rows, *fixed)


def _slope(free, rows, function, fixed):
    return jax.value_and_grad(function)(free, rows, *fixed)


def lowest_on_a_line(looks: Looks, low: float, high: float, rows: np.ndarray) -> np.ndarray:
    """The place of the minimum, [1]: the valley of the race's winner on a grid, and its bottom."""
    from scipy.optimize import minimize_scalar

    points = grid(low, high)
    finalists = race(looks, points[:, None], rows)
    known: dict[int, float] = {}

    def on_all(i):
        if i not in known:
            known[i] = looks.value(points[[i]], rows)
        return known[i]

    def lowest(places):  # of equal ones the widest bandwidth: AICc prefers nothing to a perfect fit
        return min(places, key=lambda i: (on_all(i), -i))

    best = lowest(finalists)
    while (lower := lowest(range(max(best - 1, 0), min(best + 2, len(points))))) != best:
        best = lower
    if on_all(best) == -np.inf:  # a perfect fit, to which AICc prefers nothing
        return points[[best]]
    found = minimize_scalar(
        lambda t: looks.value([t], rows),
        bounds=(points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return np.asarray([found.x if found.fun < on_all(best) else points[best]])


def lowest_in_a_box(
    looks: Looks, low: float, high: float, features: int, rows: np.ndarray
) -> np.ndarray:
    """The place of the minimum, [features]: downhill from where the race ends, then on all rows."""
    points, bounds = starts(low, high, features), [(low, high)] * features
    some = spread(rows, FIRST_ROWS * MORE_ROWS**2)
    ends = [_descent(looks, points[i], some, bounds) for i in race(looks, points, rows)]
    best, value = min(ends, key=lambda end: end[1])
    return best if value == -np.inf else _descent(looks, best, rows, bounds)[0]


def race(looks: Looks, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The indices of the `FINALISTS` best of the points [n, features], the best first."""
    size, left = FIRST_ROWS, np.arange(len(points))
    while len(left) > FINALISTS:
        some = spread(rows, size)
        values = np.array([looks.value(points[i], some) for i in left])
        stay = max(len(left) // KEPT, FINALISTS)
        # of equal ones the later: perfect fits, to which AICc prefers nothing, by wide bandwidths
        left = left[::-1][np.argsort(values[::-1], kind="stable")][:stay]
        size *= MORE_ROWS
    return left


def _descent(looks: Looks, start: np.ndarray, rows: np.ndarray, bounds: list) -> tuple:
    """A lower place and the value there: by the gradient, or without one (a kernel with steps)."""
    from scipy.optimize import minimize

    first = value, slope = looks.with_gradient(start, rows)
    if not np.isfinite(value) or not slope.any():
        limit = {"maxfev": EVALUATIONS * len(start), "xatol": 1e-3, "fatol": 0.0}
        how = {"method": "Nelder-Mead", "bounds": bounds, "options": limit}
        found = minimize(looks.value, start, args=(rows,), **how)
        return found.x, found.fun
    unit = 3 * np.linalg.norm(slope)  # SciPy's first step is as long as the gradient: a third

    def in_units(free):
        known = np.array_equal(free, start)
        value, slope = first if known else looks.with_gradient(free, rows)
        return value / unit, slope / unit

    limit = {"maxfun": EVALUATIONS, "ftol": 1e-6}
    how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": limit}
    found = minimize(in_units, start, **how)
    return found.x, found.fun * unit


def spread(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, evenly over their order.

    >>> spread(np.arange(9), 3).tolist()
    [0, 4, 8]
    """
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
