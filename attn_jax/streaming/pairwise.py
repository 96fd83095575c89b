"""Whether a plain function is one of each pair alone, as a function of blocks has to be.

One that normalizes its rows, say, means something else in each block. Two evaluations tell: of a
few pairs, and of one of them alone.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Array

from attn_jax.attention_slots import AttentionSlots
from attn_jax.checks import require
from attn_jax.jax_versions import evaluate
from attn_jax.precision import accumulation_dtype
from attn_jax.slots import is_pure

_PAIRS, _PAIR = (3, 4), (1, 2)  # of so many pairs that one


def require_pairwise(query: Array, key: Array, slots: AttentionSlots) -> None:
    """Refuse a slot whose value for a query and a key depends on which others are beside them."""
    rng = np.random.default_rng(0)
    rows = [
        rng.normal(size=(n, array.shape[1])).astype(accumulation_dtype(array))
        for n, array in zip(_PAIRS, (query, key), strict=True)
    ]
    scores = rng.normal(size=_PAIRS).astype(accumulation_dtype(query, key))
    indices = [np.arange(_PAIRS[0])[:, None], np.arange(_PAIRS[1])[None, :]]
    q, k = (slice(n, n + 1) for n in _PAIR)
    index = [indices[0][q], indices[1][:, k]]
    for name, function, arguments, alone in (
        ("score", slots.score, rows, [rows[0][q], rows[1][k]]),
        ("score_mod", slots.score_mod, [scores, *indices], [scores[q, k], *index]),
        ("mask", slots.mask, indices, index),
    ):
        if not is_pure(function):
            rule = "look at each query and key by itself, or come with implementation='dense'"
            require(not _differ(function, arguments, alone), name, rule, function)


def _differ(function: Callable, arguments: Sequence, alone: Sequence) -> bool:
    """Whether the pair has another value where it is alone; False where that cannot be told."""
    try:
        whole, own = (_evaluated(function, each) for each in (arguments, alone))
        if whole is None or own is None:
            return False
        beside_others = np.broadcast_to(whole, _PAIRS)[_PAIR]
        return not np.allclose(beside_others, own, 1e-2, 1e-2, equal_nan=True)
    except Exception:  # these are not the arrays that it is made for: its own call will tell
        return False


def _evaluated(function: Callable, arguments: Sequence) -> np.ndarray | None:
    """The function's value, ones standing for what it closes over and is traced.

    None where it has effects, which are not for trying.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    if closed.effects:
        return None
    arrays = [
        np.ones(each.shape, each.dtype) if isinstance(each, jax.core.Tracer) else each
        for each in closed.consts
    ]
    exact = jax.default_matmul_precision("highest")
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False), exact:
        (result,) = evaluate(closed.jaxpr, arrays, *arguments)
        return np.asarray(result, np.float64)
