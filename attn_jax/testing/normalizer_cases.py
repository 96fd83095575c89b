"""Inputs for the invariants of normalizers: scores, a mask, and what else one needs."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_jax.testing.frameworks import DTYPES
from attn_jax.testing.invariants import Case, Options
from attn_jax.testing.strategies import ORDINARY, quarters, rows, scores

MASKED_ROWS = ((2,), (3,))
cotangents = st.lists(quarters(2), min_size=3, max_size=3).map(
    lambda each: np.array(each, np.float32)
)


def ordinary(**settings: Any) -> Callable[[Options], SearchStrategy[Case]]:
    """Rows with something allowed; without a mask where the function takes none."""

    def cases(options: Options) -> SearchStrategy[Case]:
        unmasked = rows(dtypes=options.dtypes, masked=["full"], **settings).map(_without_mask)
        if not options.supports_mask:
            return unmasked
        return st.one_of(unmasked, rows(MASKED_ROWS, dtypes=options.dtypes, **settings))

    return cases


def _without_mask(case: Case) -> Case:
    return {"scores": case["scores"], "where": None}


def with_more(
    cases: Callable[[Options], SearchStrategy[Case]], **others: SearchStrategy[Any]
) -> Any:
    """The case, and more arguments beside it."""

    def together(parts: tuple[Case, Case]) -> Case:
        case, more = parts
        if "cotangent" in more:
            more["cotangent"] = more["cotangent"][: len(case["scores"])]
        if "order" in more:
            more["order"] = np.argsort(more["order"][: len(case["scores"])], kind="stable")
        return {**case, **more}

    return lambda options: st.tuples(cases(options), st.fixed_dictionaries(others)).map(together)


def masked(garbage: Collection[float], kinds: Collection[str] = (*ORDINARY, "huge")) -> Any:
    """Rows with something allowed, the rest garbage."""
    return lambda options: rows(MASKED_ROWS, dtypes=options.dtypes, kinds=kinds, garbage=garbage)


def unmasked(kinds: Collection[str], shapes: Any = ((1,), (2,), (3,))) -> Any:
    """Rows of scores alone."""
    return lambda options: st.fixed_dictionaries(
        {"scores": scores(shapes, dtypes=options.dtypes, kinds=kinds)}
    )


def empty(options: Options) -> SearchStrategy[Case]:
    """Rows with nothing allowed."""
    return rows(
        MASKED_ROWS,
        dtypes=options.dtypes,
        masked=["none"],
        kinds=("plain", "infinite"),
        garbage=[0.0, 1.0, 1e30],
    )


def all_infinite(options: Options) -> SearchStrategy[Case]:
    """Rows of -inf alone, without a mask."""
    return scores(dtypes=options.dtypes, kinds=["constant"]).map(
        lambda each: {"scores": np.full_like(each, -np.inf), "where": None}
    )


def batches(options: Options) -> SearchStrategy[Case]:
    """Two rows with masks of their own."""
    batch = rows(
        [(2, 3)], dtypes=options.dtypes, kinds=(*ORDINARY, "infinite", "huge"), masked=["any"]
    )
    return batch if options.supports_mask else batch.map(_without_mask)


def one_shape(options: Options) -> SearchStrategy[Case]:
    """Rows of one shape: they compile once."""
    case = rows([(3,)], dtypes=options.dtypes, masked=["some"])
    return case if options.supports_mask else case.map(_without_mask)


def every_dtype(options: Options) -> SearchStrategy[Case]:
    """Rows of any dtype."""
    return scores([(3,)], dtypes=DTYPES, kinds=ORDINARY).map(lambda each: {"scores": each})
