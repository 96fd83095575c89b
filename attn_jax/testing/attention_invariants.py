"""The invariants of attention: `fn(query [q, d], key [k, d], value [k, e], mask=None) -> output`.

Each is one small function that raises `Broken`, and one row of `ATTENTION_INVARIANTS`.
"""

from collections.abc import Callable, Collection
from typing import Any, no_type_check

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_jax.checks import require
from attn_jax.testing.frameworks import DTYPES
from attn_jax.testing.invariants import (
    Broken,
    Case,
    Invariant,
    Options,
    Report,
    Subject,
    differences,
    examine,
    names,
    promised_dtype,
    require_close,
    require_finite,
)
from attn_jax.testing.strategies import (
    FINITE_GARBAGE,
    NONFINITE_GARBAGE,
    masks,
    qkv,
    quarters,
    representable,
)

FEATURES = 2
SIZES = ((1, 2), (2, 3))
INPUTS = ("query", "key", "value")
LAYOUTS = ("TH", "BTNH", "BNTH")


def check_attention(fn: Callable[..., Any], **options: Any) -> None:
    """Raise `InvariantError` where an attention breaks an invariant.

    The options are those of `examine_attention`.

    >>> import jax
    >>> check_attention(
    ...     jax.nn.dot_product_attention, layout="BTNH", value_features=2, examples=3,
    ...     skip="empty-row", only="convex-hull",
    ... )
    """
    examine_attention(fn, **options).check()


def examine_attention(
    fn: Callable[..., Any],
    *,
    layout: str = "TH",
    causal: Callable[..., Any] | None = None,
    value_features: int = 3,
    skip: Collection[str] | str = (),
    only: Collection[str] | str | None = None,
    supports_mask: bool = True,
    differentiable: bool = True,
    dtypes: Collection[str] = ("float32",),
    output_dtype: str | None = "input",
    reference: Callable[..., Any] | None = None,
    framework: str = "auto",
    examples: int = 20,
    tolerance: float | None = None,
) -> Report:
    """Try every invariant on an attention, and report.

    Args:
      fn: `(query, key, value, mask=None) -> output`, on arrays of NumPy, JAX or PyTorch; mask is
        boolean, True = may attend.
      layout: "TH": one head, [q, d], mask [q, k]; "BTNH": [B, q, N, d] (jax.nn, Flax), "BNTH":
        [B, N, q, d] (PyTorch), for these two mask [B, N, q, k].
      causal: `(query, key, value) -> output`, its own causal attention, for as many queries as
        keys; None: a causal mask is given to `fn`.
      value_features: e, for functions that need e = d = 2.
      skip: names of invariants that it does not promise.
      only: names of the invariants to try; None: all.
      supports_mask: whether it takes `mask`.
      differentiable: whether it has a gradient.
      dtypes: those of the inputs: "float16", "bfloat16", "float32", "float64".
      output_dtype: "input": the inputs'; "accumulation": that, but float32 for half precision;
        None: no promise.
      reference: the same function of one head, of float64 NumPy arrays, trusted.
      framework: "numpy", "jax", "torch"; "auto" finds out.
      examples: inputs per invariant.
      tolerance: what is rounding, relative to max(1, |expected|); None: by dtype.

    Raises:
      ValueError: an option is wrong; the message names it.
    """
    require(layout in LAYOUTS, "layout", f"be one of {', '.join(LAYOUTS)}", repr(layout))
    causal_mask = (lambda *arrays: fn) if supports_mask else None
    options = Options(
        examples=examples,
        skip=names(skip),
        only=None if only is None else names(only),
        supports_mask=supports_mask,
        differentiable=differentiable,
        dtypes=tuple(dtypes),
        output_dtype=output_dtype,
        reference=reference,
        tolerance=tolerance,
        extra={
            "value_features": value_features,
            "causal": one_head(causal, layout) if causal is not None else causal_mask,
            "causal_function": causal,
            "batch": None if layout == "TH" else fn,
            "layout": layout,
        },
    )
    probe = [np.zeros((2, e), np.float32) for e in (FEATURES, FEATURES, value_features)]
    return examine(
        ATTENTION_INVARIANTS,
        one_head(fn, layout),
        probe,
        mask_name="mask",
        framework=framework,
        options=options,
    )


