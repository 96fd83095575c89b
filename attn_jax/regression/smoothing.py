"""Linear smoothers: Nadaraya-Watson and local linear regression, and leaving points out."""

import functools
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Num, Shaped

from attn_jax import masks
from attn_jax.attention import attention_and_logsumexp, attention_weights
from attn_jax.block_scores import attended
from attn_jax.checks import all_hold, as_array, concrete, require
from attn_jax.meshes import everywhere, gathered
from attn_jax.normalizers import Entmax, Softmax, Sparsemax, entmax15, softmax, sparsemax
from attn_jax.precision import output_dtype
from attn_jax.regression.case_weights import CaseWeights, LogWeight, checked_case_weights
from attn_jax.regression.centering import centred_inputs, centred_targets, uncentred
from attn_jax.regression.chunks import (
    check,
    compiled,
    in_chunks,
    is_whole,
    mask_of_rows,
    stored_per_query,
)
from attn_jax.regression.extrapolation import (
    Outside,
    allowed_pairs,
    extrapolated,
    extrapolation_weights,
    times,
)
from attn_jax.regression.local_lines import local_line
from attn_jax.scores import Kernel, compared


def kernel_regression(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k d"],
    value: Num[ArrayLike, "k e"],
    *,
    score: Kernel = Kernel(),
    normalizer: Any = Softmax(),
    mask: masks.MaskFunction | None = None,
    outside: Outside = "nearest",
    degree: int = 0,
    case_weights: CaseWeights = None,
) -> Float[Array, "q e"]:
    """Predict at each query from keys (inputs) and values (targets).

    From 2²⁰ pairs of queries and keys on (for a line: 2²⁰ / d) the weights are not stored at once:
    a softmax of degree 0 streams, all else is computed for a few queries at a time. (That takes
    entmax as long as streaming would, in less memory.)

    What float64 or int64 of NumPy hold is not rounded before it is subtracted: inputs and targets
    are measured from the middle of the data, in their own dtype. The middle of the targets is added
    to the prediction, which is then rounded to float32 where JAX has 32 bits; residuals, errors and
    variances are those of the centred targets. (Where the weights of a query need not sum to one,
    because of a mask, a sink, `Sigmoid`, `outside="zero"` or a function of one's own, targets whose
    variation would be lost are refused.)

    Args:
      query: where to predict.
      key: the inputs, one row each. Dates (`datetime64`) count in seconds, and so does their
        bandwidth.
      value: the targets, one row each. A target that no query may use may be NaN.
      score: the kernel and its bandwidth.
      normalizer: softmax is Nadaraya-Watson; sparsemax and entmax of a Gaussian are compact kernels
        with a radius that always holds a point.
      mask: which keys a query may use.
      outside: the prediction for a query that no key supports (compact kernels): the nearest key's
        value (tied ones: their mean), the mean of all allowed values, 0, or NaN.
      degree: 0, a local constant, or 1, a local line; where the supported keys do not span a
        direction, the line is flat in it.
      case_weights: [k], of the rows; integers count them so many times. See `case_weights.py`.

    Raises:
      ValueError: an argument does not fit; the message names it.

    >>> x, y = jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])
    >>> kernel_regression(jnp.array([[0.5], [99.0]]), x, y).tolist()
    [[1.0], [2.0]]
    """
    shift = moves_with_targets(normalizer=normalizer, outside=outside, mask=mask)
    value, centre = centred_targets(value, shift=shift)
    require(value.ndim == 2, "value", "have two axes, rows and outputs", value)
    query, key = centred_inputs(score, query=query, key=key)
    case_weights = checked_case_weights(case_weights, key)
    slots = {"score": score, "normalizer": normalizer, "outside": outside, "degree": degree}
    slots |= {"case_weights": case_weights}
    whole = _is_whole(query, key, degree)
    make = smoother if whole else functools.partial(check, smoother)
    weights = make(query, key, mask=mask, **slots)
    require(
        weights.shape[1] == value.shape[0],
        "key and value",
        "have the same number of rows",
        f"key {key.shape}, value {value.shape}",
    )
    if whole:
        predicted = _of_values(weights, mask, value)
    elif degree == 0 and _is_plain_softmax(normalizer):
        how = {"score": score, "mask": mask, "score_mod": _score_mod(case_weights)}
        output, logsumexp = attention_and_logsumexp(
            query, key, value, **how, implementation="streaming"
        )
        empty = jax.lax.stop_gradient(logsumexp) == -jnp.inf  # by the support: nothing underflows
        at = output, empty, outside, query, key, value
        predicted = extrapolated(*at, score=score, mask=mask, case_weights=case_weights)
    else:
        predicted = smoother_rows(_of_values, query, key, fixed=(value,), mask=mask, **slots)
    return uncentred(predicted.astype(output_dtype(value)), centre)


