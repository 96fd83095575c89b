"""Global search for a bandwidth by a criterion over the data.

The leave-one-out error has several local minima on real data: the search evaluates a grid on a
logarithmic scale first, then refines the lowest minima with SciPy's optimizers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Num

from attn_jax.checks import require
from attn_jax.kernels import gaussian
from attn_jax.regression.centering import centred_inputs, centred_targets
from attn_jax.regression.diagnostics import CRITERIA
from attn_jax.regression.multistart import Objective, lowest, spread
from attn_jax.regression.smoothing import checked_rows, moves_when_left_out
from attn_jax.scores import Kernel

FEW_PAIRS = 2**24  # of rows and keys: the grid is evaluated at all of them
MOST_PAIRS = 2**26  # of sampled rows and keys
FEWEST_ROWS = 256  # that are sampled
OPTIONS = ("normalizer", "outside", "degree", "mask", "case_weights")
GRID_ROWS = 32  # where there are more pairs, the grid is evaluated at so many of the rows


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
    rows: Int[ArrayLike, " r"] | None = None,
    on_value: Callable[[Float[Array, "..."], float], None] | None = None,
    **options: Any,
) -> Search:
    """Find the bandwidth that minimizes a criterion of the fit, globally.

    All n keys count. The criterion is a mean over all n rows up to n = 8,192, from there on over
    the fixed random sample `sampled_rows(n)`. From n = 4,097 on (2²⁴ pairs of rows and keys) the
    grid is evaluated at a part of these rows, and its best minimum refined at all of them.

    Args:
      key: the inputs, at least two of which differ.
      value: the targets.
      criterion: "loo", the leave-one-out error, or "aicc".
      kernel: a member of `attn_jax.kernels` or a function u ↦ log K(u).
      per_feature: one bandwidth for each feature instead of one for all.
      rows: the rows that the criterion is a mean over, instead of those.
      on_value: called with each bandwidth that is evaluated and the criterion's value there.
      **options: normalizer, outside, degree, mask and case_weights, as in `kernel_regression`.

    Raises:
      ValueError: an argument does not fit; the message names it.

    A minimum at the largest bandwidth searched, ten times the range of the data, says that the data
    prefer their mean (degree 0) or one line (degree 1).
    """
    require("score" not in options, "score", "be left out: the search makes it", "one")
    other = sorted(set(options) - set(OPTIONS))
    require(not other, "options", f"be among {list(OPTIONS)}", other)
    require(criterion in CRITERIA, "criterion", f"be one of {sorted(CRITERIA)}", criterion)
    given_key = key
    (key,) = centred_inputs(None, key=key)
    value, _ = centred_targets(value, shift=moves_when_left_out(key, options))
    for name, array in (("key", key), ("value", value)):
        require(array.ndim == 2, name, "have two axes, rows and features", array)
        require(bool(jnp.isfinite(array).all()), name, "be finite", array)
    offsets = _offsets(key)
    ranges = offsets.max(axis=0, initial=0.0)
    require(key.shape[0] >= 2 and ranges.max() > 0, "key", "hold two rows that differ", key)
    n, features = key.shape
    scale = np.where(ranges > 0, ranges, 1.0) if per_feature else np.asarray([ranges.max()])
    rows = sampled_rows(n) if rows is None else np.asarray(checked_rows(rows, key))
    given = None if np.array_equal(rows, np.arange(n)) else rows
    ends = math.log(_smallest_gap(offsets / scale[None, :], given) / 4), math.log(10.0)
    dtype = jnp.result_type(key, float) if jnp.issubdtype(key.dtype, jnp.inexact) else float
    fit = Fit(CRITERIA[criterion], kernel, jnp.asarray(scale, dtype), key, value, options)

    def told(free, value):
        if on_value is not None:
            on_value(_bandwidth(free, fit.scale, per_feature), value)

    objective = Objective(_at, (fit, per_feature), dtype, told)
    part = given
    if len(rows) * n > FEW_PAIRS:
        given, part = rows, spread(rows, GRID_ROWS)
    free = lowest(objective, ends, features if per_feature else 1, given, part)
    bandwidth = _bandwidth(jnp.asarray(free, dtype), fit.scale, per_feature)
    score = Kernel(kernel, bandwidth)
    centred_inputs(score, key=given_key)  # refuses what float32 does not tell apart
    return Search(bandwidth, objective.value(free, given))


class Fit(NamedTuple):
    """What a criterion is computed from, except the bandwidth; `scale` is the range of the data."""

    criterion: Callable
    kernel: Callable
    scale: Float[Array, "..."]
    key: Num[Array, "n d"]
    value: Num[Array, "n e"]
    options: dict[str, Any]


def _at(free, rows, fit, per_feature):
    """The criterion at a bandwidth, given as its logarithm in ranges of the data."""
    score = Kernel(fit.kernel, _bandwidth(free, fit.scale, per_feature))
    some = {} if rows is None else {"rows": rows}
    return fit.criterion(fit.key, fit.value, score=score, **some, **fit.options)


def _bandwidth(free, scale, per_feature):
    relative = jnp.exp(free) * scale
    return relative if per_feature else relative[0]


def sampled_rows(n: int) -> np.ndarray:
    """The rows of n that a criterion is a mean over: all, or a fixed random sample of them.

    A power of two, as many as make up to 2²⁶ pairs with the n keys, and at least 256.

    >>> [len(sampled_rows(n)) for n in (100, 10_000, 100_000, 1_000_000)]
    [100, 4096, 512, 256]
    """
    most = max(2 ** int(math.log2(MOST_PAIRS / n)), FEWEST_ROWS)
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def _offsets(key: Num[Array, "n d"]) -> np.ndarray:
    """How far the rows lie above the lowest, in each feature: subtracted before it is rounded."""
    host = np.asarray(key)
    return (host - host.min(axis=0, keepdims=True)).astype(np.float64) if len(host) else host


def _smallest_gap(scaled: np.ndarray, rows: np.ndarray | None) -> float:
    """The smallest positive distance of nearest neighbours, in ranges of the data; ≥ 1e-8.

    Of these rows to any other: bandwidths far below it give each of them the same prediction.
    """
    from scipy.spatial import cKDTree

    points = np.unique(scaled, axis=0)
    distance, _ = cKDTree(points).query(points if rows is None else scaled[rows], k=2)
    return float(max(distance[:, 1].min(), 1e-8))
