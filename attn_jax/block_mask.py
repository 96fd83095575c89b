"""What is known of a mask, block by block, before any pair is looked at.

A grid cuts the [q, k] array of pairs into blocks. An implementation leaves out the blocks that a
mask surely empties and computes no mask in those that it surely leaves whole.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


@dataclasses.dataclass(frozen=True)
class Span:
    """The first and the last index of each block along one axis: NumPy [blocks]."""

    first: np.ndarray
    last: np.ndarray

    def of(self, ids: Array) -> tuple[Array, Array]:
        """The smallest and the largest of the ids [n] in each block."""
        width = int(np.max(self.last - self.first)) + 1
        inside = ids[np.minimum(self.first[:, None] + np.arange(width), self.last[:, None])]
        return inside.min(axis=1), inside.max(axis=1)


@dataclasses.dataclass(frozen=True)
class BlockMask:
    """What a mask lets through in each block [rows, columns] of a grid.

    `some` is False where surely nothing is allowed, `every` True where surely all is: both known
    statically. `maybe`, where there is one, is False where the run-time values allow nothing.
    """

    some: np.ndarray
    every: np.ndarray
    maybe: Array | None = None

    @classmethod
    def unknown(cls, rows: Span, columns: Span) -> "BlockMask":
        """Nothing is known: every block has to be looked at."""
        shape = len(rows.first), len(columns.first)
        return cls(np.ones(shape, bool), np.zeros(shape, bool))

    @classmethod
    def of(cls, some: Any, every: Any, rows: Span, columns: Span) -> "BlockMask":
        """From comparisons of block ends, which are NumPy's where all positions are static."""
        shape = len(rows.first), len(columns.first)
        if every is None or isinstance(some, jax.Array):
            nothing = cls.unknown(rows, columns)
            return cls(nothing.some, nothing.every, _unless_batched(jnp.broadcast_to(some, shape)))
        return cls(np.broadcast_to(some, shape), np.broadcast_to(every, shape))

    def __and__(self, other: "BlockMask") -> "BlockMask":
        both = [each.maybe for each in (self, other) if each.maybe is not None]
        maybe = None if not both else both[0] if len(both) == 1 else both[0] & both[1]
        return BlockMask(self.some & other.some, self.every & other.every, maybe)

    def __or__(self, other: "BlockMask") -> "BlockMask":
        maybe = None
        if self.maybe is not None and other.maybe is not None:
            maybe = (self.some & self.maybe) | (other.some & other.maybe)
        elif self.maybe is not None or other.maybe is not None:
            traced, plain = (self, other) if self.maybe is not None else (other, self)
            maybe = (traced.some & traced.maybe) | plain.some
        return BlockMask(self.some | other.some, self.every | other.every, maybe)

    def __invert__(self) -> "BlockMask":
        return BlockMask(~self.every, ~self.some)


@jax.custom_batching.custom_vmap
def _unless_batched(maybe: Array) -> Array:
    """As it is; under vmap all True: a block is computed anyway if one example needs it.

    (And a `cond` whose predicate is batched stops gradients, which has no transpose.)
    """
    return maybe


@_unless_batched.def_vmap
def _(axis_size: int, in_batched: Any, maybe: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return jnp.ones(maybe.shape[1:], bool), False
