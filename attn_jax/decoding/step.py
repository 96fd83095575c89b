"""The contract with the caller: a step function, what decoding returns, and their checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from attn_jax.checks import require, require_function

Step = Callable[
    [Int[Array, " n"], Any], tuple[Float[Array, "n v"], Any, Float[Array, "n k"] | None]
]


class Decoded(NamedTuple):
    """What was decoded for each example; `*n` is an axis of beam search, best first.

    Attributes:
        tokens: Padded with `end`.
        lengths: The number of real tokens, `end` included.
        scores: What beam search ranks by, log P / lp(length); elsewhere the log-probability.
        finished: True where `end` was produced.
        weights: The step's weights for each token, 0 behind the end; None where it has none.
        log_probabilities: log P of the tokens, the sum over the steps.
    """

    tokens: Int[Array, "b *n t"]
    lengths: Int[Array, "b *n"]
    scores: Float[Array, "b *n"]
    finished: Bool[Array, "b *n"]
    weights: Float[Array, "b *n t k"] | None
    log_probabilities: Float[Array, "b *n"]


class Search(NamedTuple):
    """A checked call: where it starts, what it may produce, the shapes that its step returns.

    `token` and `state` have `copies` adjacent rows for each example.
    """

    step: Step
    token: Int[Array, " n"]
    state: Any
    end: int
    max_length: int
    min_length: int
    limit: Int[Array, " b"]
    forbidden: tuple[int, ...]
    logits: jax.ShapeDtypeStruct
    weights: jax.ShapeDtypeStruct | None

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of scores and log-probabilities."""
        return jnp.promote_types(self.logits.dtype, jnp.float32)

    def buffer(self, *shape: int) -> Float[Array, "..."] | None:
        """Room for the weights of each step, [*shape, k]; None where there are none."""
        if self.weights is None:
            return None
        return jnp.zeros((*shape, self.weights.shape[1]), self.weights.dtype)


def prepare(
    step: Step,
    state: Any,
    *,
    start: Int[ArrayLike, "*b"],
    end: int,
    max_length: int,
    min_length: int,
    limit: Int[ArrayLike, " b"] | None,
    forbidden: tuple[int, ...],
    copies: int = 1,
) -> Search:
    """Refuse a caller's mistakes; trace the step once for its shapes."""
    require_function(step, "step", "a function (token, state) -> (logits, state, weights)")
    require_count(max_length, "max_length", least=1)
    require_count(min_length, "min_length", least=0)
    require(
        min_length <= max_length, "min_length", f"be at most max_length={max_length}", min_length
    )
    require(is_integer(start) and np.ndim(start) <= 1, "start", "be one integer or [b]", start)
    state = jax.tree.map(jnp.asarray, state)
    b = _examples(state, start)
    rule = "be None or integers, one for each example"
    require(limit is None or (is_integer(limit) and jnp.shape(limit) == (b,)), "limit", rule, limit)
    longest = jnp.full(b, max_length, jnp.int32)
    rows = jnp.arange(b * copies) // copies
    token = jnp.broadcast_to(jnp.asarray(start, jnp.int32), (b,))[rows]
    state = state if copies == 1 else jax.tree.map(lambda leaf: leaf[rows], state)
    logits, weights = _returned(step, token, state)
    _require_tokens(end, forbidden, logits.shape[1])
    return Search(
        step=step,
        token=token,
        state=state,
        end=int(end),
        max_length=int(max_length),
        min_length=int(min_length),
        limit=longest if limit is None else jnp.minimum(jnp.asarray(limit, jnp.int32), longest),
        forbidden=tuple(forbidden),
        logits=logits,
        weights=weights,
    )


def require_count(value: Any, argument: str, *, least: int, most: int | None = None) -> None:
    """Refuse anything but a Python integer in this range."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    rule = f"be an integer of at least {least}"
    if most is not None:
        rule = f"be an integer from {least} to {most}"
    require(whole and least <= value and (most is None or value <= most), argument, rule, value)


def is_integer(value: Any) -> bool:
    """Whether a number or an array holds integers."""
    return jnp.issubdtype(jnp.result_type(value), jnp.integer)


def _examples(state: Any, start: Int[ArrayLike, "*b"]) -> int:
    """The leading axis that the state's arrays and `start` share."""
    leaves = [*jax.tree.leaves(state), *([start] if np.ndim(start) else [])]
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    rule = "hold arrays with one leading axis, the examples, which start shares if it is an array"
    got = f"leading axes {sorted(sizes)}" if sizes else "no array"
    require(len(sizes) == 1 and () not in sizes, "state", rule, got)
    return sizes.pop()[0]


def _returned(
    step: Step, token: Int[Array, " n"], state: Any
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct | None]:
    """The shapes and dtypes of a step's logits and weights."""
    returned = jax.eval_shape(step, token, state)
    three = isinstance(returned, tuple) and len(returned) == 3
    require(three, "step", "return (logits, state, weights)", repr(returned))
    logits, after, weights = returned
    rule = "return the state with the structure, shapes and dtypes that it got"
    before = jax.eval_shape(lambda state: state, state)
    require(_signature(after) == _signature(before), "step", rule, f"{before}, returned {after}")
    rows = len(token)
    rule = f"return real logits [n, v], n = {rows} here"
    require(_is_table(logits, rows), "step", rule, repr(logits))
    rule = f"return real weights [n, k] or None, n = {rows} here"
    require(weights is None or _is_table(weights, rows), "step", rule, repr(weights))
    return logits, weights


def _is_table(array: Any, rows: int) -> bool:
    shape, dtype = getattr(array, "shape", ()), getattr(array, "dtype", int)
    return len(shape) == 2 and shape[0] == rows and jnp.issubdtype(dtype, jnp.floating)


def _signature(tree: Any) -> tuple:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _require_tokens(end: int, forbidden: tuple[int, ...], vocabulary: int) -> None:
    require_count(end, "end", least=0, most=vocabulary - 1)
    require(isinstance(forbidden, tuple), "forbidden", "be a tuple of tokens", forbidden)
    for token in forbidden:
        require_count(token, "forbidden", least=0, most=vocabulary - 1)
