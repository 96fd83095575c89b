"""What is known of a mask, block by block, before it is evaluated.

A grid divides the [q, k] array of pairs into blocks. An implementation leaves out the blocks that a
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
    """The first and the last index of each block along one axis, [blocks].

    They are NumPy's, but for a mask that moves them by an array.
    """

    first: np.ndarray | Array
    last: np.ndarray | Array

    def of(self, ids: Array) -> tuple[Array, Array]:
        """The smallest and the largest of the ids [n] in each block."""
        width = int(np.max(self.last - self.first)) + 1
        inside = ids[np.minimum(self.first[:, None] + np.arange(width), self.last[:, None])]
        return inside.min(axis=1), inside.max(axis=1)


@dataclasses.dataclass(frozen=True)
class BlockMask:
    """What a mask allows in each block [rows, columns] of a grid.

    `any` is False where surely nothing is allowed, `all` True where surely all is:
    both known statically. `runtime_any`, where there is one, is False where the run-time values
    allow nothing.
    """

    any: np.ndarray
    all: np.ndarray
    runtime_any: Array | None = None

    @classmethod
    def unknown(cls, rows: Span, columns: Span) -> "BlockMask":
        """Nothing is known: the mask has to be evaluated in every block."""
        shape = len(rows.first), len(columns.first)
        return cls(np.ones(shape, bool), np.zeros(shape, bool))

    @classmethod
    def of(cls, any_inside: Any, all_inside: Any, rows: Span, columns: Span) -> "BlockMask":
        """From comparisons of block ends, which are NumPy's where all positions are static."""
        shape = len(rows.first), len(columns.first)
        if all_inside is None or isinstance(any_inside, jax.Array):
            nothing = cls.unknown(rows, columns)
            runtime_any = _unless_batched(jnp.broadcast_to(any_inside, shape))
            return cls(nothing.any, nothing.all, runtime_any)
        return cls(np.broadcast_to(any_inside, shape), np.broadcast_to(all_inside, shape))

    def __and__(self, other: "BlockMask") -> "BlockMask":
        both = [each.runtime_any for each in (self, other) if each.runtime_any is not None]
        runtime_any = None if not both else both[0] if len(both) == 1 else both[0] & both[1]
        return BlockMask(self.any & other.any, self.all & other.all, runtime_any)

    def __or__(self, other: "BlockMask") -> "BlockMask":
        runtime_any = None
        if self.runtime_any is not None and other.runtime_any is not None:
            runtime_any = (self.any & self.runtime_any) | (other.any & other.runtime_any)
        elif self.runtime_any is not None or other.runtime_any is not None:
            traced, plain = (self, other) if self.runtime_any is not None else (other, self)
            runtime_any = (traced.any & traced.runtime_any) | plain.any
        return BlockMask(self.any | other.any, self.all | other.all, runtime_any)

    def __invert__(self) -> "BlockMask":
        return BlockMask(~self.all, ~self.any)


@jax.custom_batching.custom_vmap
def _unless_batched(runtime_any: Array) -> Array:
    """As it is; under vmap all True: a block is computed anyway if one example needs it.

    (And a `cond` whose predicate is batched stops gradients, which has no transpose.)
    """
    return runtime_any


@_unless_batched.def_vmap
def _(axis_size: int, in_batched: Any, runtime_any: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    return jnp.ones(runtime_any.shape[1:], bool), False
