"""What modules are given, checked: sizes, slots, batches of rows, lengths, tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Int, Num, PRNGKeyArray

from attn_jax.checks import all_hold, concrete, require, require_scalar
from attn_jax.recurrence import real_times


def sizes_of(**sizes: Any) -> tuple[int | None, ...]:
    """The sizes as Python integers, NumPy's too; None stands for a default.

    >>> sizes_of(features=np.int64(8), heads=None)
    (8, None)
    """
    for name, size in sizes.items():
        whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
        require(size is None or (whole and size >= 1), name, "be a positive integer", size)
    return tuple(None if size is None else int(size) for size in sizes.values())


def require_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False: "none" would count as True.

    >>> require_flags(bias=False)
    """
    for name, flag in flags.items():
        got = repr(flag) if isinstance(flag, str) else flag
        require(isinstance(flag, bool | np.bool_), name, "be True or False", got)


def require_rngs(rngs: Any) -> None:
    """Refuse a seed that is no `nnx.Rngs`."""
    require(isinstance(rngs, nnx.Rngs), "rngs", "be an nnx.Rngs, nnx.Rngs(0) say", rngs)


def require_dtype(dtype: Any) -> None:
    """Refuse a dtype that no layer computes in; None stands for that of inputs and parameters."""
    floating = dtype is None or jnp.issubdtype(dtype, jnp.floating)
    require(floating, "dtype", "be a floating-point dtype or None", str(dtype))


def fold(rng: PRNGKeyArray | None, number: Int[ArrayLike, ""]) -> PRNGKeyArray | None:
    """Another seed for another use; None in evaluation."""
    return None if rng is None else jax.random.fold_in(rng, number)


def require_rate(dropout: float) -> None:
    """Refuse what is no rate of dropout."""
    require_scalar(dropout, "dropout")
    require(0 <= dropout < 1, "dropout", "be at least 0 and below 1", dropout)


def rows_of(name: str, rows: Num[ArrayLike, "..."], features: int) -> Num[Array, "b t d"]:
    """The rows as an array [batch, length, features] of real numbers."""
    rows = jnp.asarray(rows)
    require(rows.ndim == 3, name, "have shape [batch, length, features]", rows)
    require(rows.shape[2] == features, name, f"have {features} features", rows)
    real = not jnp.issubdtype(rows.dtype, jnp.complexfloating)
    require(real, name, "hold real numbers", rows)
    return rows


def lengths_of(
    name: str, lengths: Int[ArrayLike, "..."], examples: int, width: int
) -> Int[Array, " b"]:
    """The lengths as an array [examples], none beyond the width of what they are lengths of."""
    lengths = _array(lengths)
    fits = jnp.issubdtype(lengths.dtype, jnp.integer) and lengths.shape == (examples,)
    require(fits, name, f"be integers, one for each of the {examples} examples", lengths)
    most = f"be at most {width}, the width of what is padded"
    for rule, proper in (
        ("not be negative", lambda each: each >= 0),
        (most, lambda each: each <= width),
    ):
        if not all_hold(lengths, proper):
            require(False, name, rule, f"{concrete(lengths)}")
    return jnp.asarray(lengths)


def without_padding(
    rows: Num[Array, "b t d"],
    lengths: Int[Array, " b"] | None,
    padding: Int[Array, " b"] | None = None,
) -> Num[Array, "b t d"]:
    """The rows, and zeros beyond each example's length and in the padding before it.

    NaN in padding times a gradient of 0 would be NaN, and a kernel's gradient is a sum over all
    rows.
    """
    for count, inside in ((lengths, True), (padding, False)):
        if count is not None:
            before = real_times(count, rows.shape[1]).T[:, :, None]
            rows = jnp.where(before, rows, 0) if inside else jnp.where(before, 0, rows)
    return rows


def positions_of(
    positions: Int[ArrayLike, "..."] | None,
    rows: Num[Array, "b t ..."],
    padding: Int[Array, " b"] | None,
) -> Int[Array, "*#b t"]:
    """The positions of rows, [t] or [b, t]: 0, 1, … after the padding, where none are given."""
    b, t = rows.shape[:2]
    if positions is None:
        at = jnp.arange(t)
        return at if padding is None else jnp.maximum(at[None] - padding[:, None], 0)
    positions = _array(positions)
    proper = jnp.issubdtype(positions.dtype, jnp.integer)
    rule = f"be integers [{t}] or [{b}, {t}], as the inputs"
    require(proper and positions.shape in ((t,), (1, t), (b, t)), "positions", rule, positions)
    require(all_hold(positions, lambda each: each >= 0), "positions", "not be negative", positions)
    return jnp.asarray(positions)


def tokens_of(name: str, tokens: Int[ArrayLike, "..."], vocabulary: int) -> Int[Array, "b t"]:
    """The tokens as an array [batch, length] of numbers below the vocabulary's size.

    Traced ones are not known: where they are looked up, one beyond the last stands for the last,
    and a negative one counts back from there, to the first at most.
    """
    tokens = _integers(name, tokens, 2, "be integers [batch, length]")
    return _in_vocabulary(name, tokens, vocabulary)


def next_tokens_of(token: Int[ArrayLike, "..."], vocabulary: int) -> Int[Array, " n"]:
    """One token of each hypothesis, as `tokens_of`."""
    token = _integers("token", token, 1, "be integers, one for each hypothesis")
    return _in_vocabulary("token", token, vocabulary)


def targets_of(
    batch: dict[str, ArrayLike], start: int, vocabulary: int
) -> tuple[Int[Array, "b t"], Int[Array, "b t"], Bool[Array, "b t"]]:
    """The tokens before each target token, the target, and which of it is real.

    Padding may hold any number: before a token that is not real comes `start` again.
    """
    target = _integers("target", batch["target"], 2, "be integers [batch, length]")
    source = np.shape(batch["source"])
    shapes = f"target {target.shape}, source {source}"
    require(target.shape[:1] == source[:1], "target", "have as many rows as source", shapes)
    length = lengths_of("target_length", batch["target_length"], *target.shape)
    real = real_times(length, target.shape[1]).T
    target = _in_vocabulary("target", target, vocabulary, real)
    start = _in_vocabulary("start", _integers("start", start, 0, "be one integer"), vocabulary)
    before = jnp.concatenate([jnp.full_like(target[:, :1], start), target[:, :-1]], axis=1)
    return jnp.where(real, before, start), target, real


def _integers(name: str, value: Any, axes: int, rule: str) -> Any:
    value = _array(value)
    fits = value.ndim == axes and jnp.issubdtype(value.dtype, jnp.integer)
    require(fits, name, rule, value)
    return value


def _in_vocabulary(name: str, tokens: Any, vocabulary: int, real: Any = True) -> Int[Array, "..."]:
    """The tokens; those known, and known to be real, are below the vocabulary's size."""
    known, real = concrete(tokens), concrete(real)
    if known is not None and real is not None:
        outside = known[real & ((known < 0) | (known >= vocabulary))]
        require(not outside.size, name, f"be from 0 to {vocabulary - 1}", f"{outside[:1]}")
    return jnp.asarray(tokens)


def _array(value: Any) -> Any:
    """The value as an array; NumPy's does not wrap large integers before they are checked."""
    on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
    return jnp.asarray(value) if on_device else np.asarray(value)