def moves_with_targets(
    *, normalizer: Any = Softmax(), outside: str = "nearest", mask: Any = None, **others: Any
) -> bool:
    """Whether predictions move as all targets do: the weights of every query sum to one."""
    del others
    slots, functions = (Softmax, Sparsemax, Entmax), (softmax, sparsemax, entmax15)
    sums = isinstance(normalizer, slots) or any(normalizer is each for each in functions)
    return sums and getattr(normalizer, "sink", None) is None and mask is None and outside != "zero"


def _of_values(hat, mask, value):
    return times(hat, value, None if mask is None else masks.dense(mask, *hat.shape))


def smoother(
    query: Num[ArrayLike, "q d"],
    key: Num[ArrayLike, "k d"],
    *,
    score: Kernel = Kernel(),
    normalizer: Any = Softmax(),
    mask: masks.MaskFunction | None = None,
    outside: Outside = "nearest",
    degree: int = 0,
    case_weights: CaseWeights = None,
) -> Float[Array, "q k"]:
    """The matrix L with prediction = L value; see `kernel_regression` for the arguments.

    >>> smoother(jnp.array([[0.5]]), jnp.array([[0.0], [1.0]])).tolist()
    [[0.5, 0.5]]
    """
    require(isinstance(score, Kernel), "score", "be a Kernel", score)
    require(outside in get_args(Outside), "outside", f"be one of {get_args(Outside)}", outside)
    require(degree in (0, 1), "degree", "be 0 or 1", degree)
    query, key = centred_inputs(score, query=query, key=key)
    case_weights = checked_case_weights(case_weights, key)
    how = {"score": score, "normalizer": normalizer, "score_mod": _score_mod(case_weights)}
    weights = attention_weights(query, key, mask=mask, **how)
    if weights.size == 0:
        return weights
    query, key = compared(score, query, key)
    allowed = allowed_pairs(mask, *weights.shape, case_weights)
    # by the kernel's support: the weights of a supported key may underflow (and a NaN has to show)
    empty = ~jnp.any(allowed & (score(query, key) != -jnp.inf), axis=1, keepdims=True)
    if degree == 1:
        if mask is not None:  # no arithmetic with a key that no query may attend to
            key = jnp.where(attended(allowed), key, 0)
        weights = local_line(weights, query, key, score)
    at = weights, empty, outside, query, key, score, mask, case_weights
    if is_whole(query.shape[0], key.size):
        return _extrapolated(*at)
    return compiled(_extrapolated_where_empty, *at)()


def _extrapolated(weights, empty, outside, query, key, score, mask, case_weights):
    again = allowed_pairs(mask, *weights.shape, case_weights)  # cheaper than the array to keep
    there = extrapolation_weights(outside, query, key, score, again, case_weights)
    return jnp.where(empty, there, weights)


def _score_mod(case_weights: Any) -> LogWeight | None:
    return None if case_weights is None else LogWeight(case_weights)


def _extrapolated_where_empty(weights, empty, *at):
    return jax.lax.cond(jnp.any(empty), lambda: _extrapolated(weights, empty, *at), lambda: weights)


