"""Global search for a bandwidth by a criterion over the data.

The leave-one-out error has several local minima on real data: the search looks everywhere on a
logarithmic scale first, then refines the best valleys with SciPy's optimizers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax.checks import require
from attn_jax.kernels import gaussian
from attn_jax.regression.diagnostics import CRITERIA
from attn_jax.scores import Kernel

PER_DECADE = 12  # points of the grid for each factor of ten
VALLEYS = 6  # local minima that are refined


class Search(NamedTuple):
    """The bandwidth found (one number, or one per feature [d]) and the criterion's value there."""

    bandwidth: Float[Array, "..."]
    value: float


def search_bandwidth(
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    criterion: str = "loo",
    kernel: Callable = gaussian,
    per_feature: bool = False,
    **options: Any,
) -> Search:
    """Find the bandwidth that minimizes a criterion of the fit, globally.

    Args:
      key: the inputs, at least two of which differ.
      value: the targets.
      criterion: "loo", the leave-one-out error, or "aicc".
      kernel: a member of `attn_jax.kernels` or a function u ↦ log K(u).
      per_feature: one bandwidth for each feature instead of one for all.
      **options: normalizer, outside and degree, as in `kernel_regression`.

    Raises:
      ValueError: an argument does not fit; the message names it.

    A minimum at the largest bandwidth searched, ten times the range of the data, says that the data
    prefer their mean (degree 0) or one line (degree 1).
    """
    require("score" not in options, "score", "be left out: the search makes it", "one")
    require(criterion in CRITERIA, "criterion", f"be one of {sorted(CRITERIA)}", criterion)
    key, value = jnp.asarray(key), jnp.asarray(value)
    for name, array in (("key", key), ("value", value)):
        require(array.ndim == 2, name, "have two axes, rows and features", array)
        require(bool(jnp.isfinite(array).all()), name, "be finite", array)
    spread = np.ptp(np.asarray(key, np.float64), axis=0)
    require(key.shape[0] >= 2 and spread.max() > 0, "key", "hold two rows that differ", key)
    features = key.shape[1]
    scale = np.where(spread > 0, spread, 1.0) if per_feature else np.asarray([spread.max()])

    def bandwidth(free):  # log of the bandwidth relative to the range of the data
        relative = jnp.exp(free) * jnp.asarray(scale, free.dtype)
        return relative if per_feature else relative[0]

    @jax.jit
    def objective(free):
        score = Kernel(kernel, bandwidth(free))
        return CRITERIA[criterion](key, value, score=score, **options)

    low, high = math.log(_smallest_gap(key, scale) / 4), math.log(10.0)
    dtype = jnp.result_type(key, float) if jnp.issubdtype(key.dtype, jnp.inexact) else float
    if per_feature and features > 1:
        free = _refine_many(objective, low, high, features, dtype)
    else:
        free = _refine_one(objective, low, high, dtype)
    free = jnp.asarray(free, dtype)
    return Search(bandwidth(free), float(objective(free)))


def _smallest_gap(key: Array, scale: np.ndarray) -> float:
    """The smallest positive distance of nearest neighbours, in ranges of the data; ≥ 1e-8."""
    from scipy.spatial import cKDTree

    points = np.unique(np.asarray(key, np.float64) / scale[None, :], axis=0)
    distance, _ = cKDTree(points).query(points, k=2)
    return float(max(distance[:, 1].min(), 1e-8))


def _grid(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, math.ceil(PER_DECADE * (high - low) / math.log(10)) + 1)


def _refine_one(objective: Callable, low: float, high: float, dtype: Any) -> np.ndarray:
    from scipy.optimize import minimize_scalar

    grid = _grid(low, high)
    values = _finite(jax.lax.map(objective, jnp.asarray(grid, dtype)[:, None]))
    if values.min() == -np.inf:  # a perfect fit, to which AICc prefers nothing: the smoothest one
        return grid[[np.flatnonzero(values == -np.inf)[-1]]]
    padded = np.concatenate([[np.inf], values, [np.inf]])
    valleys = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    best = grid[values.argmin()], values.min()
    for i in valleys[np.argsort(values[valleys], kind="stable")][:VALLEYS]:
        found = minimize_scalar(
            lambda t: float(_finite(objective(jnp.asarray([t], dtype)))),
            bounds=(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": 1e-9},
        )
        if found.fun < best[1]:
            best = found.x, found.fun
    return np.asarray([best[0]])


def _refine_many(
    objective: Callable, low: float, high: float, features: int, dtype: Any
) -> np.ndarray:
    from scipy.optimize import minimize
    from scipy.stats import qmc

    equal = np.repeat(_grid(low, high)[:, None], features, axis=1)
    spread = qmc.Sobol(features, seed=0).random(64 * 2 ** min(features, 4))
    starts = np.concatenate([equal, qmc.scale(spread, low, high)])
    values = _finite(jax.lax.map(objective, jnp.asarray(starts, dtype)))
    if values.min() == -np.inf:
        perfect = starts[values == -np.inf]
        return perfect[perfect.sum(axis=1).argmax()]
    gradient = jax.jit(jax.value_and_grad(objective))

    def with_gradient(free):
        value, slope = gradient(jnp.asarray(free, dtype))
        return float(_finite(value)), np.nan_to_num(np.asarray(slope, np.float64))

    best = starts[values.argmin()], values.min()
    bounds = [(low, high)] * features
    for start in starts[np.argsort(values, kind="stable")[:VALLEYS]]:
        found = minimize(with_gradient, start, jac=True, bounds=bounds, method="L-BFGS-B")
        if found.fun < best[1]:
            best = found.x, found.fun
    # A kernel with steps has no useful gradient: finish without one.
    found = minimize(
        lambda free: float(_finite(objective(jnp.asarray(free, dtype)))),
        best[0],
        bounds=bounds,
        method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-12, "maxfev": 100 * features},
    )
    return found.x if found.fun < best[1] else best[0]


def _finite(values: Any) -> np.ndarray:
    """NaN (no answer outside the support) counts as infinitely bad."""
    values = np.asarray(values, np.float64)
    return np.where(np.isnan(values), np.inf, values)
