"""Statistics of a fit: error, degrees of freedom, criteria, confidence bands.

Each compares all n rows of the data with all n keys: time grows with n², memory is bounded.
For large n give it `rows`, indices of a random sample of the rows: what is a mean or a sum over the
rows is then estimated from those, each of them with all n keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Num

from attn_jax.checks import as_array, require
from attn_jax.precision import accumulate, accumulation_dtype
from attn_jax.regression.case_weights import checked_case_weights
from attn_jax.regression.centering import (
    centred_inputs,
    centred_targets,
    require_variation,
    uncentred,
)
from attn_jax.regression.chunks import is_whole, mask_of_rows, stored_per_query
from attn_jax.regression.smoothing import (
    checked_rows,
    leave_one_out,
    moves_when_left_out,
    moves_with_targets,
    smoother,
    smoother_rows,
)
from attn_jax.scores import Kernel


def leave_one_out_error(
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    rows: Int[ArrayLike, " r"] | None = None,
    **options: Any,
) -> Float[Array, ""]:
    """Mean squared leave-one-out residual, over rows (by their case weights) and outputs.

    With `rows`, of these rows only: its gradient is then a stochastic one of the whole error.

    >>> float(leave_one_out_error(jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])))
    4.0
    """
    (key,) = centred_inputs(options.get("score", Kernel()), key=key)
    value, _ = centred_targets(value, shift=moves_when_left_out(key, options))
    predicted = leave_one_out(key, value, rows=rows, **options)
    counted = checked_case_weights(options.get("case_weights"), key)
    if rows is not None:
        rows = as_array(rows, "rows")
        value, counted = value[rows], None if counted is None else counted[rows]
    squares = jnp.square(value - predicted)
    if counted is None:
        return jnp.mean(squares)
    return jnp.sum(counted[:, None] * squares) / (jnp.sum(counted) * squares.shape[1])


def aicc(
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    rows: Int[ArrayLike, " r"] | None = None,
    **options: Any,
) -> Float[Array, ""]:
    """Corrected Akaike criterion: log σ² + (1 + t/n) / (1 - (t + 2)/n), mean over the outputs.

    σ² is the mean squared residual, t = tr L. Infinite from t = n - 2 on, where the formula changes
    sign and would reward interpolation. (Hurvich, Simonoff & Tsai 1998.)
    """
    total, trace, _, n = _at_the_data(key, value, rows, options)
    variance = total / n
    room = 1 - (trace + 2) / n
    penalty = (1 + trace / n) / jnp.where(room > 0, room, 1.0)
    return jnp.where(room > 0, jnp.mean(jnp.log(variance)) + penalty, jnp.inf)


def r_squared(value: Num[ArrayLike, "n e"], predicted: Num[ArrayLike, "n e"]) -> Float[Array, " e"]:
    """Squared correlation of targets and predictions, per output; 0 where either is constant.

    (Hayfield & Racine 2008, sec. 3.2.) Targets of NumPy's float64 or int64 are centred before they
    are rounded; predictions that were rounded to where they no longer vary as these do are refused.

    >>> y = jnp.array([[1.0], [2.0], [4.0]])
    >>> r_squared(y, 2 * y).round(6).tolist(), r_squared(y, jnp.full((3, 1), 0.1)).tolist()
    ([1.0], [0.0])
    """
    given = predicted, value
    value, predicted = (centred_targets(each, shift=True)[0] for each in (value, predicted))
    require(
        value.ndim == 2 and value.shape == predicted.shape,
        "value and predicted",
        "have the same shape, rows and outputs",
        f"value {value.shape}, predicted {predicted.shape}",
    )
    require_variation(*given)
    value, predicted = (_deviations(each) for each in accumulate(value, predicted))
    scale = jnp.sum(value**2, axis=0) * jnp.sum(predicted**2, axis=0)
    return jnp.sum(value * predicted, axis=0) ** 2 / jnp.where(scale == 0, jnp.inf, scale)


def _deviations(x: Float[Array, "n e"]) -> Float[Array, "n e"]:
    """x less its mean, in units of the largest; 0 where what is left is the mean's rounding."""
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=0, keepdims=True))
    x = x / jnp.where(size == 0, 1.0, size)
    rest = x - jnp.mean(x, axis=0, keepdims=True)
    rounding = 8 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x), axis=0, keepdims=True)
    constant = jnp.max(jnp.abs(rest), axis=0, keepdims=True) <= rounding
    return jnp.where(constant, 0.0, rest)


def effective_neighbours(weights: Float[ArrayLike, "q k"]) -> Float[Array, " q"]:
    """(Σw)² / Σw²: how many equal weights would vary as much; 0 for an empty row. (Kish 1965.)

    >>> effective_neighbours(jnp.array([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])).tolist()
    [2.0, 0.0]
    """
    weights = _weights(weights)
    square = jnp.sum(jnp.square(weights), axis=1)
    return jnp.square(jnp.sum(weights, axis=1)) / jnp.where(square == 0, 1.0, square)


def entropy(weights: Float[ArrayLike, "q k"]) -> Float[Array, " q"]:
    """-Σ w log w in nats, 0 log 0 = 0.

    >>> entropy(jnp.array([[1.0, 0.0]])).tolist()
    [0.0]
    """
    weights = _weights(weights)
    positive = weights > 0
    logs = jnp.log(jnp.where(positive, weights, 1.0))
    return 0.0 - jnp.sum(jnp.where(weights == 0, 0.0, weights) * logs, axis=1)


