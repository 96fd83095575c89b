"""What modules are given, checked: sizes, dtypes, batches of rows, lengths, tokens."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Int, Num

from attn_jax.checks import all_hold, concrete, require


def require_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are no positive integers; None stands for a default.

    >>> require_sizes(features=8, heads=None)
    """
    for name, size in sizes.items():
        whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
        require(size is None or (whole and size >= 1), name, "be a positive integer", size)


def require_dtype(dtype: Any) -> None:
    """Refuse a dtype that no layer computes in; None stands for that of inputs and parameters."""
    floating = dtype is None or jnp.issubdtype(dtype, jnp.floating)
    require(floating, "dtype", "be a floating-point dtype or None", str(dtype))


def rows_of(name: str, rows: Num[ArrayLike, "..."], features: int) -> Num[Array, "b t d"]:
    """The rows as an array [batch, length, features] of real numbers."""
    rows = jnp.asarray(rows)
    require(rows.ndim == 3, name, "have shape [batch, length, features]", rows)
    require(rows.shape[2] == features, name, f"have {features} features", rows)
    real = not jnp.issubdtype(rows.dtype, jnp.complexfloating)
    require(real, name, "hold real numbers", rows)
    return rows


def lengths_of(name: str, lengths: Int[ArrayLike, "..."] | None, examples: int) -> Array | None:
    """The lengths as an array [examples]; None, all rows, stays so."""
    if lengths is None:
        return None
    lengths = jnp.asarray(lengths)
    fits = jnp.issubdtype(lengths.dtype, jnp.integer) and lengths.shape == (examples,)
    require(fits, name, f"be integers, one for each of the {examples} examples", lengths)
    negative = not all_hold(lengths, lambda each: each >= 0)
    require(not negative, name, "not be negative", f"{concrete(lengths)}")
    return lengths


def tokens_of(name: str, tokens: Int[ArrayLike, "..."], vocabulary: int) -> Int[Array, "b t"]:
    """The tokens as an array [batch, length] of numbers below the vocabulary's size.

    Traced ones are not known: there a number outside stands for the nearest token.
    """
    tokens = jnp.asarray(tokens)
    fits = tokens.ndim == 2 and jnp.issubdtype(tokens.dtype, jnp.integer)
    require(fits, name, "be integers [batch, length]", tokens)
    known = concrete(tokens)
    if known is not None:
        outside = known[(known < 0) | (known >= vocabulary)]
        require(not outside.size, name, f"be from 0 to {vocabulary - 1}", f"{outside[:1]}")
    return tokens
