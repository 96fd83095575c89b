"""The invariants of attention: `fn(query [q, d], key [k, d], value [k, e], mask=None) -> output`.

Each row of the table is a property (`attention_properties`) and its inputs (`attention_cases`).
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attn_jax.checks import require
from attn_jax.testing import attention_cases as cases
from attn_jax.testing import attention_properties as properties
from attn_jax.testing.invariants import Invariant, Options, Report, examine, names
from attn_jax.testing.strategies import FINITE_GARBAGE, NONFINITE_GARBAGE

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
    probe = [np.zeros((2, e), np.float32) for e in (cases.FEATURES, cases.FEATURES, value_features)]
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


_ordinary = cases.drawn_with()


_unmasked = cases.drawn_with(masked=["full"])


ATTENTION_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "convex-hull",
        "the output lies among the values attended to",
        properties.convex_hull,
        _ordinary,
    ),
    Invariant(
        "sums-to-one", "equal values come out as they are", properties.sums_to_one, _ordinary
    ),
    Invariant("linear-in-value", "the output is linear in the value", properties.linear, _ordinary),
    Invariant(
        "key-permutation",
        "the order of the keys does not matter",
        properties.key_permutation,
        _ordinary,
    ),
    Invariant(
        "query-independent",
        "a query's output does not depend on the queries beside it",
        properties.query_independent,
        cases.drawn_with(masked=["full"], sizes=[(2, 3)]),
    ),
    Invariant(
        "large-scores",
        "scores of millions give a finite output among the values",
        properties.large_scores,
        cases.drawn_with(scale=st.sampled_from([1e4, 1e5, 1e6, 1e7, 1e8])),
    ),
    Invariant(
        "masked-deleted",
        "a masked key changes nothing, however large it and its value are",
        properties.deleted,
        lambda options: st.one_of(
            cases.drawn(options, garbage=FINITE_GARBAGE), cases.drawn(options, huge=True)
        ),
        ("mask",),
    ),
    Invariant(
        "masked-gradient",
        "nor any gradient, and its own is 0",
        properties.deleted_in_gradient,
        cases.drawn_with(garbage=FINITE_GARBAGE, cotangent=True),
        ("mask", "gradient"),
    ),
    Invariant(
        "masked-nonfinite",
        "nor if it or its value is infinite or NaN",
        properties.deleted_in_both,
        cases.drawn_with(garbage=NONFINITE_GARBAGE, cotangent=True),
        ("mask",),
    ),
    Invariant(
        "empty-row",
        "a query that may attend to nothing has output 0 and gradient 0",
        properties.empty_row,
        lambda options: cases.drawn(options, masked=["any"]).map(cases.first_empty),
        ("mask",),
    ),
    Invariant(
        "causal-no-leak",
        "under a causal mask a query sees no later key, in value and gradient",
        properties.causal,
        cases.drawn_with(masked=["full"], sizes=[(2, 3)]),
        ("causal",),
    ),
    Invariant(
        "padding-invariant",
        "padded queries and keys, masked, change nothing",
        properties.padding,
        cases.drawn_with(masked=["full"], sizes=[(1, 2)], pad=st.sampled_from([1.0, 0.0, -8.0])),
        ("mask",),
    ),
    Invariant(
        "gradient-finite",
        "the gradient is finite wherever the inputs are",
        properties.gradient_finite,
        cases.drawn_with(huge=True, cotangent=True),
        ("gradient",),
    ),
    Invariant(
        "gradient-true",
        "the gradient is the slope of the function",
        properties.gradient_true,
        cases.drawn_with(masked=["full"], sizes=[(1, 2)], cotangent=True),
        ("gradient", "autodiff"),
    ),
    Invariant(
        "batch-invariant",
        "an example's output does not depend on its batch and heads",
        properties.batch_invariant,
        cases.four,
        ("batch",),
    ),
    Invariant(
        "vmap-equals-loop", "vmap gives what a loop gives", properties.vmap, cases.two, ("vmap",)
    ),
    Invariant(
        "jit-equals-eager",
        "jit gives what eager JAX gives",
        properties.jit,
        cases.drawn_with(sizes=[(1, 2)]),
        ("jit",),
    ),
    Invariant(
        "dtype",
        "the output has the promised dtype",
        properties.dtype,
        cases.every_dtype,
        ("output_dtype",),
    ),
    Invariant(
        "reference",
        "the output is that of the reference",
        properties.reference,
        _ordinary,
        ("reference",),
    ),
)