def degrees_of_freedom(
    key: Num[ArrayLike, "n d"], *, rows: Int[ArrayLike, " r"] | None = None, **options: Any
) -> Float[Array, ""]:
    """tr L at the data: 1 for the mean, n for interpolation."""
    (key,) = centred_inputs(options.get("score", Kernel()), key=key)
    nothing = jnp.zeros((key.shape[0], 0), accumulation_dtype(key))
    return _at_the_data(key, nothing, rows, options).trace


def noise_variance(
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    rows: Int[ArrayLike, " r"] | None = None,
    **options: Any,
) -> Float[Array, " e"]:
    """σ² = Σ residual² / (n - 2 tr L + tr LᵀL), for each output.

    Of rows with case weights: Σ w residual² and Σ_ij w_i L_ij² / w_j, n = Σ w. NaN where the data
    leave no degree of freedom for it. (Wasserman 2006, eq. 5.86.)
    """
    total, trace, squares, n = _at_the_data(key, value, rows, options)
    freedom = n - 2 * trace + squares
    left = freedom > n * 8 * jnp.finfo(trace.dtype).eps
    return jnp.where(left, total / jnp.where(left, freedom, 1.0), jnp.nan)


def confidence_band(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    level: float = 0.95,
    variance: Float[ArrayLike, " e"] | None = None,
    rows: Int[ArrayLike, " r"] | None = None,
    **options: Any,
) -> tuple[Float[Array, "q e"], Float[Array, "q e"]]:
    """Lower and upper end of a pointwise band for the smoothed curve E[prediction].

    prediction ± z σ ‖L_i‖, errors independent and of equal variance: `noise_variance`, at the data
    or at `rows` of them, where it is not given. (Of rows with case weights: σ² / w_j.) It does not
    contain the smoothing bias. (Wasserman 2006, eq. 5.103.)
    """
    require(0 < level < 1, "level", "be above 0 and below 1", level)
    query, key = centred_inputs(options.get("score", Kernel()), query=query, key=key)
    value, centre = _targets(key, value, options)
    if variance is None:
        variance = noise_variance(key, value, rows=rows, **options)
    (variance,) = accumulate(as_array(variance, "variance"))
    proper = variance.shape == value.shape[1:]
    require(proper, "variance", "have one entry for each output", variance)

    fixed = value, checked_case_weights(options.get("case_weights"), key)
    predicted, norm = smoother_rows(_mean_and_norm, query, key, fixed=fixed, **options)
    half = jax.scipy.stats.norm.ppf((1 + level) / 2) * jnp.sqrt(variance)[None, :] * norm
    return uncentred(predicted - half, centre), uncentred(predicted + half, centre)


def _mean_and_norm(hat, mask, value, counted):
    del mask
    return hat @ value, jnp.sqrt(_squares(hat, counted)[:, None])


def _squares(hat, counted):
    """Σ_j L_ij² / w_j: the variance of a prediction over σ²."""
    if counted is None:
        return jnp.sum(jnp.square(hat), axis=1)
    there = counted > 0
    return jnp.square(hat) @ jnp.where(there, 1 / jnp.where(there, counted, 1), 0)


class AtTheData(NamedTuple):
    """Σ residual², tr L and tr LᵀL (estimated, from some rows), and n, or Σ w."""

    total: Float[Array, " e"]
    trace: Float[Array, ""]
    squares: Float[Array, ""]
    n: Any


def _at_the_data(key: Any, value: Any, rows: Any, options: dict[str, Any]) -> AtTheData:
    (key,) = centred_inputs(options.get("score", Kernel()), key=key)
    value, _ = _targets(key, value, options)
    n, stored = len(key), stored_per_query(key) if key.ndim == 2 else 0
    counted = checked_case_weights(options.get("case_weights"), key)
    each = jnp.ones(n, value.dtype) if counted is None else counted
    size = n if counted is None else jnp.sum(counted)
    if rows is None and is_whole(n, stored):
        hat = smoother(key, key, **options)
        total = each @ jnp.square(value - hat @ value)
        return AtTheData(total, jnp.trace(hat), each @ _squares(hat, counted), size)
    rows = jnp.arange(n) if rows is None else checked_rows(rows, key)
    options = dict(options)
    mask = options.pop("mask", None)
    if hasattr(mask, "check"):
        mask.check(n, n)
    options |= {"mask": mask_of_rows(mask, rows), "fixed": (value, counted)}
    fitted, own, squares = smoother_rows(_own_weights, key[rows], key, rows, **options)
    estimate = n / len(rows)
    total = estimate * (each[rows] @ jnp.square(value[rows] - fitted))
    return AtTheData(total, estimate * jnp.sum(own), estimate * (each[rows] @ squares), size)


def _own_weights(hat, mask, rows, value, counted):
    del mask
    return hat @ value, hat[jnp.arange(len(rows)), rows], _squares(hat, counted)


def _targets(
    key: Num[Array, "n d"], value: Num[ArrayLike, "n e"], options: dict[str, Any]
) -> tuple[Float[Array, "n e"], Float[Array, "1 e"] | None]:
    value, centre = centred_targets(value, shift=moves_with_targets(**options))
    require(value.ndim == 2, "value", "have two axes, rows and outputs", value)
    require(
        key.shape[:1] == value.shape[:1],
        "key and value",
        "have the same number of rows",
        f"key {key.shape}, value {value.shape}",
    )
    return accumulate(value)[0], centre


def _weights(weights: Float[ArrayLike, "q k"]) -> Float[Array, "q k"]:
    weights = as_array(weights, "weights")
    require(weights.ndim == 2, "weights", "have shape [q, k]", weights)
    return accumulate(weights)[0]


CRITERIA: dict[str, Callable] = {"loo": leave_one_out_error, "aicc": aicc}
