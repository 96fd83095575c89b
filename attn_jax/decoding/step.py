"""The contract with the caller: a step function, what decoding returns, and their checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from attn_jax.checks import all_hold, concrete, require, require_function, show

Step = Callable[
    [Int[Array, " n"], Any], tuple[Float[Array, "n v"], Any, Float[Array, "n k"] | None]
]

MOST = 2**31 - 1  # tokens and lengths are int32


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
    require_count(max_length, "max_length", least=1, most=MOST)
    require_count(min_length, "min_length", least=0)
    rule = f"be at most max_length={max_length}"
    require(min_length <= max_length, "min_length", rule, min_length)
    start = _known(start)
    require(is_integer(start) and np.ndim(start) <= 1, "start", "be one integer or [b]", start)
    tokens = all_hold(start, lambda each: (each >= 0) & (each <= MOST))
    require(tokens, "start", f"be tokens, 0 to {MOST}", f"{start}")
    state = jax.tree.map(jnp.asarray, state)
    b = _examples(state, start)
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
        limit=_limits(limit, b, max_length),
        forbidden=forbidden,
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
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    return jnp.issubdtype(dtype, jnp.integer)


def _known(value: Any) -> Any:
    """A value that is known as a NumPy array: integers beyond int32 do not wrap in it."""
    known = concrete(value)
    return value if known is None else known


def _examples(state: Any, start: Int[ArrayLike, "*b"]) -> int:
    """The leading axis that the state's arrays and `start` share."""
    leaves = [*jax.tree.leaves(state), *([start] if np.ndim(start) else [])]
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    rule = "hold arrays with one leading axis, the examples, which start shares if it is an array"
    got = f"leading axes {sorted(sizes)}" if sizes else "no array"
    require(len(sizes) == 1 and () not in sizes, "state", rule, got)
    return sizes.pop()[0]


def _limits(limit: Int[ArrayLike, " b"] | None, b: int, max_length: int) -> Int[Array, " b"]:
    """The most tokens of each example."""
    if limit is None:
        return jnp.full(b, max_length, jnp.int32)
    limit = _known(limit)
    proper = is_integer(limit) and np.shape(limit) == (b,)
    require(proper, "limit", f"be None or integers, one for each of {b} examples", limit)
    most = min(max_length, jnp.iinfo(limit.dtype).max)
    return jnp.asarray(limit.clip(0, most), jnp.int32)


def _returned(
    step: Step, token: Int[Array, " n"], state: Any
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct | None]:
    """The shapes and dtypes of a step's logits and weights."""
    returned = jax.eval_shape(step, token, state)
    three = isinstance(returned, tuple) and len(returned) == 3
    got = f"a {type(returned).__name__} of {len(jax.tree.leaves(returned))} arrays"
    require(three, "step", "return (logits, state, weights)", got)
    logits, after, weights = returned
    rule = "return the state with the structure, shapes and dtypes that it got"
    if changes := _changes(state, after):
        require(False, "step", rule, changes)
    rows = len(token)
    rule = f"return real logits [n, v], n = {rows} here"
    require(_is_table(logits, rows), "step", rule, logits)
    rule = f"return real weights [n, k] or None, n = {rows} here"
    require(weights is None or _is_table(weights, rows), "step", rule, weights)
    return logits, weights


def _changes(before: Any, after: Any) -> str:
    """The first way in which a step changed its state's form, in words; empty if in none."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        return f"{jax.tree.structure(after)} for {jax.tree.structure(before)}"
    pairs = zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return f"{show(new)} for {show(old)} at state{jax.tree_util.keystr(path)}"
    return ""


def _is_table(array: Any, rows: int) -> bool:
    shape, dtype = getattr(array, "shape", ()), getattr(array, "dtype", int)
    return len(shape) == 2 and shape[0] == rows and jnp.issubdtype(dtype, jnp.floating)


def _require_tokens(end: int, forbidden: tuple[int, ...], vocabulary: int) -> None:
    require_count(end, "end", least=0, most=vocabulary - 1)
    require(isinstance(forbidden, tuple), "forbidden", "be a tuple of tokens", forbidden)
    for token in forbidden:
        require_count(token, "forbidden", least=0, most=vocabulary - 1)
