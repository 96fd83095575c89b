"""The property of each invariant of attention: a function that raises `PropertyViolation`."""

from typing import Any

import numpy as np
from hypothesis import assume

from attn_jax.testing.attention_cases import INPUTS, allowed, inputs
from attn_jax.testing.invariants import (
    Case,
    Subject,
    differences,
    promised_dtype,
    require_close,
    require_finite,
)
from attn_jax.testing.reports import PropertyViolation
from attn_jax.testing.strategies import representable

# Values


def _in_hull(output: np.ndarray, case: Case, tolerance: float) -> None:
    """In every one of a few directions the output is no further than the furthest value."""
    value = case["value"].astype(np.float64)
    e = value.shape[1]
    directions = np.concatenate([np.eye(e), np.random.default_rng(0).normal(size=(8, e))])
    directions = np.concatenate([directions, -directions])
    for i, there in enumerate(allowed(case)):
        excess = (directions @ output[i]) - (directions @ value[there].T).max(-1)
        if not excess.max() <= tolerance * max(1, np.abs(value).max()):
            raise PropertyViolation(
                f"the output of query {i} is {excess.max():.3g} outside the values", output=output
            )


def convex_hull(attention: Subject, case: Case) -> None:
    output = attention(*inputs(case), mask=case["mask"])
    _in_hull(output, case, attention.tolerance(case["value"]))


