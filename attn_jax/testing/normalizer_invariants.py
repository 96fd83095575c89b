"""The invariants of normalizers: `fn(scores [..., k], where=None) -> weights [..., k]`.

Each is one small function that raises `Broken`, and one row of `NORMALIZER_INVARIANTS`.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

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
    require_at_least,
    require_close,
    require_finite,
)
from attn_jax.testing.strategies import (
    FINITE,
    FINITE_GARBAGE,
    NONFINITE_GARBAGE,
    ORDINARY,
    quarters,
    rows,
    scores,
)


def check_normalizer(fn: Callable[..., Any], **options: Any) -> None:
    """Raise `InvariantError` where a normalizer breaks an invariant.

    The options are those of `examine_normalizer`.

    >>> import jax
    >>> check_normalizer(jax.nn.softmax, examples=3, only="sums-to-one")
    """
    examine_normalizer(fn, **options).check()


def examine_normalizer(
    fn: Callable[..., Any],
    *,
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
    """Try every invariant on a normalizer, and report.

    Args:
      fn: `(scores [..., k], where=None) -> weights [..., k]`, on arrays of NumPy, JAX or PyTorch.
      skip: names of invariants that it does not promise.
      only: names of the invariants to try; None: all.
      supports_mask: whether it takes `where`.
      differentiable: whether it has a gradient.
      dtypes: those of the scores: "float16", "bfloat16", "float32", "float64".
      output_dtype: "input": the scores'; "accumulation": that, but float32 for half precision;
        None: no promise.
      reference: the same function of float64 NumPy arrays, trusted.
      framework: "numpy", "jax", "torch"; "auto" finds out.
      examples: inputs per invariant.
      tolerance: what is rounding, relative to max(1, |expected|); None: by dtype.

    Raises:
      ValueError: an option is wrong; the message names it.
    """
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
    )
    probe = [np.zeros(2, np.float32)]
    return examine(
        NORMALIZER_INVARIANTS, fn, probe, mask_name="where", framework=framework, options=options
    )


# Inputs

MASKED_ROWS = ((2,), (3,))


def _rows(**settings: Any) -> Callable[[Options], SearchStrategy[Case]]:
    """Rows with something allowed; without a mask where the function takes none."""

    def cases(options: Options) -> SearchStrategy[Case]:
        unmasked = rows(dtypes=options.dtypes, masked=["full"], **settings).map(_without_mask)
        if not options.supports_mask:
            return unmasked
        return st.one_of(unmasked, rows(MASKED_ROWS, dtypes=options.dtypes, **settings))

    return cases


def _without_mask(case: Case) -> Case:
    return {"scores": case["scores"], "where": None}


def _with(cases: Callable[[Options], SearchStrategy[Case]], **others: SearchStrategy[Any]) -> Any:
    """The case, and more arguments beside it."""

    def together(parts: tuple[Case, Case]) -> Case:
        case, more = parts
        if "cotangent" in more:
            more["cotangent"] = more["cotangent"][: len(case["scores"])]
        if "order" in more:
            more["order"] = np.argsort(more["order"][: len(case["scores"])], kind="stable")
        return {**case, **more}

    return lambda options: st.tuples(cases(options), st.fixed_dictionaries(others)).map(together)


def _masked(garbage: Collection[float], kinds: Collection[str] = (*ORDINARY, "huge")) -> Any:
    return lambda options: rows(MASKED_ROWS, dtypes=options.dtypes, kinds=kinds, garbage=garbage)


def _unmasked(kinds: Collection[str], shapes: Any = ((1,), (2,), (3,))) -> Any:
    return lambda options: st.fixed_dictionaries(
        {"scores": scores(shapes, dtypes=options.dtypes, kinds=kinds)}
    )


def _empty(options: Options) -> SearchStrategy[Case]:
    return rows(
        MASKED_ROWS,
        dtypes=options.dtypes,
        masked=["none"],
        kinds=("plain", "infinite"),
        garbage=[0.0, 1.0, 1e30],
    )


def _all_infinite(options: Options) -> SearchStrategy[Case]:
    return scores(dtypes=options.dtypes, kinds=["constant"]).map(
        lambda each: {"scores": np.full_like(each, -np.inf), "where": None}
    )


def _batches(options: Options) -> SearchStrategy[Case]:
    batch = rows(
        [(2, 3)], dtypes=options.dtypes, kinds=(*ORDINARY, "infinite", "huge"), masked=["any"]
    )
    return batch if options.supports_mask else batch.map(_without_mask)


def _one_shape(options: Options) -> SearchStrategy[Case]:
    case = rows([(3,)], dtypes=options.dtypes, masked=["some"])
    return case if options.supports_mask else case.map(_without_mask)


def _every_dtype(options: Options) -> SearchStrategy[Case]:
    return scores([(3,)], dtypes=DTYPES, kinds=ORDINARY).map(lambda each: {"scores": each})


cotangents = st.lists(quarters(2), min_size=3, max_size=3).map(
    lambda each: np.array(each, np.float32)
)


# Values


def _non_negative(weights: Subject, case: Case) -> None:
    got = weights(case["scores"], mask=case["where"])
    require_at_least("weights", got, 0.0, 0.0)


def _sums_to_one(weights: Subject, case: Case) -> None:
    got = weights(case["scores"], mask=case["where"])
    require_close("sum of the weights", got.sum(-1), 1.0, weights.tolerance(case["scores"]))


def _shift_invariant(weights: Subject, case: Case) -> None:
    s, shift = case["scores"], np.asarray(case["shift"], case["scores"].dtype)
    expected = weights(s, mask=case["where"])
    require_close(
        "weights of scores + shift", weights(s + shift, mask=case["where"]), expected,
        weights.tolerance(s),
    )  # fmt: skip


def _permutation_equivariant(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s[case["order"]], mask=None if where is None else where[case["order"]])
    expected = weights(s, mask=where)[case["order"]]
    require_close("weights of permuted scores", got, expected, weights.tolerance(s))


def _order_preserving(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    allowed = np.full(s.shape, True) if where is None else where
    require_finite("weights", got)
    s = s.astype(np.float64)
    for i, j in np.ndindex(len(s), len(s)):
        excess = got[i] - got[j] if s[i] <= s[j] else 0.0
        if allowed[i] and allowed[j] and excess > weights.tolerance(case["scores"]):
            raise Broken(f"the lower score has {excess:.3g} more weight", weights=got)


LARGE = {"float16": 2**10, "bfloat16": 2**7, "float32": 2**23, "float64": 2**30}


def _large_scores(weights: Subject, case: Case) -> None:
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


def _low_temperature(weights: Subject, case: Case) -> None:
    s, where = np.round(case["scores"] / 4), case["where"]
    got = weights(s * np.asarray(4096, s.dtype), mask=where)
    top = s == np.max(s if where is None else np.where(where, s, -np.inf))
    top &= True if where is None else where
    require_close("weights of 4096 · scores", got, top / top.sum(), weights.tolerance(s))


def _high_temperature(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s * np.asarray(2.0**-26, s.dtype), mask=where)
    allowed = np.full(s.shape, True) if where is None else where
    expected = allowed / allowed.sum()
    require_close("weights of scores / 2²⁶", got, expected, weights.tolerance(s))


# What is not there


def _deleted(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    expected = np.zeros(s.shape)
    expected[where] = weights(s[where])
    assume(np.isfinite(expected).all())
    require_close("weights", got, expected, weights.tolerance(s))
    require_close("masked weights", got[~where], expected[~where], 0.0)


def _deleted_in_gradient(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    cotangent = case["cotangent"]
    (got,) = weights.gradient(s, mask=where, cotangent=cotangent)
    expected = np.zeros(s.shape)
    (expected[where],) = weights.gradient(s[where], cotangent=cotangent[where])
    assume(np.isfinite(expected).all())
    require_close("gradient", got, expected, weights.tolerance(s, gradient=True))
    require_close("masked gradient", got[~where], expected[~where], 0.0)


def _deleted_in_both(weights: Subject, case: Case) -> None:
    _deleted(weights, case)
    if weights.options.differentiable:
        _deleted_in_gradient(weights, case)


def _minus_infinity(weights: Subject, case: Case) -> None:
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


def _empty_row(weights: Subject, case: Case) -> None:
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


def _jacobian_symmetric(weights: Subject, case: Case) -> None:
    jacobian = _jacobian(weights, case["scores"])
    tolerance = weights.tolerance(case["scores"], gradient=True)
    require_close("Jacobian", jacobian, jacobian.T, tolerance)
    least = np.linalg.eigvalsh(jacobian + jacobian.T).min() / 2
    if least < -tolerance:
        raise Broken(f"the Jacobian has the eigenvalue {least:.3g}", Jacobian=jacobian)


def _jacobian_shift(weights: Subject, case: Case) -> None:
    jacobian = _jacobian(weights, case["scores"])
    tolerance = weights.tolerance(case["scores"], gradient=True)
    require_close("Jacobian · 1", jacobian.sum(-1), np.zeros(len(jacobian)), tolerance)


def _gradient_finite(weights: Subject, case: Case) -> None:
    s = case["scores"]
    (got,) = weights.gradient(s, cotangent=case["cotangent"])
    require_finite("gradient", got)


def _gradient_true(weights: Subject, case: Case) -> None:
    s, cotangent = case["scores"], case["cotangent"]
    (got,) = weights.gradient(s, cotangent=cotangent)
    expected = differences(lambda each: np.sum(cotangent * weights(each)), s)
    require_close("gradient", got, expected, 2e-2)


# Batches, transformations, dtypes


def _batch_invariant(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    got = weights(s, mask=where)
    for i, row in enumerate(s):
        alone = weights(row, mask=None if where is None else where[i])
        if np.isfinite(alone).all():
            require_close(f"weights of row {i}", got[i], alone, weights.tolerance(s))


def _vmap(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    expected = [weights(row, mask=None if where is None else where[i]) for i, row in enumerate(s)]
    assume(np.isfinite(expected).all())
    require_close(
        "weights by vmap", weights.function.vmapped([s], where), expected, weights.tolerance(s)
    )


def _jit(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    expected, _ = weights.function.raw([s], where)
    assume(np.isfinite(expected).all())
    require_close(
        "weights by jit", weights.function.jitted([s], where), expected, weights.tolerance(s)
    )


def _dtype(weights: Subject, case: Case) -> None:
    given = case["scores"].dtype.name
    assume(given in weights.function.dtypes)
    got = weights.function.dtype_of([case["scores"]])
    promised = promised_dtype(weights.options, given)
    if got != promised:
        raise Broken(f"{given} scores give {got} weights, not {promised}")


def _reference(weights: Subject, case: Case) -> None:
    s, where = case["scores"], case["where"]
    exact = s.astype(np.float64)
    oracle = weights.options.reference
    assert oracle is not None
    expected = oracle(exact) if where is None else oracle(exact, where=where)
    require_close("weights", weights(s, mask=where), expected, weights.tolerance(s))


_shifts = st.sampled_from([1.0, -1.0, 16.0, -16.0])
_orders = st.permutations([0, 1, 2])
_larges = {"sign": st.sampled_from([1, -1]), "part": st.sampled_from([1, 8, 64])}
_cotangent = {"cotangent": cotangents}
_smooth = _with(_unmasked(["plain"]), **_cotangent)

NORMALIZER_INVARIANTS: tuple[Invariant, ...] = (
    Invariant("non-negative", "no weight is negative or NaN", _non_negative, _rows()),
    Invariant("sums-to-one", "the weights of a row sum to one", _sums_to_one, _rows()),
    Invariant(
        "large-scores",
        "scores of millions are as good as small ones: no overflow",
        _large_scores,
        _with(_unmasked(ORDINARY), **_larges),
    ),
    Invariant(
        "shift-invariant",
        "a number added to a whole row changes nothing",
        _shift_invariant,
        _with(_rows(), shift=_shifts),
    ),
    Invariant(
        "permutation-equivariant",
        "permuted scores have the same weights, permuted",
        _permutation_equivariant,
        _with(_rows(), order=_orders),
    ),
    Invariant("order-preserving", "a higher score has no lower weight", _order_preserving, _rows()),
    Invariant(
        "low-temperature",
        "scaled-up scores: all weight on the highest, ties share it",
        _low_temperature,
        _rows(),
    ),
    Invariant("high-temperature", "scaled-down scores: equal weights", _high_temperature, _rows()),
    Invariant(
        "masked-deleted",
        "a masked score changes nothing, however large it is",
        _deleted,
        _masked(FINITE_GARBAGE),
        ("mask",),
    ),
    Invariant(
        "masked-gradient",
        "nor any gradient, and its own is 0",
        _deleted_in_gradient,
        _with(_masked(FINITE_GARBAGE, ORDINARY), **_cotangent),
        ("mask", "gradient"),
    ),
    Invariant(
        "masked-nonfinite",
        "nor if it is infinite or NaN",
        _deleted_in_both,
        _with(_masked(NONFINITE_GARBAGE, ORDINARY), **_cotangent),
        ("mask",),
    ),
    Invariant(
        "minus-infinity",
        "a score of -inf is a deleted one, in value and gradient",
        _minus_infinity,
        _with(_unmasked(["infinite"]), **_cotangent),
    ),
    Invariant(
        "empty-row",
        "a row with nothing allowed has weights 0 and gradient 0",
        _empty_row,
        _empty,
        ("mask",),
    ),
    Invariant(
        "all-minus-infinity",
        "a row of nothing but -inf has weights 0 and gradient 0",
        _empty_row,
        _all_infinite,
    ),
    Invariant(
        "jacobian-symmetric",
        "the Jacobian is symmetric and positive semi-definite",
        _jacobian_symmetric,
        _unmasked(ORDINARY),
        ("gradient",),
    ),
    Invariant(
        "jacobian-shift",
        "a shift of the row is in the Jacobian's null space",
        _jacobian_shift,
        _unmasked(ORDINARY),
        ("gradient",),
    ),
    Invariant(
        "gradient-finite",
        "the gradient is finite wherever the scores are",
        _gradient_finite,
        _with(_unmasked(FINITE), **_cotangent),
        ("gradient",),
    ),
    Invariant(
        "gradient-true",
        "the gradient is the slope of the function",
        _gradient_true,
        _smooth,
        ("gradient", "autodiff"),
    ),
    Invariant(
        "batch-invariant",
        "a row's weights do not depend on the rows beside it",
        _batch_invariant,
        _batches,
    ),
    Invariant("vmap-equals-loop", "vmap gives what a loop gives", _vmap, _batches, ("vmap",)),
    Invariant("jit-equals-eager", "jit gives what eager JAX gives", _jit, _one_shape, ("jit",)),
    Invariant(
        "dtype", "the weights have the promised dtype", _dtype, _every_dtype, ("output_dtype",)
    ),
    Invariant(
        "reference", "the weights are those of the reference", _reference, _rows(), ("reference",)
    ),
)
