"""Entmax rows: the threshold at which the weights sum to one, and its derivatives.

With a = α - 1, entmax is w_j = [a (s_j - τ)]₊^(1/a). Instead of τ the solver seeks the weight v
of one supported entry, the pivot p, because every other weight is well conditioned in it:

    w_j = [v^a + a (s_j - s_p)]₊^(1/a),      F(v) = Σ_j w_j = 1.

For α ≤ 2 the pivot is the largest score, for α > 2 the smallest supported one (there the terms in
the sum are all positive and nothing cancels; a bisection on τ loses all digits). Either way F is
increasing, convex and has F' ≥ 1, so Newton's iteration from the right end falls monotonically to
the root. From convexity, F(v') - 1 and F'(v') of the next iterate satisfy

    (F(v') - 1) / (F(v) - 1)  +  F'(v') / F'(v)  ≤  1,

so their product shrinks at least fourfold at each step. It starts below n² for n keys and ends at
rounding: `_most_steps` bounds the steps for every input, and three to eight are usual. For α = 2
this is Michelot's (1986) finite algorithm.

The derivative is implicit (Correia, Niculae & Martins 2019, prop. 1): with g_j = w_j^(2-α) on the
support, ẇ_j = g_j (u_j - Σ g u / Σ g), where u_j = ṡ_j + α̇ r_j and r_j = -log²w_j χ(-a log w_j),
χ(x) = (1 - (1 + x) e⁻ˣ) / x²: alpha moves the weights as scores that move by r would. The paper's
form of α's derivative cancels as α → 1; this one does not.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attn_jax.checks import all_hold, concrete, require, require_scalar
from attn_jax.meshes import axes_of, varying
from attn_jax.primitive import Differentiable

ALPHA_LIMIT = 16.0

Rows = Float[Array, "*rows k"]
PerRow = Float[Array, "*rows 1"]
Allowed = Bool[Array, "*rows k"]


def require_alpha(alpha: Any) -> None:
    """Refuse an alpha outside (1, 16] wherever it is concrete."""
    require_scalar(alpha, "alpha")
    supported = all_hold(alpha, lambda a: (a > 1) & (a <= ALPHA_LIMIT))
    rule = f"be above 1 (softmax is the limit at 1) and at most {ALPHA_LIMIT:g}"
    require(supported, "alpha", rule, alpha)


def entmax_rows(scores: Rows, alpha: Any, allowed: Allowed | None = None) -> Rows:
    """Entmax of each row; -inf is masked, and an empty row's weights are for the caller to clear.

    What is not `allowed` is masked too. The solver is chosen where alpha is concrete; a traced
    alpha chooses at run time and gives NaN outside the supported range. It is compiled once for
    equal shapes, also where the caller is not.
    """
    if scores.shape[-1] == 0:
        return scores
    known = concrete(alpha)
    if known is None:
        return _rows(_either, scores, alpha, allowed)
    a = float(known) - 1  # in double precision also for float32 scores
    solve = {0.5: _quadratic, 1.0: _linear}.get(a, _from_top if a <= 1 else _from_bottom)
    # An array keeps its place in the graph, so that a concrete alpha is differentiated too.
    a = a if isinstance(alpha, (int, float, np.ndarray, np.generic)) else alpha - 1
    return _rows(solve, scores, a, allowed)


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _rows(solve: Callable, scores: Rows, a: Any, allowed: Allowed | None) -> Rows:
    """`entmax_rows` by this solver, for α - 1; `_either` gets α itself."""
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    # A comparison would drop a NaN from the support; it has to show, and so has ∞, as ∞ - ∞ does.
    top = jnp.max(scores, axis=-1, keepdims=True)
    nan = jnp.isnan(top) | (top == jnp.inf)
    a = jnp.asarray(a, scores.dtype)
    if solve is _either:
        nan |= ~((a > 1) & (a <= ALPHA_LIMIT))
        a = a - 1
    weights = _deformed(solve, *_together(jnp.where(nan, 0.0, scores), a))
    return jnp.where(nan, jnp.nan, weights)


def _together(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, all varying over the same axes of `jax.shard_map`, as loops and branches need."""
    return varying(arrays, axes_of(arrays))