def one_head(fn: Callable[..., Any], layout: str) -> Callable[..., Any]:
    """A function of batches and heads as one of a single head."""
    if layout == "TH":
        return fn

    def head(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        arrays = [
            each[None, :, None, :] if layout == "BTNH" else each[None, None]
            for each in (query, key, value)
        ]
        output = fn(*arrays) if mask is None else fn(*arrays, mask=mask[None, None])
        return output[0, :, 0] if layout == "BTNH" else output[0, 0]

    return head


# Inputs


@st.composite
@no_type_check  # see strategies
def _drawn(
    draw: Any,
    options: Options,
    *,
    sizes: Collection[tuple[int, int]] = SIZES,
    masked: Collection[str] = ("some",),
    huge: bool = False,
    garbage: Collection[float] | None = None,
    cotangent: bool = False,
    **others: SearchStrategy[Any],
) -> Case:
    """Inputs of these sizes and their mask; keys that nothing attends to hold garbage."""
    q, k = draw(st.sampled_from(list(sizes)))
    e = options.extra["value_features"]
    dtype = draw(st.sampled_from(list(options.dtypes)))
    kinds = ("plain", "ties", "huge") if huge else ("plain", "ties")
    case = draw(qkv(q, k, FEATURES, e, dtype=dtype, query_kinds=kinds))
    case["mask"] = None
    if options.supports_mask and "full" not in masked:
        case["mask"] = draw(masks((q, k), kinds=masked))
    if garbage is not None:
        nobody = draw(st.integers(0, k - 1))
        case["mask"][:, nobody] = False
        case["mask"][:, (nobody + 1) % k] = True
        for name in ("key", "value"):
            filling = draw(st.sampled_from(list(garbage)))
            case[name][nobody] = representable(filling, case[name].dtype)
    if cotangent:
        numbers = draw(st.lists(quarters(2), min_size=q * e, max_size=q * e))
        case["cotangent"] = np.array(numbers, np.float32).reshape(q, e)
    return case | {name: draw(each) for name, each in others.items()}


def _cases(**settings: Any) -> Callable[[Options], SearchStrategy[Case]]:
    return lambda options: _drawn(options, **settings)


def _first_empty(case: Case) -> Case:
    if case["mask"] is not None:
        case["mask"][0] = False
    return case


def _inputs(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return case["query"], case["key"], case["value"]


def _allowed(case: Case) -> np.ndarray:
    shape = (len(case["query"]), len(case["key"]))
    return np.full(shape, True) if case["mask"] is None else case["mask"]


# Values


def _in_hull(output: np.ndarray, case: Case, tolerance: float) -> None:
    """In every one of a few directions the output is no further than the furthest value."""
    value = case["value"].astype(np.float64)
    e = value.shape[1]
    directions = np.concatenate([np.eye(e), np.random.default_rng(0).normal(size=(8, e))])
    directions = np.concatenate([directions, -directions])
    for i, allowed in enumerate(_allowed(case)):
        excess = (directions @ output[i]) - (directions @ value[allowed].T).max(-1)
        if not excess.max() <= tolerance * max(1, np.abs(value).max()):
            raise Broken(
                f"the output of query {i} is {excess.max():.3g} outside the values", output=output
            )


def _convex_hull(attention: Subject, case: Case) -> None:
    output = attention(*_inputs(case), mask=case["mask"])
    _in_hull(output, case, attention.tolerance(case["value"]))


def _sums_to_one(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
    same = np.broadcast_to(value[:1], value.shape)
    output = attention(query, key, same, mask=case["mask"])
    expected = np.broadcast_to(value[:1], output.shape)
    require_close("output of equal values", output, expected, attention.tolerance(value))


def _linear(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
    other = np.flip(value).reshape(value.shape)
    combined = value - np.asarray(2, value.dtype) * other

    def output(each: np.ndarray) -> np.ndarray:
        return attention(query, key, each, mask=case["mask"])

    expected = output(value) - 2 * output(other)
    require_close(
        "output of value - 2 · other", output(combined), expected, 4 * attention.tolerance(value)
    )


def _key_permutation(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
    mask = case["mask"]
    got = attention(query, key[::-1], value[::-1], mask=None if mask is None else mask[:, ::-1])
    expected = attention(query, key, value, mask=mask)
    require_close("output of reversed keys", got, expected, attention.tolerance(value))


def _query_independent(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
    output = attention(query, key, value)
    for i in range(len(query)):
        alone = attention(query[i : i + 1], key, value)
        require_close(f"output of query {i}", output[i], alone[0], attention.tolerance(value))


def _large_scores(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
    large = representable(query.astype(np.float64) * case["scale"], query.dtype)
    output = attention(large, key, value, mask=case["mask"])
    require_finite("output of query · scale", output)
    if attention.promises("convex-hull"):
        _in_hull(output, case, attention.tolerance(value))


# What is not there


def _row_by_row(attention: Subject, case: Case) -> np.ndarray:
    """The output of each query alone, over the keys that it may attend to."""
    query, key, value = _inputs(case)
    rows = [
        attention(query[i : i + 1], key[there], value[there])[0]
        for i, there in enumerate(case["mask"])
    ]
    assume(np.isfinite(rows).all())
    return np.array(rows)


def _deleted(attention: Subject, case: Case) -> None:
    expected = _row_by_row(attention, case)
    output = attention(*_inputs(case), mask=case["mask"])
    require_close("output", output, expected, attention.tolerance(case["value"]))


def _deleted_in_gradient(attention: Subject, case: Case) -> None:
    arrays, mask = _inputs(case), case["mask"]
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
    nobody = ~mask.any(axis=0)
    for name, one, other in zip(INPUTS, got, expected, strict=True):
        require_close(f"gradient in the {name}", one, other, tolerance)
        if name != "query":
            zero = np.zeros_like(one[nobody])
            require_close(f"gradient in the masked {name}", one[nobody], zero, 0.0)


def _deleted_in_both(attention: Subject, case: Case) -> None:
    _deleted(attention, case)
    if attention.options.differentiable:
        _deleted_in_gradient(attention, case)


def _empty_row(attention: Subject, case: Case) -> None:
    arrays, mask = _inputs(case), case["mask"]
    output = attention(*arrays, mask=mask)
    require_close("output of query 0", output[0], np.zeros(output.shape[1]), 0.0)
    if attention.options.differentiable:
        cotangent = np.zeros(output.shape, np.float32)
        cotangent[0] = 1
        got = attention.gradient(*arrays, mask=mask, cotangent=cotangent)
        for name, one in zip(INPUTS, got, strict=True):
            require_close(f"gradient in the {name}", one, np.zeros(one.shape), 0.0)


def _causal(attention: Subject, case: Case) -> None:
    query, key, value = _inputs(case)
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


def _padding(attention: Subject, case: Case) -> None:
    arrays = _inputs(case)
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


def _gradient_finite(attention: Subject, case: Case) -> None:
    got = attention.gradient(*_inputs(case), mask=case["mask"], cotangent=case["cotangent"])
    for name, one in zip(INPUTS, got, strict=True):
        require_finite(f"gradient in the {name}", one)


def _gradient_true(attention: Subject, case: Case) -> None:
    arrays = list(_inputs(case))
    got = attention.gradient(*arrays, cotangent=case["cotangent"])
    for place, name in enumerate(INPUTS):

        def value(each: np.ndarray, place: int = place) -> Any:
            changed = [*arrays[:place], each, *arrays[place + 1 :]]
            return np.sum(case["cotangent"] * attention(*changed))

        expected = differences(value, arrays[place])
        require_close(f"gradient in the {name}", got[place], expected, 2e-2)


# Batches, transformations, dtypes


@st.composite
@no_type_check  # see strategies
def _four(draw: Any, options: Options) -> Case:
    """Four examples, [2, 2, …] each."""
    cases = [draw(_drawn(options, sizes=[(1, 2)])) for _ in range(4)]
    stacked = {
        name: None if cases[0][name] is None else np.stack([each[name] for each in cases])
        for name in (*INPUTS, "mask")
    }
    return {
        name: None if each is None else each.reshape(2, 2, *each.shape[1:])
        for name, each in stacked.items()
    }


def _in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    return np.swapaxes(array, 1, 2) if layout == "BTNH" else array


def _batch_invariant(attention: Subject, case: Case) -> None:
    extra = attention.options.extra
    batched = Subject(type(attention.function)(extra["batch"]), attention.options)
    arrays = [_in_layout(each, extra["layout"]) for each in _inputs(case)]
    output = _in_layout(batched(*arrays, mask=case["mask"]), extra["layout"])
    for place in np.ndindex(2, 2):
        mask = None if case["mask"] is None else case["mask"][place]
        alone = attention(*(each[place] for each in _inputs(case)), mask=mask)
        what = "output of example {} head {}".format(*place)
        require_close(what, output[place], alone, attention.tolerance(case["value"]))


@st.composite
@no_type_check  # see strategies
def _two(draw: Any, options: Options) -> Case:
    cases = [draw(_drawn(options, sizes=[(2, 3)], masked=["some"])) for _ in range(2)]
    return {
        name: None if cases[0][name] is None else np.stack([each[name] for each in cases])
        for name in (*INPUTS, "mask")
    }


def _vmap(attention: Subject, case: Case) -> None:
    got = attention.function.vmapped(_inputs(case), case["mask"])
    expected = [
        attention(
            *(each[i] for each in _inputs(case)),
            mask=None if case["mask"] is None else case["mask"][i],
        )
        for i in range(2)
    ]
    require_close("output by vmap", got, expected, attention.tolerance(case["value"]))


def _jit(attention: Subject, case: Case) -> None:
    expected, _ = attention.function.raw(_inputs(case), case["mask"])
    assume(np.isfinite(expected).all())
    got = attention.function.jitted(_inputs(case), case["mask"])
    require_close("output by jit", got, expected, attention.tolerance(case["value"]))


def _every_dtype(options: Options) -> SearchStrategy[Case]:
    e = options.extra["value_features"]
    return st.sampled_from(DTYPES).flatmap(lambda dtype: qkv(1, 2, FEATURES, e, dtype=dtype))


def _dtype(attention: Subject, case: Case) -> None:
    given = case["value"].dtype.name
    assume(given in attention.function.dtypes)
    got = attention.function.dtype_of(_inputs(case))
    promised = promised_dtype(attention.options, given)
    if got != promised:
        raise Broken(f"{given} inputs give {got} output, not {promised}")


def _reference(attention: Subject, case: Case) -> None:
    arrays, mask = _inputs(case), case["mask"]
    exact = [each.astype(np.float64) for each in arrays]
    oracle = attention.options.reference
    assert oracle is not None
    expected = oracle(*exact) if mask is None else oracle(*exact, mask=mask)
    output = attention(*arrays, mask=mask)
    require_close("output", output, expected, attention.tolerance(case["value"]))


_ordinary = _cases()
_unmasked = _cases(masked=["full"])

ATTENTION_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "convex-hull", "the output lies among the values attended to", _convex_hull, _ordinary
    ),
    Invariant("sums-to-one", "equal values come out as they are", _sums_to_one, _ordinary),
    Invariant("linear-in-value", "the output is linear in the value", _linear, _ordinary),
    Invariant(
        "key-permutation", "the order of the keys does not matter", _key_permutation, _ordinary
    ),
    Invariant(
        "query-independent",
        "a query's output does not depend on the queries beside it",
        _query_independent,
        _cases(masked=["full"], sizes=[(2, 3)]),
    ),
    Invariant(
        "large-scores",
        "scores of millions give a finite output among the values",
        _large_scores,
        _cases(scale=st.sampled_from([1e4, 1e5, 1e6, 1e7, 1e8])),
    ),
    Invariant(
        "masked-deleted",
        "a masked key changes nothing, however large it and its value are",
        _deleted,
        lambda options: st.one_of(
            _drawn(options, garbage=FINITE_GARBAGE), _drawn(options, huge=True)
        ),
        ("mask",),
    ),
    Invariant(
        "masked-gradient",
        "nor any gradient, and its own is 0",
        _deleted_in_gradient,
        _cases(garbage=FINITE_GARBAGE, cotangent=True),
        ("mask", "gradient"),
    ),
    Invariant(
        "masked-nonfinite",
        "nor if it or its value is infinite or NaN",
        _deleted_in_both,
        _cases(garbage=NONFINITE_GARBAGE, cotangent=True),
        ("mask",),
    ),
    Invariant(
        "empty-row",
        "a query that may attend to nothing has output 0 and gradient 0",
        _empty_row,
        lambda options: _drawn(options, masked=["any"]).map(_first_empty),
        ("mask",),
    ),
    Invariant(
        "causal-no-leak",
        "under a causal mask a query sees no later key, in value and gradient",
        _causal,
        _cases(masked=["full"], sizes=[(2, 3)]),
        ("causal",),
    ),
    Invariant(
        "padding-invariant",
        "padded queries and keys, masked, change nothing",
        _padding,
        _cases(masked=["full"], sizes=[(1, 2)], pad=st.sampled_from([1.0, 0.0, -8.0])),
        ("mask",),
    ),
    Invariant(
        "gradient-finite",
        "the gradient is finite wherever the inputs are",
        _gradient_finite,
        _cases(huge=True, cotangent=True),
        ("gradient",),
    ),
    Invariant(
        "gradient-true",
        "the gradient is the slope of the function",
        _gradient_true,
        _cases(masked=["full"], sizes=[(1, 2)], cotangent=True),
        ("gradient", "autodiff"),
    ),
    Invariant(
        "batch-invariant",
        "an example's output does not depend on its batch and heads",
        _batch_invariant,
        _four,
        ("batch",),
    ),
    Invariant("vmap-equals-loop", "vmap gives what a loop gives", _vmap, _two, ("vmap",)),
    Invariant(
        "jit-equals-eager",
        "jit gives what eager JAX gives",
        _jit,
        _cases(sizes=[(1, 2)]),
        ("jit",),
    ),
    Invariant(
        "dtype", "the output has the promised dtype", _dtype, _every_dtype, ("output_dtype",)
    ),
    Invariant(
        "reference", "the output is that of the reference", _reference, _ordinary, ("reference",)
    ),
)
