"""The property of each invariant of normalizers: a function that raises `PropertyViolation`."""

from typing import Any

import numpy as np
from hypothesis import assume

from attn_jax.testing.invariants import (
    Case,
    Subject,
    differences,
    promised_dtype,
    require_at_least,
    require_close,
    require_finite,
)
from attn_jax.testing.reports import PropertyViolation

# Values


def non_negative(weights: Subject, case: Case) -> None:
    got = weights(case["scores"], mask=case["where"])
    require_at_least("weights", got, 0.0, 0.0)


def sums_to_one(weights: Subject, case: Case) -> None:
    got = weights(case["scores"], mask=case["where"])
    require_close("sum of the weights", got.sum(-1), 1.0, weights.tolerance(case["scores"]))


def shift_invariant(weights: Subject, case: Case) -> None:
    s, shift = case["scores"], np.asarray(case["shift"], case["scores"].dtype)
    expected = weights(s, mask=case["where"])
    require_close(
        "weights of scores + shift", weights(s + shift, mask=case["where"]), expected,
        weights.tolerance(s),
    )  # fmt: skip


def permutation_equivariant(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s[case["order"]], mask=None if where is None else where[case["order"]])
    expected = weights(s, mask=where)[case["order"]]
    require_close("weights of permuted scores", got, expected, weights.tolerance(s))