def _deformed(solve: Callable, scores: Rows, a: Float[Array, ""]) -> Rows:
    """The solver's weights, with the rule for them."""

    def tangent(arrays, outputs, tangents):
        moved = [
            jnp.zeros_like(array) if each is None else each
            for array, each in zip(arrays, tangents, strict=True)
        ]
        return [_deformed_tangent(outputs[0], arrays[1], *moved)]

    return Differentiable(lambda *arrays: [solve(*arrays)], tangent)(scores, a)[0]


@jax.checkpoint  # of all that it computes a derivative keeps the weights alone
def _deformed_tangent(
    weights: Rows, a: Float[Array, ""], d_scores: Rows, d_a: Float[Array, ""]
) -> Rows:
    support = weights > 0
    log_weights = jnp.log(jnp.where(support, weights, 1.0))
    # alpha's tangent is that of scores which move by r: its own, less what the threshold takes back
    moved = jnp.where(support, d_scores + d_a * _moved_by_alpha(weights, a), 0.0)

    # g = w^(1-a), which for α > 2 is largest, without bound, for the smallest weight
    largest = math.log(float(jnp.finfo(weights.dtype).max)) - 10
    log_g = jnp.where(support, jnp.minimum((1 - a) * log_weights, largest), -largest)
    top = jax.lax.stop_gradient(jnp.max(log_g, axis=-1, keepdims=True))
    share = jnp.where(support, jnp.exp(log_g - top), 0.0)
    total = jnp.sum(share, axis=-1, keepdims=True)
    share = share / jnp.where(total == 0, 1.0, total)

    # That entry is the origin, its tangent what the others leave: g (ṡ - mean) would cancel.
    origin = jax.nn.one_hot(jnp.argmax(log_g, axis=-1), weights.shape[-1], dtype=bool) & support
    others = support & ~origin
    at_origin = jnp.sum(jnp.where(origin, moved, 0.0), axis=-1, keepdims=True)
    relative = jnp.where(others, moved - at_origin, 0.0)
    mean = jnp.sum(share * relative, axis=-1, keepdims=True)
    g = jnp.where(others, jnp.exp(jnp.where(others, log_g, 0.0)), 0.0)
    d_weights = g * (relative - mean)
    balance = -jnp.sum(d_weights, axis=-1, keepdims=True)
    return d_weights + jnp.where(origin, balance, 0.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def entmax_weight(
    known: float | None, z: Float[Array, "..."], level: Float[Array, "..."], a: Float[Array, ""]
) -> Float[Array, "..."]:
    """[level^a + a z]₊^(1/a): the weight of a score that lies z above one of weight `level`.

    `known` is a where it is known statically. The level is positive.
    """
    if known == 1:
        return jnp.maximum(z + level, 0.0)
    if known == 0.5:
        return jnp.square(jnp.maximum(z / 2 + jnp.sqrt(level), 0.0))
    if known is None:
        small = a <= 1
        near = _weight_by_ratio(z, level, jnp.where(small, a, 1.0))
        return jnp.where(small, near, _weight_by_power(z, level, jnp.where(small, 1.0, a)))
    return (_weight_by_ratio if known < 1 else _weight_by_power)(z, level, a)


@entmax_weight.defjvp
def _entmax_weight_jvp(known, primals, tangents):
    # With g = w^(1-a): ẇ = g(w) (ż + ȧ (r(w) - r(level)) + level' / g(level)), r as for the rows.
    z, level, a = primals
    d_z, d_level, d_a = tangents
    weight = entmax_weight(known, z, level, a)
    if known == 1:
        return weight, jnp.where(weight > 0, d_z + d_level, 0.0)
    slope = _slope(known, weight, a)
    moved = d_z + d_level / _slope(known, level, a)
    if known is None:
        moved += d_a * (_moved_by_alpha(weight, a) - _moved_by_alpha(level, a))
    return weight, jnp.where(weight > 0, slope * jnp.where(weight > 0, moved, 0.0), 0.0)


def _weight_by_ratio(z, level, a):
    y = a * z * jnp.exp(-a * jnp.log(level))
    outside = y <= -1
    log_ratio = jnp.log1p(jnp.where(outside, 0.0, y)) / a
    return jnp.where(outside, 0.0, level * jnp.exp(log_ratio))


def _weight_by_power(z, level, a):
    base = _power(level, a) + a * z
    outside = base <= 0
    return jnp.where(outside, 0.0, _power(jnp.where(outside, 1.0, base), 1 / a))


def _slope(known: float | None, weight: Float[Array, "..."], a: Float[Array, ""]):
    """dw/ds = w^(1-a) on the support; for a > 1 it is bounded, where w would put it beyond."""
    if known == 0.5:
        inside = weight > 0
        return jnp.where(inside, jnp.sqrt(jnp.where(inside, weight, 1.0)), 0.0)
    largest = math.log(float(jnp.finfo(weight.dtype).max)) - 10
    log_weight = jnp.log(jnp.where(weight > 0, weight, 1.0))
    return jnp.exp(jnp.minimum((1 - a) * log_weight, largest))


def _moved_by_alpha(weight: Float[Array, "..."], a: Float[Array, ""]) -> Float[Array, "..."]:
    """r: alpha's tangent is that of scores which move by r."""
    log_weight = jnp.log(jnp.where(weight > 0, weight, 1.0))
    return -jnp.square(log_weight) * _chi(-a * log_weight)


def _chi(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """(1 - (1 + x) e⁻ˣ) / x² for x ≥ 0, by its series where the quotient would cancel."""
    small = x < 1
    near = jnp.where(small, x, 0.0)
    series = jnp.zeros_like(x)
    for n in range(20, -1, -1):  # Σ (-x)ⁿ (n + 1) / (n + 2)!
        series = (n + 1) / math.factorial(n + 2) - near * series
    far = jnp.where(small, 1.0, x)
    return jnp.where(small, series, (1 - (1 + far) * jnp.exp(-far)) / jnp.square(far))


def _newton(weights_and_slope: Callable[[PerRow], tuple[Rows, PerRow]], start: PerRow, k: int):
    """Fall from `start` to the root of F(v) = 1, row by row, until no row falls further."""

    def falls(state):
        left, _ = state
        return jnp.any(left > 0)

    def fall(state):
        left, v = state
        weights, slope = weights_and_slope(v)
        excess = jnp.sum(weights, axis=-1, keepdims=True) - 1
        lower = v - excess / jnp.maximum(slope, 1.0)  # F' ≥ 1 but for an empty row
        falling = (lower < v) & (lower > 0)
        return jnp.where(falling, left - 1, 0), jnp.where(falling, lower, v)

    # a count of steps for each row: one for all has no sharding that a vmap could extend
    steps = jnp.full_like(start, _most_steps(k, start.dtype), jnp.int32)
    _, v = jax.lax.while_loop(falls, fall, (steps, start))
    return weights_and_slope(v)[0]


def _most_steps(k: int, dtype: jnp.dtype) -> int:
    """Steps within which (F - 1) F' falls from k² to the rounding of F, a fourfold drop each."""
    digits = -math.log2(float(jnp.finfo(dtype).eps))
    return math.ceil((2 * _log2(k) + digits) / 2) + 2


def _log2(k: int) -> float:
    """log₂ k, 1 at least; that of the most keys there can be where the length is symbolic."""
    return math.log2(max(k, 2)) if isinstance(k, int) else 31.0


def _shifted(scores: Rows, a: Float[Array, ""]) -> tuple[Rows, PerRow]:
    """Scores less their maximum, and the floor -1/a: what lies on or below it has no weight."""
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    return jnp.maximum(scores - top, -1 / a), top


def _linear(scores: Rows, a: Float[Array, ""]) -> Rows:
    """α = 2: w = [v + z]₊, z = scores less their maximum."""
    z, top = _shifted(scores, a)

    def weights_and_slope(v):
        inside = z > -v
        return jnp.where(inside, z + v, 0.0), jnp.sum(inside, -1, keepdims=True).astype(z.dtype)

    return _newton(weights_and_slope, jnp.ones_like(top), z.shape[-1])


def _quadratic(scores: Rows, a: Float[Array, ""]) -> Rows:
    """α = 1.5: w = [√v + z/2]₊²."""
    z, top = _shifted(scores, a)

    def weights_and_slope(v):
        root = jnp.sqrt(v)
        base = z / 2 + root
        base = jnp.where(base <= 0, 0.0, base)
        return jnp.square(base), jnp.sum(base, axis=-1, keepdims=True) / root

    return _newton(weights_and_slope, jnp.ones_like(top), z.shape[-1])


def _from_top(scores: Rows, a: Float[Array, ""]) -> Rows:
    """α ≤ 2, the largest score as pivot: w = v [1 + a z / v^a]₊^(1/a), by log1p as a → 0."""
    z, top = _shifted(scores, a)
    floor = z <= -1 / a  # a · (1 / a) may round to less than 1

    def weights_and_slope(v):
        y = a * z * jnp.exp(-a * jnp.log(v))
        outside = floor | (y <= -1)
        log_ratio = jnp.log1p(jnp.where(outside, 0.0, y)) / a  # log(w / v)
        weights = jnp.where(outside, 0.0, v * jnp.exp(log_ratio))
        slope = jnp.where(outside, 0.0, jnp.exp((1 - a) * log_ratio))
        return weights, jnp.sum(slope, axis=-1, keepdims=True)

    return _newton(weights_and_slope, jnp.ones_like(top), z.shape[-1])


def _from_bottom(scores: Rows, a: Float[Array, ""]) -> Rows:
    """α > 2, the smallest supported score as pivot: w = [v^a + a (s - s_p)]^(1/a)."""
    shifted, top = _shifted(scores, a)
    near = shifted > -1 / a  # by differences, which do not round where scores are large
    scores = jnp.where(scores == -jnp.inf, top - 1 / a, scores)
    k = scores.shape[-1]
    descending = -jnp.sort(-scores, axis=-1)

    def mass_above(pivot):  # F at the threshold where the pivot's weight is 0
        above = jnp.maximum(scores - pivot, 0.0)
        return jnp.sum(_power(a * above, 1 / a), axis=-1, keepdims=True)

    # The support is the near scores whose mass above is < 1: a prefix of the sorted ones.
    last = jnp.zeros_like(top, jnp.int32)
    beyond = jnp.sum(near, axis=-1, keepdims=True, dtype=jnp.int32)
    for _ in range(math.ceil(_log2(k)) + 1):
        middle = (last + beyond) // 2
        supported = mass_above(jnp.take_along_axis(descending, middle, axis=-1)) < 1
        last, beyond = jnp.where(supported, middle, last), jnp.where(supported, beyond, middle)
    pivot = jnp.take_along_axis(descending, last, axis=-1)

    inside = near & (scores >= pivot)
    above = a * jnp.where(inside, scores - pivot, 0.0)

    def weights_and_slope(v):
        weights = jnp.where(inside, _power(_power(v, a) + above, 1 / a), 0.0)
        ratio = jnp.where(inside, weights / v, 1.0)
        slope = jnp.where(inside, _power(ratio, 1 - a), 0.0)
        return weights, jnp.sum(slope, axis=-1, keepdims=True)

    count = jnp.sum(inside, axis=-1, keepdims=True).astype(scores.dtype)
    return _newton(weights_and_slope, 1 / jnp.maximum(count, 1.0), k)


def _either(scores: Rows, a: Float[Array, ""]) -> Rows:
    """The pivot by a traced alpha."""
    return jax.lax.cond(a <= 1, _from_top, _from_bottom, scores, a)


def _power(x: Float[Array, "..."], exponent: Float[Array, ""]) -> Float[Array, "..."]:
    """x^exponent for x ≥ 0, without the sign handling of a general power."""
    return jnp.exp(exponent * jnp.log(x))
