"""Normalizers: from scores to weights. `(scores, where=None, axis=-1) -> weights`.

`where` (True = allowed) broadcasts to the scores; a score of -inf is not allowed either. For each:

- a score that is not allowed never enters the arithmetic: its weight and its derivative are 0;
- a row with nothing allowed has weights 0 and derivatives 0, and never NaN;
- a NaN at an allowed position shows: the row's allowed weights are NaN (for `sigmoid`, which has no
  sum over the row, that one weight);
- so does +inf, as of a score that overflowed: its share ∞ - ∞ is not defined. Where a limit is, it
  is taken: the logsumexp is inf, the weight of `sigmoid` 1;
- half-precision scores, and narrower ones, are normalized, and returned, in float32; float64 stays
  float64.

All are w = g(scores - τ) with a threshold τ for each row:

| normalizer | g(z) | τ |
|---|---|---|
| softmax | exp z | logsumexp of the row, and of the sink |
| entmax α | [(α - 1) z]₊^(1/(α - 1)) | Σw = 1 |
| sparsemax | z₊ | Σw = 1 |
| sigmoid | 1 / (1 + e⁻ᶻ) | -bias |
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Num

from attn_jax.checks import all_hold, as_array, require, require_scalar
from attn_jax.precision import accumulate
from attn_jax.slots import slot
from attn_jax.thresholds import entmax_rows, require_alpha

Where = Bool[ArrayLike, "..."] | None


@runtime_checkable
class Normalizer(Protocol):
    """From scores to weights: a member of this module, or a function of the same signature."""

    def __call__(
        self, scores: Num[ArrayLike, "..."], /, where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]: ...


def softmax(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1, sink: Any = None
) -> Float[Array, "..."]:
    """exp(scores) / (Σ exp(scores) + exp(sink)); without a sink each row sums to one.

    A sink logit joins the sum and takes no value: sink=0 is softmax-off-by-one, sink=-inf is none,
    sink=inf takes all. (Bridle 1990; sink: Miller 2023, Xiao et al. 2024.)

    >>> softmax(jnp.array([0.0, 0.0, 9.0]), where=jnp.array([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    scores, allowed, axis = _rows(scores, where, axis)
    weights, _ = _softmax_rows(*_with_sink(scores, allowed, sink))
    return jnp.moveaxis(weights, -1, axis)


def logsumexp(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1, sink: Any = None
) -> Float[Array, "..."]:
    """log(Σ exp(scores) + exp(sink)) of each row; -inf for an empty one, with derivative 0.

    inf where a score is inf, and there without a derivative.

    >>> logsumexp(jnp.array([-jnp.inf, -jnp.inf])).item()
    -inf
    """
    scores, allowed, axis = _rows(scores, where, axis)
    exponentials, sinks, top = _exponentials(*_with_sink(scores, allowed, sink))
    total = jnp.sum(exponentials, axis=-1, keepdims=True) + sinks
    empty = total == 0
    value = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, total)) + top)
    return jnp.where(top == jnp.inf, top, value)[..., 0]


def sparsemax(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
) -> Float[Array, "..."]:
    """Project each row onto the probability simplex.

    w = argmin ‖w - scores‖² subject to w ≥ 0, Σw = 1. (Martins & Astudillo 2016, eq. 2.)

    >>> sparsemax(jnp.array([2.0, 1.5, 0.0])).tolist()
    [0.75, 0.25, 0.0]
    """
    return entmax(scores, where, axis, alpha=2)


def entmax15(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
) -> Float[Array, "..."]:
    """Entmax with alpha = 1.5, between softmax and sparsemax. (Peters et al. 2019.)

    >>> entmax15(jnp.array([2.0, 2.0, 0.0])).round(6).tolist()
    [0.5, 0.5, 0.0]
    """
    return entmax(scores, where, axis, alpha=1.5)


def entmax(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1, alpha: Any = 1.5
) -> Float[Array, "..."]:
    """w = [(α - 1)(scores - τ)]₊^(1/(α - 1)) with Σw = 1. (Peters, Niculae & Martins 2019, eq. 10.)

    α → 1 is softmax, 2 is sparsemax; 1 < alpha ≤ 16, where an alpha that is traced and outside
    gives NaN. Exact to rounding for every input, with exact derivatives in the scores and in alpha
    (Correia, Niculae & Martins 2019, prop. 1): see `attn_jax.thresholds`.

    >>> entmax(jnp.array([1.0, 0.0]), alpha=4.0).tolist()
    [1.0, 0.0]
    """
    require_alpha(alpha)
    scores, allowed, axis = _rows(scores, where, axis)
    weights = jnp.where(allowed, entmax_rows(scores, alpha, allowed), 0.0)
    return jnp.moveaxis(weights, -1, axis)


def sigmoid(
    scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1, bias: Any = 0.0
) -> Float[Array, "..."]:
    """1 / (1 + e^-(scores + bias)): each weight by itself, no sum to one. (Ramapuram et al. 2025.)

    >>> sigmoid(jnp.array([0.0, -jnp.inf])).tolist()
    [0.5, 0.0]
    """
    scores, allowed, axis = _rows(scores, where, axis)
    scores, bias = accumulate(scores, bias)
    weights = jax.nn.sigmoid(jnp.where(allowed, scores, 0.0) + bias)
    return jnp.moveaxis(jnp.where(allowed, weights, 0.0), -1, axis)