def sums_to_one(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    same = np.broadcast_to(value[:1], value.shape)
    output = attention(query, key, same, mask=case["mask"])
    expected = np.broadcast_to(value[:1], output.shape)
    require_close("output of equal values", output, expected, attention.tolerance(value))


def linear(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    other = np.flip(value).reshape(value.shape)
    combined = value - np.asarray(2, value.dtype) * other

    def output(each: np.ndarray) -> np.ndarray:
        return attention(query, key, each, mask=case["mask"])

    expected = output(value) - 2 * output(other)
    require_close(
        "output of value - 2 · other", output(combined), expected, 4 * attention.tolerance(value)
    )


def key_permutation(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    mask = case["mask"]
    got = attention(query, key[::-1], value[::-1], mask=None if mask is None else mask[:, ::-1])
    expected = attention(query, key, value, mask=mask)
    require_close("output of reversed keys", got, expected, attention.tolerance(value))


def query_independent(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    output = attention(query, key, value)
    for i in range(len(query)):
        alone = attention(query[i : i + 1], key, value)
        require_close(f"output of query {i}", output[i], alone[0], attention.tolerance(value))


def large_scores(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    large = representable(query.astype(np.float64) * case["scale"], query.dtype)
    output = attention(large, key, value, mask=case["mask"])
    require_finite("output of query · scale", output)
    if attention.promises("convex-hull"):
        _in_hull(output, case, attention.tolerance(value))


# What is not there


def _row_by_row(attention: Subject, case: Case) -> np.ndarray:
    """The output of each query alone, over the keys that it may attend to."""
    query, key, value = inputs(case)
    rows = [
        attention(query[i : i + 1], key[there], value[there])[0]
        for i, there in enumerate(case["mask"])
    ]
    assume(np.isfinite(rows).all())
    return np.array(rows)


def deleted(attention: Subject, case: Case) -> None:
    expected = _row_by_row(attention, case)
    output = attention(*inputs(case), mask=case["mask"])
    require_close("output", output, expected, attention.tolerance(case["value"]))


def deleted_in_gradient(attention: Subject, case: Case) -> None:
    arrays, mask = inputs(case), case["mask"]
    tolerance = attention.tolerance(case["value"], gradient=True)
    expected = [np.zeros(each.shape) for each in arrays]
    query, key, value = arrays
    for i, there in enumerate(mask):
        alone = attention.gradient(
            query[i : i + 1], key[there], value[there], cotangent=case["cotangent"][i : i + 1]
        )
        expected[0][i] += alone[0][0]
        expected[1][there] += alone[1]
        expected[2][there] += alone[2]
    assume(all(np.isfinite(each).all() for each in expected))
    got = attention.gradient(*arrays, mask=mask, cotangent=case["cotangent"])
    unattended = ~mask.any(axis=0)
    for name, one, other in zip(INPUTS, got, expected, strict=True):
        require_close(f"gradient in the {name}", one, other, tolerance)
        if name != "query":
            zero = np.zeros_like(one[unattended])
            require_close(f"gradient in the masked {name}", one[unattended], zero, 0.0)


def deleted_in_both(attention: Subject, case: Case) -> None:
    deleted(attention, case)
    if attention.options.differentiable:
        deleted_in_gradient(attention, case)


def empty_row(attention: Subject, case: Case) -> None:
    arrays, mask = inputs(case), case["mask"]
    output = attention(*arrays, mask=mask)
    require_close("output of query 0", output[0], np.zeros(output.shape[1]), 0.0)
    if attention.options.differentiable:
        cotangent = np.zeros(output.shape, np.float32)
        cotangent[0] = 1
        got = attention.gradient(*arrays, mask=mask, cotangent=cotangent)
        for name, one in zip(INPUTS, got, strict=True):
            require_close(f"gradient in the {name}", one, np.zeros(one.shape), 0.0)


def causal(attention: Subject, case: Case) -> None:
    query, key, value = inputs(case)
    q, k = len(query), len(key)
    own = attention.options.extra["causal_function"]
    if own is not None:
        own = attention.options.extra["causal"]
        key, value, k = key[:q], value[:q], q
        caused, mask = Subject(type(attention.function)(own), attention.options), None
    else:
        caused, mask = attention, np.tril(np.full((q, k), True))
    output = caused(query, key, value, mask=mask)
    for i in range(q):
        alone = attention(query[i : i + 1], key[: i + 1], value[: i + 1])
        require_close(f"output of query {i}", output[i], alone[0], attention.tolerance(value))
    if attention.options.differentiable:
        cotangent = np.zeros(output.shape, np.float32)
        cotangent[0] = 1
        got = caused.gradient(query, key, value, mask=mask, cotangent=cotangent)
        for name, one in zip(INPUTS, got, strict=True):
            later = one[1:]
            what = f"gradient of query 0 in later {name}"
            require_close(what, later, np.zeros(later.shape), 0.0)


def padding(attention: Subject, case: Case) -> None:
    arrays = inputs(case)
    q, k = len(case["query"]), len(case["key"])
    padded = [
        np.pad(each, ((0, 1), (0, 0)), constant_values=each.dtype.type(case["pad"]))
        for each in arrays
    ]
    mask = np.zeros((q + 1, k + 1), bool)
    mask[:q, :k] = True
    output = attention(*padded, mask=mask)[:q]
    expected = attention(*arrays)
    require_close("output with padding", output, expected, attention.tolerance(case["value"]))


# Derivatives


def gradient_finite(attention: Subject, case: Case) -> None:
    got = attention.gradient(*inputs(case), mask=case["mask"], cotangent=case["cotangent"])
    for name, one in zip(INPUTS, got, strict=True):
        require_finite(f"gradient in the {name}", one)


def gradient_true(attention: Subject, case: Case) -> None:
    arrays = list(inputs(case))
    got = attention.gradient(*arrays, cotangent=case["cotangent"])
    for place, name in enumerate(INPUTS):

        def value(each: np.ndarray, place: int = place) -> Any:
            changed = [*arrays[:place], each, *arrays[place + 1 :]]
            return np.sum(case["cotangent"] * attention(*changed))

        expected = differences(value, arrays[place])
        require_close(f"gradient in the {name}", got[place], expected, 2e-2)


# Batches, transformations, dtypes


def _in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    return np.swapaxes(array, 1, 2) if layout == "BTNH" else array


def batch_invariant(attention: Subject, case: Case) -> None:
    extra = attention.options.extra
    batched = Subject(type(attention.function)(extra["batch"]), attention.options)
    arrays = [_in_layout(each, extra["layout"]) for each in inputs(case)]
    output = _in_layout(batched(*arrays, mask=case["mask"]), extra["layout"])
    for place in np.ndindex(2, 2):
        mask = None if case["mask"] is None else case["mask"][place]
        alone = attention(*(each[place] for each in inputs(case)), mask=mask)
        what = "output of example {} head {}".format(*place)
        require_close(what, output[place], alone, attention.tolerance(case["value"]))


def vmap(attention: Subject, case: Case) -> None:
    function: Any = attention.function  # one of JAX
    got = function.vmapped(inputs(case), case["mask"])
    expected = [
        attention(
            *(each[i] for each in inputs(case)),
            mask=None if case["mask"] is None else case["mask"][i],
        )
        for i in range(2)
    ]
    require_close("output by vmap", got, expected, attention.tolerance(case["value"]))


def jit(attention: Subject, case: Case) -> None:
    expected, _ = attention.function.raw(inputs(case), case["mask"])
    assume(np.isfinite(expected).all())
    function: Any = attention.function  # one of JAX
    got = function.jitted(inputs(case), case["mask"])
    require_close("output by jit", got, expected, attention.tolerance(case["value"]))


def dtype(attention: Subject, case: Case) -> None:
    given = case["value"].dtype.name
    assume(given in attention.function.dtypes)
    got = attention.function.dtype_of(inputs(case))
    promised = promised_dtype(attention.options, given)
    if got != promised:
        raise PropertyViolation(f"{given} inputs give {got} output, not {promised}")


def reference(attention: Subject, case: Case) -> None:
    arrays, mask = inputs(case), case["mask"]
    exact = [each.astype(np.float64) for each in arrays]
    oracle = attention.options.reference
    assert oracle is not None
    expected = oracle(*exact) if mask is None else oracle(*exact, mask=mask)
    output = attention(*arrays, mask=mask)
    require_close("output", output, expected, attention.tolerance(case["value"]))
