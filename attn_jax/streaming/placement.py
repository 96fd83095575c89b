"""Which blocks of all pairs are here, where queries and keys are spread over devices.

Each device has chunks of the whole: one of them, contiguous, or two, the d-th from the beginning
and from the end, so that a causal mask leaves all devices as many blocks. ("Zigzag": Brandon et al.
2023, "Striped attention", section 3; Llama 3 uses this form: Grattafiori et al. 2024, 3.3.2.)
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from attn_jax.streaming.grid import Grid


class Placed(NamedTuple):
    """The blocks that are here, by their number in the whole."""

    rows: Int[Array, " rows"]
    columns: Int[Array, " columns"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Queries, and where they form a `ring` keys, are spread over a mesh axis.

    Attributes:
        axis: the manual mesh axis.
        devices: how many it has.
        zigzag: whether each has two chunks.
        ring: whether keys are spread too, and go from device to device; else each has all of them.
    """

    axis: str
    devices: int
    zigzag: bool
    ring: bool

    @property
    def chunks(self) -> int:
        """How many there are on a device."""
        return 1 + self.zigzag

    def whole(self, queries: int, keys: int) -> tuple[int, int]:
        """How many queries and keys there are in all, of those that are here."""
        return queries * self.devices, keys * self.devices if self.ring else keys

    def fitting(self, here: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
        """The size of blocks, near this one, of which the chunks that are here consist."""
        queries, keys = (
            _divisor(n // self.chunks, most) for n, most in zip(here, size, strict=True)
        )
        return queries, keys if self.ring else size[1]

    def here(self) -> Int[Array, ""]:
        """This device's number."""
        return jax.lax.axis_index(self.axis)

    def placed(
        self, grid: Grid, device: Int[ArrayLike, ""], hops: Int[ArrayLike, ""] = 0
    ) -> Placed:
        """The blocks of queries of a device, and of the keys that it has after so many hops."""
        rows, columns = grid.kinds.shape
        of_keys = jnp.arange(columns)
        if self.ring:
            of_keys = self._numbers((device - hops) % self.devices, columns)
        return Placed(self._numbers(device, rows), of_keys)

    def _numbers(self, device: Int[ArrayLike, ""], blocks: int) -> Int[Array, " n"]:
        """Of the blocks of a device's chunks, of so many in all."""
        most = self.chunks * self.devices
        chunks = [device, most - 1 - device] if self.zigzag else [device]
        each = blocks // most
        return jnp.concatenate([chunk * each + jnp.arange(each) for chunk in chunks])

    def hop(self, tree: Any, hops: Int[ArrayLike, ""] = 1) -> Any:
        """What the device so many places before this one has; the same number on all devices."""

        def moved(tree, by):
            moves = [(n, (n + by) % self.devices) for n in range(self.devices)]
            return jax.lax.ppermute(tree, self.axis, moves)

        if isinstance(hops, int):
            return moved(tree, hops)
        for bit in range((self.devices - 1).bit_length()):
            is_set = (hops >> bit) % 2 == 1
            tree = jax.lax.cond(is_set, lambda t, by=2**bit: moved(t, by), lambda t: t, tree)
        return tree


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`; where that is below a quarter of it, the next one.

    >>> _divisor(96, 40), _divisor(97, 40)
    (32, 97)
    """
    divisors = [each for each in range(1, n + 1) if n % each == 0]
    fine = [each for each in divisors if most <= 4 * each and each <= most]
    return fine[-1] if fine else next((each for each in divisors if each > most), n)