@slot
class Softmax:
    """`softmax`, with a sink logit where one is given (a number; learned as an array)."""

    sink: Float[ArrayLike, "..."] | int | None = None

    def __post_init__(self):
        if self.sink is not None:
            require_scalar(self.sink, "sink")
            require(all_hold(self.sink, lambda v: v == v), "sink", "not be NaN", self.sink)

    def __call__(
        self, scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]:
        return softmax(scores, where, axis, sink=self.sink)

    def logsumexp(
        self, scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]:
        """log of the denominator: of the row, and of the sink if there is one."""
        return logsumexp(scores, where, axis, sink=self.sink)


@slot
class Sparsemax:
    """`sparsemax`."""

    def __call__(
        self, scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]:
        return sparsemax(scores, where, axis)


@slot
class Entmax:
    """`entmax` with this alpha, a number or an array that is learned."""

    alpha: Float[ArrayLike, "..."] | int = 1.5

    def __post_init__(self):
        require_alpha(self.alpha)

    def __call__(
        self, scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]:
        return entmax(scores, where, axis, alpha=self.alpha)


@slot
class Sigmoid:
    """`sigmoid` with this bias."""

    bias: Float[ArrayLike, "..."] | int = 0.0

    def __post_init__(self):
        require_scalar(self.bias, "bias")

    def __call__(
        self, scores: Num[ArrayLike, "..."], where: Where = None, axis: int = -1
    ) -> Float[Array, "..."]:
        return sigmoid(scores, where, axis, bias=self.bias)


# from a name to what makes the normalizer of its numbers
BY_NAME: dict[str, Callable[..., Normalizer]] = {
    "softmax": Softmax,
    "off-by-one": functools.partial(Softmax, 0.0),
    "sparsemax": Sparsemax,
    "entmax15": functools.partial(Entmax, 1.5),
    "entmax": Entmax,
    "sigmoid": Sigmoid,
}


def _rows(
    scores: Num[ArrayLike, "..."], where: Where, axis: int
) -> tuple[Float[Array, "..."], Bool[Array, "..."], int]:
    """Scores in the accumulation dtype with the rows last, what is allowed, and the axis."""
    (scores,) = accumulate(as_array(scores, "scores"))
    require(
        scores.ndim > 0 and -scores.ndim <= axis < scores.ndim,
        "axis",
        f"be one of the scores' {scores.ndim} axes",
        axis,
    )
    allowed = scores != -jnp.inf
    if where is not None:
        where = jnp.asarray(where)
        require(where.dtype == bool, "where", "be boolean, True = allowed", where)
        fits = where.ndim <= scores.ndim and all(
            a in (1, b) for a, b in zip(where.shape[::-1], scores.shape[::-1], strict=False)
        )
        require(fits, "where", f"broadcast to the scores' shape {scores.shape}", where)
        allowed &= jnp.broadcast_to(where, scores.shape)
    return jnp.moveaxis(scores, axis, -1), jnp.moveaxis(allowed, axis, -1), axis


def _with_sink(scores: Array, allowed: Array, sink: Any) -> tuple[Array, Array, Array | None]:
    """A sink in a dtype of its own widens the scores."""
    if sink is not None:
        scores, sink = accumulate(scores, sink)
    return scores, allowed, sink


@jax.custom_jvp
def _softmax_rows(
    scores: Float[Array, "... k"], allowed: Bool[Array, "... k"], sink: Float[Array, ""] | None
) -> tuple[Float[Array, "... k"], Float[Array, "... 1"]]:
    """The weights, and the sink's."""
    exponentials, sinks, _ = _exponentials(scores, allowed, sink)
    total = jnp.sum(exponentials, axis=-1, keepdims=True) + sinks
    total = jnp.where(total == 0, 1.0, total)
    # where a row is NaN its zeros stay zeros
    return jnp.where(allowed, exponentials / total, 0.0), sinks / total


@_softmax_rows.defjvp
def _softmax_rows_jvp(primals, tangents):
    (scores, allowed, sink), (d_scores, _, d_sink) = primals, tangents
    weights, sinks = _softmax_rows(scores, allowed, sink)
    return (weights, sinks), _softmax_tangents(weights, sinks, allowed, d_scores, d_sink)


@jax.checkpoint  # of all that it computes a derivative keeps its arguments alone
def _softmax_tangents(weights, sinks, allowed, d_scores, d_sink):
    d_scores = jnp.where(allowed, d_scores, 0.0)
    d_sink = jnp.zeros_like(sinks) if d_sink is None else d_sink
    mean = jnp.sum(weights * d_scores, axis=-1, keepdims=True) + sinks * d_sink
    return weights * (d_scores - mean), sinks * (d_sink - mean)


def _exponentials(
    scores: Float[Array, "... k"], allowed: Bool[Array, "... k"], sink: Float[Array, ""] | None
) -> tuple[Float[Array, "... k"], Float[Array, "... 1"], Float[Array, "... 1"]]:
    """exp(scores - top), the sink's (0 without one), and top: the row's maximum, finite."""
    lowest = jnp.finfo(scores.dtype).min
    top = jnp.max(jnp.where(allowed, scores, lowest), axis=-1, keepdims=True, initial=lowest)
    # the same number: XLA on CPUs would write a bare maximum once for each score of its row
    top = jnp.where(top == lowest, lowest, top)
    if sink is not None:
        top = jnp.maximum(top, sink)
    # The shift cancels, so it needs no derivative.
    top = jax.lax.stop_gradient(top)
    exponentials = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores, top) - top), 0.0)
    if sink is None:
        return exponentials, jnp.zeros_like(top), top
    takes_all = sink == jnp.inf  # then it is the top, and the difference 0
    sink, shift = jnp.where(takes_all, 0.0, sink), jnp.where(takes_all, 0.0, top)
    return exponentials, jnp.exp(sink - shift), top
