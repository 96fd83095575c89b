"""The invariants of normalizers: `fn(scores [..., k], where=None) -> weights [..., k]`.

Each row of the table is a property (`normalizer_properties`) and its inputs (`normalizer_cases`).
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attn_jax.testing import normalizer_cases as cases
from attn_jax.testing import normalizer_properties as properties
from attn_jax.testing.invariants import Invariant, Options, Report, examine, names
from attn_jax.testing.strategies import FINITE, FINITE_GARBAGE, NONFINITE_GARBAGE, ORDINARY


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


_shifts = st.sampled_from([1.0, -1.0, 16.0, -16.0])


_orders = st.permutations([0, 1, 2])


_larges = {"sign": st.sampled_from([1, -1]), "part": st.sampled_from([1, 8, 64])}


_cotangent = {"cotangent": cases.cotangents}


_smooth = cases.with_more(cases.unmasked(["plain"]), **_cotangent)


NORMALIZER_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "non-negative", "no weight is negative or NaN", properties.non_negative, cases.ordinary()
    ),
    Invariant(
        "sums-to-one", "the weights of a row sum to one", properties.sums_to_one, cases.ordinary()
    ),
    Invariant(
        "large-scores",
        "scores of millions are as good as small ones: no overflow",
        properties.large_scores,
        cases.with_more(cases.unmasked(ORDINARY), **_larges),
    ),
    Invariant(
        "shift-invariant",
        "a number added to a whole row changes nothing",
        properties.shift_invariant,
        cases.with_more(cases.ordinary(), shift=_shifts),
    ),
    Invariant(
        "permutation-equivariant",
        "permuted scores have the same weights, permuted",
        properties.permutation_equivariant,
        cases.with_more(cases.ordinary(), order=_orders),
    ),
    Invariant(
        "order-preserving",
        "a higher score has no lower weight",
        properties.order_preserving,
        cases.ordinary(),
    ),
    Invariant(
        "low-temperature",
        "scaled-up scores: all weight on the highest, ties share it",
        properties.low_temperature,
        cases.ordinary(),
    ),
    Invariant(
        "high-temperature",
        "scaled-down scores: equal weights",
        properties.high_temperature,
        cases.ordinary(),
    ),
    Invariant(
        "masked-deleted",
        "a masked score changes nothing, however large it is",
        properties.deleted,
        cases.masked(FINITE_GARBAGE),
        ("mask",),
    ),
    Invariant(
        "masked-gradient",
        "nor any gradient, and its own is 0",
        properties.deleted_in_gradient,
        cases.with_more(cases.masked(FINITE_GARBAGE, ORDINARY), **_cotangent),
        ("mask", "gradient"),
    ),
    Invariant(
        "masked-nonfinite",
        "nor if it is infinite or NaN",
        properties.deleted_in_both,
        cases.with_more(cases.masked(NONFINITE_GARBAGE, ORDINARY), **_cotangent),
        ("mask",),
    ),
    Invariant(
        "minus-infinity",
        "a score of -inf is a deleted one, in value and gradient",
        properties.minus_infinity,
        cases.with_more(cases.unmasked(["infinite"]), **_cotangent),
    ),
    Invariant(
        "empty-row",
        "a row with nothing allowed has weights 0 and gradient 0",
        properties.empty_row,
        cases.empty,
        ("mask",),
    ),
    Invariant(
        "all-minus-infinity",
        "a row of nothing but -inf has weights 0 and gradient 0",
        properties.empty_row,
        cases.all_infinite,
    ),
    Invariant(
        "jacobian-symmetric",
        "the Jacobian is symmetric and positive semi-definite",
        properties.jacobian_symmetric,
        cases.unmasked(ORDINARY),
        ("gradient",),
    ),
    Invariant(
        "jacobian-shift",
        "a shift of the row is in the Jacobian's null space",
        properties.jacobian_shift,
        cases.unmasked(ORDINARY),
        ("gradient",),
    ),
    Invariant(
        "gradient-finite",
        "the gradient is finite wherever the scores are",
        properties.gradient_finite,
        cases.with_more(cases.unmasked(FINITE), **_cotangent),
        ("gradient",),
    ),
    Invariant(
        "gradient-true",
        "the gradient is the slope of the function",
        properties.gradient_true,
        _smooth,
        ("gradient", "autodiff"),
    ),
    Invariant(
        "batch-invariant",
        "a row's weights do not depend on the rows beside it",
        properties.batch_invariant,
        cases.batches,
    ),
    Invariant(
        "vmap-equals-loop",
        "vmap gives what a loop gives",
        properties.vmap,
        cases.batches,
        ("vmap",),
    ),
    Invariant(
        "jit-equals-eager",
        "jit gives what eager JAX gives",
        properties.jit,
        cases.one_shape,
        ("jit",),
    ),
    Invariant(
        "dtype",
        "the weights have the promised dtype",
        properties.dtype,
        cases.every_dtype,
        ("output_dtype",),
    ),
    Invariant(
        "reference",
        "the weights are those of the reference",
        properties.reference,
        cases.ordinary(),
        ("reference",),
    ),
)
