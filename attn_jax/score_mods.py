"""Score mods: what is done to scores before the mask.

`(scores [q, k], query_index [q, 1], key_index [1, k]) -> scores [q, k]`. A plain function of the
same signature is a score mod. Order matters: a soft cap after the mask would leak weight.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Integer, Num

from attn_jax.blocks import Block, Index, indices  # noqa: F401 - the doctests' indices
from attn_jax.checks import (
    require,
    require_function,
    require_integer,
    require_positive,
    require_scalar,
)
from attn_jax.integers import clip, moved, relative_position
from attn_jax.precision import accumulate
from attn_jax.slots import index, slot, static

_FARTHEST = 2**20  # a table of the buckets of all distances is part of the program

ScoreMod = Callable[[Float[Array, "q k"], Index, Index], Float[Array, "q k"]]


@slot
class Bias:
    """scores + bias, bias [q, k]: a number for each pair, learned or given.

    >>> Bias(jnp.array([[1.0, 2.0]]))(jnp.zeros((1, 2)), *indices(1, 2)).tolist()
    [[1.0, 2.0]]
    """

    bias: Num[ArrayLike, "... q k"]

    def __post_init__(self):
        require(jnp.ndim(self.bias) == 2, "bias", "have shape [q, k]", self.bias)

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        scores, bias = accumulate(scores, self.bias)
        return scores + bias[query_index, key_index]

    def in_block(self, scores: Float[Array, "q k"], block: Block) -> Float[Array, "q k"]:
        """The scores of a block, with a slice of the bias instead of one index per pair."""
        scores, bias = accumulate(scores, block.take(jnp.asarray(self.bias)))
        return scores + bias

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        require(
            self.bias.shape == (queries, keys),
            "bias",
            "have one entry for each query and key",
            f"bias {self.bias.shape}, scores {(queries, keys)}",
        )


@slot
class RelativeBias:
    """scores + table[bucket(j - i - offset)], table [buckets] learned. (Raffel et al. 2020, T5.)

    Near distances have a bucket each, far ones share buckets that grow in geometric steps up to
    `max_distance`, where the last one begins. `bidirectional` gives half of the buckets to keys
    after the query (j > i); otherwise such keys share bucket 0. The offset is Causal's: where the
    first query stands among the keys.

    >>> RelativeBias(jnp.arange(8.0))(jnp.zeros((1, 4)), *indices(1, 4)).tolist()
    [[0.0, 5.0, 6.0, 6.0]]
    """

    table: Float[ArrayLike, "... buckets"]
    bidirectional: bool = static(default=True)
    max_distance: int | np.integer = static(default=128)
    offset: Integer[ArrayLike, "..."] = index(default=0)

    def __post_init__(self):
        require_integer(self.offset, "offset")
        least = 4 if self.bidirectional else 2
        require(
            jnp.ndim(self.table) == 1 and self.table.shape[0] >= least,
            "table",
            f"have shape [buckets] with at least {least} buckets",
            self.table,
        )
        require(
            type(self.max_distance) is int and self._exact < self.max_distance <= _FARTHEST,
            "max_distance",
            f"be an integer above {self._exact}, the distances that have a bucket each, "
            f"and at most {_FARTHEST}",
            self.max_distance,
        )

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        scores, table = accumulate(scores, self.table)
        position = moved(query_index, self.offset)
        return scores + table[self.bucket(relative_position(position, key_index))]

    def in_block(self, scores: Float[Array, "q k"], block: Block) -> Float[Array, "q k"]:
        """The scores of a block, with one look at the table for each diagonal, not each pair."""
        rows, columns = block.size
        scores, table = accumulate(scores, self.table)
        query, key = (jnp.asarray(start)[None, None] for start in block.start)
        first = relative_position(moved(query, self.offset), key)[0] - rows + 1
        relative = first + jnp.arange(rows + columns - 1)
        return scores + _diagonals(table[self.bucket(relative)], rows)

    def bucket(self, offset: Integer[Array, "..."]) -> Integer[Array, "..."]:
        """The bucket of each offset j - i."""
        table = jnp.asarray(_buckets(self._one_sided, self._exact, self.max_distance))
        offset = clip(offset, -self.max_distance, self.max_distance)
        if not self.bidirectional:
            return table[jnp.maximum(-offset, 0)]
        return table[jnp.abs(offset)] + jnp.where(offset > 0, self._one_sided, 0)

    @property
    def _one_sided(self) -> int:
        return self.table.shape[0] // (2 if self.bidirectional else 1)

    @property
    def _exact(self) -> int:
        return self._one_sided // 2


def _diagonals(values: Float[Array, " n"], rows: int) -> Float[Array, "q k"]:
    """The matrix [rows, columns] whose entry (i, j) is values[j - i + rows - 1]."""
    first = rows - 1 - jnp.arange(rows)
    columns = len(values) + 1 - rows
    return jax.vmap(lambda at: jax.lax.dynamic_slice_in_dim(values, at, columns))(first)


@functools.cache
def _buckets(buckets: int, exact: int, max_distance: int) -> np.ndarray:
    """T5's bucket of every distance 0 … max_distance.

    bucket(n) = exact + ⌊log(n/exact) / log(max_distance/exact) · (buckets - exact)⌋ for n ≥ exact,
    at most buckets - 1; by whole numbers, so that no logarithm rounds across a boundary:
    bucket(n) ≥ exact + m  ⇔  (n/exact)^(buckets - exact) ≥ (max_distance/exact)^m.
    """
    steps = buckets - exact
    table = list(range(exact))
    m = 0
    for n in range(exact, max_distance + 1):
        while (
            m < steps - 1 and n**steps * exact ** (m + 1) >= max_distance ** (m + 1) * exact**steps
        ):
            m += 1
        table.append(exact + m)
    return np.asarray(table, np.int32)


@slot
class Alibi:
    """scores - slope · |i + offset - j|. (Press, Smith & Lewis 2022.)

    The offset is Causal's: where the first query stands among the keys.

    >>> Alibi(0.5)(jnp.zeros((1, 3)), *indices(1, 3)).tolist()
    [[0.0, -0.5, -1.0]]
    """

    slope: Float[ArrayLike, "..."] | int
    offset: Integer[ArrayLike, "..."] = index(default=0)

    def __post_init__(self):
        require_scalar(self.slope, "slope")
        require_integer(self.offset, "offset")

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        scores, slope = accumulate(scores, self.slope)
        position = moved(query_index, self.offset)
        distance = jnp.abs(relative_position(position, key_index))
        return scores - slope * distance.astype(scores.dtype)


@slot
class SoftCap:
    """cap · tanh(scores / cap): scores stay within ±cap. (Gemma 2, 2024; Bello et al. 2017.)

    The cap comes before the mask, so what a mask forbids stays forbidden. But it is the equation's
    literal order for kernels too: -inf outside a compact support becomes -cap, a small weight.

    >>> SoftCap(1.0)(jnp.array([[0.0, 1e30]]), *indices(1, 2)).tolist()
    [[0.0, 1.0]]
    """

    cap: Float[ArrayLike, "..."] | int

    def __post_init__(self):
        require_scalar(self.cap, "cap")
        require_positive(self.cap, "cap")

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        # ±inf reaches ±cap; the replacement keeps inf · 0 out of the cap's derivative
        scores, cap = accumulate(scores, self.cap)
        infinite = jnp.isinf(scores)
        capped = cap * jnp.tanh(jnp.where(infinite, 0.0, scores) / cap)
        return jnp.where(infinite, cap * jnp.sign(scores), capped)


@slot
class Chain:
    """Score mods one after the other, the first one first. `chain` makes it."""

    mods: tuple

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        for mod in self.mods:
            scores = mod(scores, query_index, key_index)
        return scores

    def in_block(self, scores: Float[Array, "q k"], block: Block) -> Float[Array, "q k"]:
        """The scores of a block."""
        for mod in self.mods:
            scores = in_block(mod, scores, block)
        return scores

    def check(self, queries: int, keys: int) -> None:
        """Raise ValueError where the slot does not fit the scores."""
        for mod in self.mods:
            if hasattr(mod, "check"):
                mod.check(queries, keys)


@slot
class Shifted:
    """mod(scores, i + start, j + first_key): of queries and keys that stand from there on."""

    mod: Any
    start: Integer[ArrayLike, "..."]
    first_key: Integer[ArrayLike, "..."] = 0

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        return self.mod(scores, moved(query_index, self.start), moved(key_index, self.first_key))


@slot
class Hiding:
    """-inf where the mask does not allow: the same to a normalizer, where nothing is inf or NaN."""

    mask: Any

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        return jnp.where(self.mask(query_index, key_index), scores, -jnp.inf)


def chain(*mods: ScoreMod) -> Chain:
    """Apply score mods in the order given.

    >>> double = lambda scores, query_index, key_index: 2 * scores
    >>> chain(Alibi(1.0), double)(jnp.zeros((1, 2)), *indices(1, 2)).tolist()
    [[0.0, -2.0]]
    """
    for mod in mods:
        require_function(mod, "mods", "a function (scores, query_index, key_index) -> scores")
    return Chain(tuple(mods))


def in_block(mod: ScoreMod, scores: Float[Array, "q k"], block: Block) -> Float[Array, "q k"]:
    """Apply a mod to the scores of a block; what holds an array slices it instead of indexing."""
    if hasattr(mod, "in_block"):
        return mod.in_block(scores, block)
    return jnp.asarray(mod(scores, *block.indices))