def order_preserving(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    allowed = np.full(s.shape, True) if where is None else where
    require_finite("weights", got)
    s = s.astype(np.float64)
    for i, j in np.ndindex(len(s), len(s)):
        excess = got[i] - got[j] if s[i] <= s[j] else 0.0
        if allowed[i] and allowed[j] and excess > weights.tolerance(case["scores"]):
            raise PropertyViolation(f"the lower score has {excess:.3g} more weight", weights=got)


LARGE = {"float16": 2**10, "bfloat16": 2**7, "float32": 2**23, "float64": 2**30}


def large_scores(weights: Subject, case: Case) -> None:
    s = case["scores"]
    top = LARGE[s.dtype.name]
    large = (np.round(s) + np.asarray(case["sign"] * top // case["part"], s.dtype)).astype(s.dtype)
    got = weights(large)
    require_finite("weights of scores + large", got)
    require_at_least("weights of scores + large", got, 0.0, 0.0)
    require_at_least("1 - weights of scores + large", 1 - got, 0.0, weights.tolerance(s))
    if weights.promises("shift-invariant"):
        expected = weights(np.round(s))
        require_close("weights of scores + large", got, expected, weights.tolerance(s))


def low_temperature(weights: Subject, case: Case) -> None:
    s, where = np.round(case["scores"] / 4), case["where"]
    got = weights(s * np.asarray(4096, s.dtype), mask=where)
    top = s == np.max(s if where is None else np.where(where, s, -np.inf))
    top &= True if where is None else where
    require_close("weights of 4096 · scores", got, top / top.sum(), weights.tolerance(s))


def high_temperature(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s * np.asarray(2.0**-26, s.dtype), mask=where)
    allowed = np.full(s.shape, True) if where is None else where
    expected = allowed / allowed.sum()
    require_close("weights of scores / 2²⁶", got, expected, weights.tolerance(s))


# What is not there


def deleted(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    expected = np.zeros(s.shape)
    expected[where] = weights(s[where])
    assume(np.isfinite(expected).all())
    require_close("weights", got, expected, weights.tolerance(s))
    require_close("masked weights", got[~where], expected[~where], 0.0)


def deleted_in_gradient(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    cotangent = case["cotangent"]
    (got,) = weights.gradient(s, mask=where, cotangent=cotangent)
    expected = np.zeros(s.shape)
    (expected[where],) = weights.gradient(s[where], cotangent=cotangent[where])
    assume(np.isfinite(expected).all())
    require_close("gradient", got, expected, weights.tolerance(s, gradient=True))
    require_close("masked gradient", got[~where], expected[~where], 0.0)


def deleted_in_both(weights: Subject, case: Case) -> None:
    deleted(weights, case)
    if weights.options.differentiable:
        deleted_in_gradient(weights, case)


def minus_infinity(weights: Subject, case: Case) -> None:
    s = case["scores"]
    there = s != -np.inf
    assume(there.any())
    got = weights(s)
    expected = np.zeros(s.shape)
    expected[there] = weights(s[there])
    require_close("weights", got, expected, weights.tolerance(s))
    if weights.options.differentiable and weights.function.name != "numpy":
        cotangent = case["cotangent"]
        (got,) = weights.gradient(s, cotangent=cotangent)
        expected = np.zeros(s.shape)
        (expected[there],) = weights.gradient(s[there], cotangent=cotangent[there])
        require_close("gradient", got, expected, weights.tolerance(s, gradient=True))


def empty_row(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    require_close("weights", weights(s, mask=where), np.zeros(s.shape), 0.0)
    if weights.options.differentiable:
        (got,) = weights.gradient(s, mask=where, cotangent=np.arange(1.0, 1 + len(s)))
        require_close("gradient", got, np.zeros(s.shape), 0.0)


# Derivatives


def _jacobian(weights: Subject, s: np.ndarray) -> np.ndarray:
    jacobian = [weights.gradient(s, cotangent=row)[0] for row in np.eye(len(s))]
    require_finite("Jacobian", np.array(jacobian))
    return np.array(jacobian)


def jacobian_symmetric(weights: Subject, case: Case) -> None:
    jacobian = _jacobian(weights, case["scores"])
    tolerance = weights.tolerance(case["scores"], gradient=True)
    require_close("Jacobian", jacobian, jacobian.T, tolerance)
    least = np.linalg.eigvalsh(jacobian + jacobian.T).min() / 2
    if least < -tolerance:
        raise PropertyViolation(f"the Jacobian has the eigenvalue {least:.3g}", Jacobian=jacobian)


def jacobian_shift(weights: Subject, case: Case) -> None:
    jacobian = _jacobian(weights, case["scores"])
    tolerance = weights.tolerance(case["scores"], gradient=True)
    require_close("Jacobian · 1", jacobian.sum(-1), np.zeros(len(jacobian)), tolerance)


def gradient_finite(weights: Subject, case: Case) -> None:
    s = case["scores"]
    (got,) = weights.gradient(s, cotangent=case["cotangent"])
    require_finite("gradient", got)


def gradient_true(weights: Subject, case: Case) -> None:
    s, cotangent = case["scores"], case["cotangent"]
    (got,) = weights.gradient(s, cotangent=cotangent)
    expected = differences(lambda each: np.sum(cotangent * weights(each)), s)
    require_close("gradient", got, expected, 2e-2)


# Batches, transformations, dtypes


def batch_invariant(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    for i, row in enumerate(s):
        alone = weights(row, mask=None if where is None else where[i])
        if np.isfinite(alone).all():
            require_close(f"weights of row {i}", got[i], alone, weights.tolerance(s))


def vmap(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    expected = [weights(row, mask=None if where is None else where[i]) for i, row in enumerate(s)]
    assume(np.isfinite(expected).all())
    function: Any = weights.function  # one of JAX
    got = function.vmapped([s], where)
    require_close("weights by vmap", got, expected, weights.tolerance(s))


def jit(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    expected, _ = weights.function.raw([s], where)
    assume(np.isfinite(expected).all())
    function: Any = weights.function  # one of JAX
    got = function.jitted([s], where)
    require_close("weights by jit", got, expected, weights.tolerance(s))


def dtype(weights: Subject, case: Case) -> None:
    given = case["scores"].dtype.name
    assume(given in weights.function.dtypes)
    got = weights.function.dtype_of([case["scores"]])
    promised = promised_dtype(weights.options, given)
    if got != promised:
        raise PropertyViolation(f"{given} scores give {got} weights, not {promised}")


def reference(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    exact = s.astype(np.float64)
    oracle = weights.options.reference
    assert oracle is not None
    expected = oracle(exact) if where is None else oracle(exact, where=where)
    require_close("weights", weights(s, mask=where), expected, weights.tolerance(s))
