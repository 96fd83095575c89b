"""Endless batches of sentence pairs for `attn_jax.training.fit`, in few shapes."""

import copy
import itertools
import zlib
from typing import Any, Literal

import numpy as np

from attn_jax.checks import require
from attn_jax.text.buckets import Batch, Bucket
from attn_jax.text.padding import (
    Rows,
    features_of,
    flat,
    lengths_of,
    padded_sides,
    with_end,
)
from attn_jax.text.shapes import choose_shapes, first_that_holds


class PairBatches:
    """Endless batches of pairs of about one length, in an order that is a pure function of `seed`.

    A batch is {source [b, s], source_length [b], target [b, t], target_length [b]}, int32, padded
    with PAD; sources may be arrays [length, ...] too, and keep their dtype. Each target ends with
    END, which its length counts. Every batch has one of at most `buckets` shapes (`shapes`), chosen
    so that padding is least. The pairs of a shape are shuffled each time anew and hold each pair
    once; the rows that are missing in a shape's last batch are the first ones of its next shuffle,
    so that no batch is smaller than its shape.

    The position (`get_state`, `set_state`: the protocol of grain's iterators) is the number of
    batches given so far. Grain itself assembles batches from single elements, which took 4 ms for
    128 rows that are in memory; indexing arrays takes some 20 µs.

    >>> batches = PairBatches([[7, 8], [9], []], [[4], [5, 6], []], batch_size=2)
    >>> batches.shapes, batches.without_target
    ([(2, 3, 2)], 1)
    >>> sorted(next(batches)["target"].tolist())
    [[4, 3, 0], [5, 6, 3]]

    Args:
        sources: Ids of each source, or an array [length, ...]; an empty one is an example, of
            length 0.
        targets: Ids of each target, without END.
        batch_size: Pairs of each batch.
        batch_tokens: In its place, the most target positions of a batch, padding included: a
            bucket of shorter targets has more pairs in a batch (a multiple of 8 from 8 on).
        buckets: The most shapes.
        max_length: The longest source or target, END not counted. Without it one very long line
            decides how large the largest batch is.
        too_long: Leave out longer pairs, or cut both sides at `max_length`.
        shuffle: False gives the pairs of a shape in their order, the small shapes first.
        seed: Seed of the order.

    Attributes:
        size: The number of pairs.
        shapes: (source length, target length, rows) of each bucket.
        batches_per_epoch: How many batches hold each pair once, on average.
        real_fraction: The part of all positions that is no padding.
        without_target: How many pairs were left out because their target is empty.
        too_long: How many pairs were left out, or cut, because a side is longer than `max_length`.
    """

    def __init__(
        self,
        sources: Rows,
        targets: Rows,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        buckets: int = 6,
        max_length: int | None = None,
        too_long: Literal["drop", "cut"] = "drop",
        shuffle: bool = True,
        seed: int = 0,
    ):
        one = (batch_size is None) != (batch_tokens is None)
        got = f"batch_size={batch_size}, batch_tokens={batch_tokens}"
        require(one, "batch_size", "be given, or batch_tokens in its place", got)
        rule = f"be as many as the {len(sources)} sources"
        require(len(sources) == len(targets), "targets", rule, len(targets))
        require(too_long in ("drop", "cut"), "too_long", "be 'drop' or 'cut'", repr(too_long))
        proper = max_length is None or max_length >= 1
        require(proper, "max_length", "be at least 1", max_length)
        sources, targets = self._usable(sources, targets, max_length, too_long)
        self.size, self.shuffle, self.seed = len(sources), shuffle, seed
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self._checksum = _checksum(sources, targets)
        sides = {"source": sources, "target": with_end(targets)}
        self._buckets = self._make_buckets(sides, buckets)
        self.batches_per_epoch = sum(b.size / rows for b, (*_, rows) in self._by_shape())
        positions = sum(b.size * (source + target) for b, (source, target, _) in self._by_shape())
        real = sum(map(len, sources)) + sum(map(len, targets)) + self.size  # one END each
        self.real_fraction = real / positions
        self._position = 0
        self._epoch, self._schedule = -1, np.empty((0, 2), int)

    def __iter__(self) -> "PairBatches":
        """The batches from the first one on; each iterator has its own position."""
        fresh = copy.copy(self)
        fresh._position = 0
        return fresh

    def __next__(self) -> Batch:
        """The batch at the position, which moves on."""
        position, self._position = self._position, self._position + 1
        epoch = self._epoch_of(position)
        if epoch != self._epoch:
            self._epoch, self._schedule = epoch, self._make_schedule(epoch)
        bucket, number = self._schedule[position - self._batches_before(epoch)].tolist()
        return self._buckets[bucket].batch(number)

    def get_state(self) -> dict[str, Any]:
        """The position and what it is counted in."""
        return {"position": self._position} | self._identity()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to a position that `get_state` gave for the same data."""
        expected = self._identity()
        got = {name: state.get(name) for name in expected}
        require(got == expected, "state", f"be a position in batches of {expected}", repr(got))
        self._position = state["position"]

    def _identity(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "shapes": [list(shape) for shape in self.shapes],
            "shuffle": self.shuffle,
            "seed": self.seed,
            "checksum": self._checksum,
        }

    def _usable(self, sources: Rows, targets: Rows, longest: int | None, too_long: str) -> Any:
        """The pairs that remain; how many did not is counted."""
        pairs = list(zip(sources, targets, strict=True))
        kept = [pair for pair in pairs if len(pair[1])]
        self.without_target = len(pairs) - len(kept)
        fitting = [longest is None or max(map(len, pair)) <= longest for pair in kept]
        self.too_long = fitting.count(False)
        if too_long == "cut":
            kept = [(source[:longest], target[:longest]) for source, target in kept]
        else:
            kept = [pair for pair, fits in zip(kept, fitting, strict=True) if fits]
        left_out = f"{self.without_target} without a target, {self.too_long} too long"
        require(len(kept) > 0, "targets", "leave at least one pair", f"{len(pairs)}: {left_out}")
        return [source for source, _ in kept], [target for _, target in kept]

    def _make_buckets(self, sides: dict[str, Rows], most: int) -> list[Bucket]:
        lengths = np.stack([lengths_of(rows) for rows in sides.values()], axis=-1)
        self._require_enough(lengths.max(axis=0))
        shapes = choose_shapes(lengths, most, self._rows_of)
        sizes = self._rows_of(shapes).tolist()
        self.shapes = [(*shape, size) for shape, size in zip(shapes.tolist(), sizes, strict=True)]
        fitting = first_that_holds(lengths, shapes)
        return [
            Bucket(
                padded_sides(sides, np.flatnonzero(fitting == place), shape, on_demand=True),
                size,
                seed=self.seed if self.shuffle else None,
                place=place,
            )
            for place, (*shape, size) in enumerate(self.shapes)
        ]

    def _rows_of(self, shapes: np.ndarray) -> np.ndarray:
        """The rows of a batch of each shape."""
        if self.batch_size is not None:
            return np.full(len(shapes), self.batch_size)
        rows = self.batch_tokens // shapes[:, 1]
        return np.where(rows >= 8, rows // 8 * 8, rows)

    def _require_enough(self, longest: np.ndarray) -> None:
        (rows,) = self._rows_of(longest[None, :])
        name = "batch_tokens" if self.batch_size is None else "batch_size"
        rule = f"give 1 to {self.size} rows, the number of pairs, to batches as long as the longest"
        require(1 <= rows <= self.size, name, rule, f"{getattr(self, name)}: {rows} rows")

    def _by_shape(self) -> Any:
        return zip(self._buckets, self.shapes, strict=True)

    def _batches_before(self, epoch: int) -> int:
        return sum(bucket.batches_before(epoch) for bucket in self._buckets)

    def _epoch_of(self, position: int) -> int:
        epoch = int(position // self.batches_per_epoch)
        # A bucket's batch counts where it is complete, so an epoch never begins before its average.
        while self._batches_before(epoch + 1) <= position:
            epoch += 1
        return epoch

    def _make_schedule(self, epoch: int) -> np.ndarray:
        """(bucket, number in the bucket) of each batch of an epoch: numbers in their order."""
        numbers = [
            np.arange(bucket.batches_before(epoch), bucket.batches_before(epoch + 1))
            for bucket in self._buckets
        ]
        places = np.repeat(np.arange(len(numbers)), [len(of_one) for of_one in numbers])
        if self.shuffle:
            places = np.random.default_rng([self.seed, epoch]).permutation(places)
        schedule = np.stack([places, places], axis=-1)
        schedule[np.argsort(places, kind="stable"), 1] = np.concatenate(numbers)
        return schedule


def _checksum(*sides: Rows) -> int:
    checksum = 0
    for rows in sides:
        arrays = [flat(rows)] if features_of(rows) is None else map(np.asarray, rows)
        for array in itertools.chain([lengths_of(rows)], arrays):
            checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum
