"""Inputs for the invariants of attention: query, key, value, a mask, and what else one needs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, no_type_check

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_jax.testing.frameworks import DTYPES
from attn_jax.testing.invariants import Case, Options
from attn_jax.testing.strategies import masks, one_of, qkv, quarters, representable

FEATURES = 2
SIZES = ((1, 2), (2, 3))
INPUTS = ("query", "key", "value")


@st.composite
@no_type_check  # see strategies
def drawn(
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
    q, k = draw(one_of(sizes))
    e = options.extra["value_features"]
    dtype = draw(one_of(options.dtypes))
    kinds = ("plain", "ties", "huge") if huge else ("plain", "ties")
    case = draw(qkv(q, k, FEATURES, e, dtype=dtype, query_kinds=kinds))
    case["mask"] = None
    if options.supports_mask and "full" not in masked:
        case["mask"] = draw(masks((q, k), kinds=masked))
    if garbage is not None:
        unattended = draw(st.integers(0, k - 1))
        case["mask"][:, unattended] = False
        case["mask"][:, (unattended + 1) % k] = True
        for name in ("key", "value"):
            filling = draw(one_of(garbage))
            case[name][unattended] = representable(filling, case[name].dtype)
    if cotangent:
        numbers = draw(st.lists(quarters(2), min_size=q * e, max_size=q * e))
        case["cotangent"] = np.array(numbers, np.float32).reshape(q, e)
    return case | {name: draw(each) for name, each in others.items()}


def drawn_with(**settings: Any) -> Callable[[Options], SearchStrategy[Case]]:
    """What draws inputs with these settings, given the options."""
    return lambda options: drawn(options, **settings)


def first_empty(case: Case) -> Case:
    """The case with nothing for the first query to attend to."""
    if case["mask"] is not None:
        case["mask"][0] = False
    return case


def inputs(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value."""
    return case["query"], case["key"], case["value"]


def allowed(case: Case) -> np.ndarray:
    """Which pairs may attend, [q, k]."""
    shape = (len(case["query"]), len(case["key"]))
    return np.full(shape, True) if case["mask"] is None else case["mask"]


@st.composite
@no_type_check  # see strategies
def four(draw: Any, options: Options) -> Case:
    """Four examples, [2, 2, …] each."""
    stacked = _stacked([draw(drawn(options, sizes=[(1, 2)])) for _ in range(4)])
    return {
        name: None if each is None else each.reshape(2, 2, *each.shape[1:])
        for name, each in stacked.items()
    }


@st.composite
@no_type_check  # see strategies
def two(draw: Any, options: Options) -> Case:
    """Two examples and their masks, stacked."""
    return _stacked([draw(drawn(options, sizes=[(2, 3)])) for _ in range(2)])


@no_type_check  # see strategies
def _stacked(cases: Sequence[Case]) -> Case:
    return {
        name: None if cases[0][name] is None else np.stack([each[name] for each in cases])
        for name in (*INPUTS, "mask")
    }


def every_dtype(options: Options) -> SearchStrategy[Case]:
    """One query and two keys of any dtype."""
    e = options.extra["value_features"]
    return st.sampled_from(DTYPES).flatmap(lambda dtype: qkv(1, 2, FEATURES, e, dtype=dtype))
