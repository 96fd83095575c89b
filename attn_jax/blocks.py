"""Where pairs of queries and keys lie: indices, and blocks of the [q, k] array of all pairs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Integer

Index = Integer[Array, "#q #k"]


def indices(queries: int, keys: int) -> tuple[Int[Array, "q 1"], Int[Array, "1 k"]]:
    """query_index [q, 1] and key_index [1, k], which broadcast to all pairs.

    >>> [index.tolist() for index in indices(2, 3)]
    [[[0], [1]], [[0, 1, 2]]]
    """
    return jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]


@dataclasses.dataclass(frozen=True)
class Block:
    """`size` of all pairs, (queries, keys), from `start` on.

    Blocks of a grid that does not divide q or k may reach `beyond` them. There the last index is
    repeated, so that no function of indices is called with one that does not exist.

    >>> Block((2, 2), (3, 5), (2, 4), beyond=(True, True)).indices[1].tolist()
    [[4, 4]]
    """

    size: tuple[int, int]
    of: tuple[int, int]
    start: tuple[Any, Any] = (0, 0)
    beyond: tuple[bool, bool] = (False, False)

    @property
    def is_all(self) -> bool:
        """Whether these are statically known to be all pairs."""
        return self.size == self.of and all(type(start) is int for start in self.start)

    @property
    def indices(self) -> tuple[Int[Array, "q 1"], Int[Array, "1 k"]]:
        """query_index [q, 1] and key_index [1, k]."""
        if self.is_all:
            return indices(*self.size)
        rows, columns = (
            jnp.minimum(start + jnp.arange(size), of - 1) if beyond else start + jnp.arange(size)
            for start, size, of, beyond in self._axes
        )
        return rows[:, None], columns[None, :]

    @property
    def real(self) -> Bool[Array, "#q #k"] | None:
        """True [q, k] for pairs that exist; None where no block of this grid reaches beyond."""
        rows, columns = (
            start + jnp.arange(size) < of if beyond else None
            for start, size, of, beyond in self._axes
        )
        if rows is None:
            return None if columns is None else columns[None, :]
        return rows[:, None] if columns is None else rows[:, None] & columns[None, :]

    def take(self, array: Array) -> Array:
        """These entries of an array [q, k] of all pairs."""
        if self.is_all:
            return array
        for axis, (start, size, of, beyond) in enumerate(self._axes):
            first = jnp.minimum(start, of - size)
            array = jax.lax.dynamic_slice_in_dim(array, first, size, axis)
            if beyond:
                array = jnp.roll(array, first - start, axis)
        return array

    @property
    def _axes(self) -> Any:
        return zip(self.start, self.size, self.of, self.beyond, strict=True)


def all_pairs(queries: int, keys: int) -> Block:
    """All pairs as one block."""
    return Block((queries, keys), (queries, keys))
