"""Batches of arrays in memory, in an order that is a pure function of (seed, position)."""

import copy
import zlib
from typing import Any

import jax
import numpy as np

from attn_jax.checks import require


class Batches:
    """Endless batches of a pytree of arrays that share their leading axis.

    Each epoch is shuffled anew and holds each example once; a batch may straddle two epochs, so
    every batch has the same shape. `batch_size=None` gives the whole data set each time, on the
    device already. The position (`get_state`, `set_state`: the protocol of grain's iterators, which
    `fit` takes just as well) is the number of batches given so far.

    Grain itself assembles batches from single elements, which took 4 ms for 128 rows of an array in
    memory; indexing the arrays takes some 10 µs. Use grain where reading an element is real work.

    >>> batches = Batches({"x": np.arange(6)}, batch_size=3, seed=1)
    >>> sorted([*next(batches)["x"].tolist(), *next(batches)["x"].tolist()])
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self, arrays: Any, *, batch_size: int | None = None, shuffle: bool = True, seed: int = 0
    ):
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(arrays)}
        rule = "be a pytree of arrays with one leading axis, of at least one example"
        require(len(sizes) == 1 and min(sizes) > (0,), "arrays", rule, f"leading axes {sizes}")
        (self.size,) = sizes.pop()
        proper = batch_size is None or 1 <= batch_size <= self.size
        require(proper, "batch_size", f"be 1 to {self.size}, the number of examples", batch_size)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self._arrays = jax.tree.map(np.asarray if batch_size else jax.numpy.asarray, arrays)
        self._checksum = 0
        for leaf in jax.tree.leaves(arrays):
            self._checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), self._checksum)
        self._position = 0
        self._epoch, self._order = -1, np.arange(self.size)

    def __iter__(self) -> "Batches":
        """The batches from the first one on, whoever else iterates."""
        fresh = copy.copy(self)
        fresh._position = 0
        return fresh

    def __next__(self) -> Any:
        """The batch at the position, which moves on."""
        position, self._position = self._position, self._position + 1
        if self.batch_size is None:
            return self._arrays
        rows = self._rows(position * self.batch_size)
        return jax.tree.map(lambda array: array[rows], self._arrays)

    def get_state(self) -> dict[str, int]:
        """The position and what it is counted in."""
        return {"position": self._position} | self._identity()

    def set_state(self, state: dict[str, int]) -> None:
        """Go to a position that `get_state` gave for the same data."""
        expected = self._identity()
        got = {name: state.get(name) for name in expected}
        require(got == expected, "state", f"be a position in batches of {expected}", repr(got))
        self._position = state["position"]

    def _identity(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "checksum": self._checksum,
        }

    def _rows(self, start: int) -> np.ndarray:
        """The examples of the batch that starts at this place in the endless order."""
        epoch, first = divmod(start, self.size)
        rows = self._epoch_order(epoch)[first : first + self.batch_size]
        missing = self.batch_size - len(rows)
        if missing:
            rows = np.concatenate([rows, self._epoch_order(epoch + 1)[:missing]])
        return rows

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if self.shuffle and epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            self._epoch = epoch
        return self._order
