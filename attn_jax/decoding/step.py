"""The contract with the caller: a step function, what decoding returns, and their checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from attn_jax import meshes
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

    `token` and `state` have `copies` adjacent rows for each example. Inside a mesh, `limit` varies
    and is sharded as all that the search chooses.
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

    @property
    def by_example(self) -> PartitionSpec:
        """How an explicit mesh shards an array [b, …] of the search."""
        return PartitionSpec(meshes.spec(self.limit))

    def zeros(self, *shape: int) -> Int[Array, "..."]:
        """Zeros [t, b, …] that are typed as `limit`, from which a loop starts."""
        zeros = jnp.zeros_like(self.limit).reshape(1, -1, *[1] * (len(shape) - 2))
        return jnp.broadcast_to(zeros, shape)

    def buffer(self, *shape: int) -> Float[Array, "..."] | None:
        """Room for the weights of each step, [*shape, k]; None where there are none."""
        if self.weights is None:
            return None
        zeros = self.zeros(*shape, self.weights.shape[1]).astype(self.weights.dtype)
        return meshes.varying(zeros, meshes.axes_of(self.weights))


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
    deciding: Any = (),
) -> Search:
    """Refuse a caller's mistakes; trace the step for its shapes and types.

    `deciding` are the other arrays that the choice of tokens depends on.
    """
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
    limit = _limits(limit, b, max_length)
    known = _sharding((start, limit, *jax.tree.leaves(state)))

    def repeated(array):
        return jnp.repeat(array, copies, axis=0) if copies > 1 else array

    def first(start):
        return repeated(jnp.broadcast_to(jnp.asarray(start, jnp.int32), (b,)))

    token = meshes.automatic(first, start, specs=known)
    token = meshes.varying(token, meshes.axes_of((token, limit, deciding)))
    if copies > 1:
        state = meshes.automatic(
            lambda state: jax.tree.map(repeated, state), state, specs=meshes.specs_of(state)
        )
    token, state, logits, weights = _settled(step, token, state, moves=copies > 1)
    _require_tokens(end, forbidden, logits.shape[1])
    by_example = _sharding((limit, token, logits))
    token, limit = meshes.automatic(lambda *both: both, token, limit, specs=by_example)
    return Search(
        step=step,
        token=token,
        state=state,
        end=int(end),
        max_length=int(max_length),
        min_length=int(min_length),
        limit=meshes.varying(limit, meshes.axes_of(token)),
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


def _sharding(arrays: tuple[Any, ...]) -> PartitionSpec:
    """How an explicit mesh shards the examples: as the first of the arrays that it shards."""
    found = (meshes.spec(each) for each in arrays)
    return PartitionSpec(next((each for each in found if each is not None), None))


def _settled(step: Step, token: Int[Array, " n"], state: Any, *, moves: bool) -> tuple[Any, ...]:
    """Token and state, typed as a step leaves them, and the types of its logits and weights.

    Inside `jax.shard_map` a step's results vary over what it closes over too, and its next token
    over the axes of its logits; a state that moves between hypotheses follows the tokens.
    """
    while True:
        logits, after, weights = _returned(step, token, state)
        wider = meshes.varying(token, meshes.axes_of(logits)), meshes.alike(state, after)
        if moves:
            wider = wider[0], meshes.varying(wider[1], meshes.axes_of(wider[0]))
        before = list(map(meshes.axes_of, jax.tree.leaves((token, state))))
        token, state = wider
        if before == list(map(meshes.axes_of, jax.tree.leaves(wider))):
            return token, state, logits, weights


def _returned(
    step: Step, token: Int[Array, " n"], state: Any
) -> tuple[jax.ShapeDtypeStruct, Any, jax.ShapeDtypeStruct | None]:
    """What a step returns, as shapes and dtypes."""
    returned = jax.eval_shape(step, token, state)
    three = isinstance(returned, tuple) and len(returned) == 3
    got = f"a {type(returned).__name__} of {len(jax.tree.leaves(returned))} arrays"
    require(three, "step", "return (logits, state, weights)", got)
    logits, after, weights = returned
    rule = "return the state with the structure, shapes and dtypes that it got"
    if changes := _changes(state, after):
        require(False, "step", rule, changes)
    rows = token.shape[0]
    rule = f"return real logits [n, v], n = {rows} here"
    require(_is_table(logits, rows), "step", rule, logits)
    rule = f"return real weights [n, k] or None, n = {rows} here"
    require(weights is None or _is_table(weights, rows), "step", rule, weights)
    return logits, after, weights


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
