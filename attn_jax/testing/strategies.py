"""Hypothesis strategies: inputs that break attention, in few shapes and with printable numbers.

Each shrinks towards zeros, nothing masked and the first kind. Few shapes, because JAX compiles each
one; few digits, so that the same numbers are exact in every dtype where they need to be. What is
drawn from again is cached: Hypothesis validates every new strategy.

`no_type_check`: beartype looks at random entries of a collection, and Hypothesis forbids random
numbers other than its own while it draws.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any, no_type_check

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_jax.checks import require

Shape = tuple[int, ...]

ROWS: tuple[Shape, ...] = ((1,), (2,), (3,))
HUGE = (1e4, 1e5, 1e6, 1e7, 1e8, 1e10)
FINITE_GARBAGE = (100.0, -100.0, 1e4, 1e30, -1e30)
NONFINITE_GARBAGE = (np.nan, np.inf, -np.inf)


@functools.cache
def quarters(most: int = 8) -> SearchStrategy[float]:
    """Multiples of ¼ between -most and most: exact in every dtype."""
    return st.integers(-4 * most, 4 * most).map(lambda n: n / 4)


def one_of(entries: Collection[Any]) -> SearchStrategy[Any]:
    """One of the entries; the first is the simplest."""
    return _one_of(tuple(entries))


_one_of = functools.cache(st.sampled_from)


@functools.cache
def _plain(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    return _list(quarters(), n)


@functools.cache
def _ties(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    return _list(st.sampled_from([0.0, 1.0]), n)


@functools.cache
def _constant(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    return quarters().map(lambda x: [x] * n)


@functools.cache
def _infinite(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    return _list(st.one_of(quarters(), st.just(-np.inf)), n)


@functools.cache
def _huge(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    sizes = [sign * each for each in HUGE for sign in (1, -1)]
    return _list(st.sampled_from([0.0, *sizes]), n)


@functools.cache
def _subnormal(n: int, dtype: np.dtype) -> SearchStrategy[list[float]]:
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    return _list(st.integers(-3, 3).map(lambda m: m * smallest), n)


KINDS: dict[str, Callable[[int, np.dtype], SearchStrategy[list[float]]]] = {
    "plain": _plain,
    "ties": _ties,
    "constant": _constant,
    "infinite": _infinite,
    "huge": _huge,
    "subnormal": _subnormal,
}
ORDINARY = ("plain", "ties", "constant")
FINITE = (*ORDINARY, "huge", "subnormal")


@st.composite
@no_type_check
def scores(
    draw: Any,
    shapes: Collection[Shape] = ROWS,
    *,
    dtypes: Collection[str] = ("float32",),
    kinds: Collection[str] = tuple(KINDS),
) -> np.ndarray:
    """Scores of one of these shapes, dtypes and kinds: the names in `KINDS`.

    What a dtype cannot hold becomes its largest number. bfloat16 is `ml_dtypes`', as in JAX.
    """
    unknown = set(kinds) - set(KINDS)
    require(not unknown, "kinds", f"be among {', '.join(KINDS)}", f"{sorted(unknown)}")
    shape, dtype = draw(one_of(shapes)), np.dtype(draw(one_of(dtypes)))
    kind = draw(one_of(kinds))
    return representable(draw(KINDS[kind](int(np.prod(shape)), dtype)), dtype).reshape(shape)


@st.composite
@no_type_check
def masks(draw: Any, shape: Shape, *, kinds: Collection[str] = ("some", "any", "none")) -> Any:
    """Boolean masks, True = allowed.

    "some" allows something in each row, "any" may leave rows empty, "none" allows nothing, "full"
    allows everything.
    """
    kind = draw(one_of(kinds))
    if kind in ("full", "none"):
        return np.full(shape, kind == "full")
    mask = ~np.array(draw(_list(st.booleans(), int(np.prod(shape)))), bool).reshape(shape)
    if kind == "some":
        spared = draw(st.integers(0, max(shape[-1] - 1, 0)))
        mask[..., spared] |= ~mask.any(axis=-1)
    return mask


@st.composite
@no_type_check
def rows(
    draw: Any,
    shapes: Collection[Shape] = ROWS,
    *,
    dtypes: Collection[str] = ("float32",),
    kinds: Collection[str] = ORDINARY,
    masked: Collection[str] = ("some",),
    garbage: Collection[float] | None = None,
) -> dict[str, np.ndarray]:
    """Scores and their mask; each masked score is one of `garbage`, where that is given."""
    drawn = draw(scores(shapes, dtypes=dtypes, kinds=kinds))
    where = draw(masks(drawn.shape, kinds=masked))
    if garbage is not None:
        filling = draw(_list(one_of(garbage), drawn.size))
        drawn = np.where(where, drawn, representable(filling, drawn.dtype).reshape(drawn.shape))
    return {"scores": drawn, "where": where}


@st.composite
@no_type_check
def qkv(
    draw: Any,
    queries: int,
    keys: int,
    features: int = 2,
    value_features: int = 3,
    *,
    dtype: str = "float32",
    query_kinds: Collection[str] = ("plain", "ties"),
) -> dict[str, np.ndarray]:
    """Query [q, d], key [k, d] and value [k, e] of small multiples of ¼."""
    shapes = {
        "query": (queries, features),
        "key": (keys, features),
        "value": (keys, value_features),
    }
    drawn = {}
    for name, shape in shapes.items():
        if name == "query" and set(query_kinds) - set(ORDINARY):
            drawn[name] = draw(scores([shape], dtypes=[dtype], kinds=query_kinds))
            continue
        entries = draw(_list(quarters(2), int(np.prod(shape))))
        drawn[name] = representable(entries, np.dtype(dtype)).reshape(shape)
    return drawn


def representable(numbers: Any, dtype: np.dtype) -> np.ndarray:
    """The numbers in this dtype; finite ones stay finite."""
    numbers, most = np.asarray(numbers, np.float64), float(ml_dtypes.finfo(dtype).max)
    return np.where(np.isinf(numbers), numbers, np.clip(numbers, -most, most)).astype(dtype)


@functools.cache
def _list(entries: SearchStrategy[Any], n: int) -> SearchStrategy[list[Any]]:
    return st.lists(entries, min_size=n, max_size=n)
