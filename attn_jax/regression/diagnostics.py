"""What statistics asks of a fit: its error, its freedom, its criteria, its confidence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax.checks import require
from attn_jax.precision import accumulate
from attn_jax.regression.smoothing import leave_one_out, smoother


def leave_one_out_error(
    key: Num[ArrayLike, "n d"], value: Num[ArrayLike, "n e"], **options: Any
) -> Float[Array, ""]:
    """Mean squared leave-one-out residual, over rows and outputs.

    >>> float(leave_one_out_error(jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])))
    4.0
    """
    return jnp.mean(jnp.square(jnp.asarray(value) - leave_one_out(key, value, **options)))


def aicc(
    key: Num[ArrayLike, "n d"], value: Num[ArrayLike, "n e"], **options: Any
) -> Float[Array, ""]:
    """Corrected Akaike criterion: log σ² + (1 + t/n) / (1 - (t + 2)/n), mean over the outputs.

    σ² is the mean squared residual, t = tr L. Infinite from t = n - 2 on, where the formula changes
    sign and would reward interpolation. (Hurvich, Simonoff & Tsai 1998.)
    """
    value = _targets(key, value)
    n = value.shape[0]
    hat = smoother(key, key, **options)
    variance = jnp.mean(jnp.square(value - hat @ value), axis=0)
    trace = jnp.trace(hat)
    room = 1 - (trace + 2) / n
    penalty = (1 + trace / n) / jnp.where(room > 0, room, 1.0)
    return jnp.where(room > 0, jnp.mean(jnp.log(variance)) + penalty, jnp.inf)


def r_squared(value: Num[ArrayLike, "n e"], predicted: Num[ArrayLike, "n e"]) -> Float[Array, " e"]:
    """Squared correlation of targets and predictions, per output; 0 where either is constant.

    (Hayfield & Racine 2008, sec. 3.2.)

    >>> y = jnp.array([[1.0], [2.0], [4.0]])
    >>> r_squared(y, 2 * y).round(6).tolist(), r_squared(y, jnp.full((3, 1), 0.1)).tolist()
    ([1.0], [0.0])
    """
    require(
        jnp.ndim(value) == 2 and jnp.shape(value) == jnp.shape(predicted),
        "value and predicted",
        "have the same shape, rows and outputs",
        f"value {jnp.shape(value)}, predicted {jnp.shape(predicted)}",
    )
    value, predicted = (_deviations(each) for each in accumulate(value, predicted))
    scale = jnp.sum(value**2, axis=0) * jnp.sum(predicted**2, axis=0)
    return jnp.sum(value * predicted, axis=0) ** 2 / jnp.where(scale == 0, jnp.inf, scale)


def _deviations(x: Float[Array, "n e"]) -> Float[Array, "n e"]:
    """x less its mean; exactly 0 where what is left is the mean's rounding."""
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


def degrees_of_freedom(key: Num[ArrayLike, "n d"], **options: Any) -> Float[Array, ""]:
    """tr L at the data: 1 for the mean, n for interpolation."""
    return jnp.trace(smoother(key, key, **options))


def confidence_band(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    level: float = 0.95,
    **options: Any,
) -> tuple[Float[Array, "q e"], Float[Array, "q e"]]:
    """Lower and upper end of a pointwise band for the smoothed curve E[prediction].

    prediction ± z σ ‖L_i‖, with σ² = Σ residual² / (n - 2 tr L + tr LᵀL), errors independent and
    of equal variance. It does not contain the smoothing bias. NaN where the data leave no degree of
    freedom for σ. (Wasserman 2006, eq. 5.86 and 5.103.)
    """
    require(0 < level < 1, "level", "be above 0 and below 1", level)
    value = _targets(key, value)
    hat, rows = smoother(key, key, **options), smoother(query, key, **options)
    freedom = value.shape[0] - 2 * jnp.trace(hat) + jnp.sum(jnp.square(hat))
    left = freedom > value.shape[0] * 8 * jnp.finfo(hat.dtype).eps
    squares = jnp.sum(jnp.square(value - hat @ value), axis=0, keepdims=True)
    variance = jnp.where(left, squares / jnp.where(left, freedom, 1.0), jnp.nan)
    norm = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1, keepdims=True))
    half = jax.scipy.stats.norm.ppf((1 + level) / 2) * jnp.sqrt(variance) * norm
    return rows @ value - half, rows @ value + half


def _targets(key: Num[ArrayLike, "n d"], value: Num[ArrayLike, "n e"]) -> Float[Array, "n e"]:
    require(jnp.ndim(value) == 2, "value", "have two axes, rows and outputs", value)
    require(
        jnp.shape(key)[:1] == jnp.shape(value)[:1],
        "key and value",
        "have the same number of rows",
        f"key {jnp.shape(key)}, value {jnp.shape(value)}",
    )
    return accumulate(value)[0]


def _weights(weights: Float[ArrayLike, "q k"]) -> Float[Array, "q k"]:
    require(jnp.ndim(weights) == 2, "weights", "have shape [q, k]", weights)
    return accumulate(weights)[0]


CRITERIA: dict[str, Callable] = {"loo": leave_one_out_error, "aicc": aicc}
