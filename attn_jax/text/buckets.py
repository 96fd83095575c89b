"""The examples of one padded shape, in an endless order of their own."""

from typing import Any

import numpy as np

Batch = dict[str, np.ndarray]


class Bucket:
    """Batches of one shape, each a pure function of its number.

    The examples follow each other in one shuffle after another, each from (seed, epoch, place), or
    in their own order where the seed is None. Batch `number` holds the examples from
    `number · batch_size` on: one that straddles two shuffles is as full as any other.
    """

    def __init__(self, arrays: dict[str, Any], batch_size: int, *, seed: int | None, place: int):
        self._arrays, self.batch_size = arrays, batch_size
        self._seed, self._place = seed, place
        self.size = len(arrays["source"])
        self._orders: dict[int, Any] = {}

    def batch(self, number: int) -> Batch:
        """The batch of this number, counted from 0."""
        first, start = divmod(number * self.batch_size, self.size)
        last = (number * self.batch_size + self.batch_size - 1) // self.size
        order = np.concatenate([self._order(epoch) for epoch in range(first, last + 1)])
        rows = order[start : start + self.batch_size]
        return {name: array[rows] for name, array in self._arrays.items()}

    def batches_before(self, epoch: int) -> int:
        """How many batches are complete when the shuffles before this epoch are used up."""
        return epoch * self.size // self.batch_size

    def _order(self, epoch: int) -> np.ndarray:
        if self._seed is None:
            return np.arange(self.size)
        if epoch not in self._orders:
            self._orders = {old: self._orders[old] for old in self._orders if old == epoch - 1}
            # NumPy takes (seed, epoch) and (seed, epoch, 0) for the same entropy: count from 1.
            rng = np.random.default_rng([self._seed, epoch, self._place + 1])
            self._orders[epoch] = rng.permutation(self.size)
        return self._orders[epoch]