def smoother_rows(
    statistic: Callable[..., Any],
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    *rows: Shaped[Array, "q ..."],
    fixed: tuple[Any, ...] = (),
    mask: masks.MaskFunction | None = None,
    degree: int = 0,
    **options: Any,
) -> Any:
    """A statistic of the rows of L, which are not stored at once where they are many.

    `statistic(hat, mask, *rows, *fixed)` gets some rows of L, [c, k], their mask, the same rows of
    each of `rows`, and what is `fixed`; the first axis of what it returns is c.
    """
    options["degree"] = degree
    if _is_whole(query, key, degree):
        return statistic(smoother(query, key, mask=mask, **options), mask, *rows, *fixed)
    check(smoother, query, key, mask=mask, **options)
    return compiled(_smoother_in_chunks, statistic, query, key, rows, fixed, mask, options)()


def _smoother_in_chunks(statistic, query, key, rows, fixed, mask, options):
    def of_chunk(query, index, *rows):
        here = mask_of_rows(mask, index)
        return statistic(smoother(query, key, mask=here, **options), here, *rows, *fixed)

    stored = stored_per_query(key, options["degree"])
    return in_chunks(of_chunk, (query, jnp.arange(len(query)), *rows), stored=stored)


def leave_one_out(
    key: Num[ArrayLike, "n d"],
    value: Num[ArrayLike, "n e"],
    *,
    rows: Int[ArrayLike, " r"] | None = None,
    **options: Any,
) -> Float[Array, "r e"]:
    """Predict each row from all the others: the diagonal is masked, which is exact.

    With `rows`, indices that may be traced, only these rows are predicted. Options are those of
    `kernel_regression`; a mask (of all rows by all rows) holds beside it. The usual closed form
    residual / (1 - L_ii) is 0/0 at an isolated point; a mask in log space is not.

    >>> leave_one_out(jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])).tolist()
    [[2.0], [0.0]]
    """
    (key,) = centred_inputs(options.get("score", Kernel()), key=key)
    value, centre = centred_targets(value, shift=moves_when_left_out(key, options))
    mask = options.pop("mask", None)
    mask = others if mask is None else others & mask
    query = key
    if rows is not None:
        rows = checked_rows(rows, key)
        mask.check(len(key), len(key))
        query, mask = gathered(key, rows), masks.Rows(mask, everywhere(rows))
    return uncentred(kernel_regression(query, key, value, mask=mask, **options), centre)


def moves_when_left_out(key: Num[Array, "n d"], options: dict[str, Any]) -> bool:
    """Whether leave-one-out predictions move as all targets do: that of a single row is 0."""
    given = options.get("case_weights")
    counted = None if given is None else concrete(as_array(given, "case_weights"))
    single = key.shape[:1] == (1,) if counted is None else int((counted > 0).sum()) < 2
    return not single and moves_with_targets(**options)


def checked_rows(rows: Int[ArrayLike, " r"], key: Num[Array, "n d"]) -> Int[Array, " r"]:
    """Indices of rows of the data, refused where they are not."""
    rows, n = as_array(rows, "rows"), key.shape[0]
    proper = rows.ndim == 1 and jnp.issubdtype(rows.dtype, jnp.integer)
    require(proper, "rows", "be one integer for each row", rows)
    inside = all_hold(rows, lambda i: (i >= 0) & (i < n))
    require(inside, "rows", f"be indices of the {n} rows, from 0 to {n - 1}", rows)
    return rows


others = ~masks.Window(0, 0)  # all rows but the query's own


def _is_plain_softmax(normalizer: Any) -> bool:
    """Whether it is a softmax without a sink, which streams here."""
    return normalizer is softmax or (isinstance(normalizer, Softmax) and normalizer.sink is None)


def _is_whole(query: Num[Array, "..."], key: Num[Array, "..."], degree: int) -> bool:
    """Whether all rows of L may be stored at once; what is refused anyway may."""
    if query.ndim != 2 or key.ndim != 2:
        return True
    return is_whole(query.shape[0], stored_per_query(key, degree))
