"""Rows of any length as padded arrays, and batches of them whose results come back in order."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Shaped

from attn_jax.checks import require
from attn_jax.text.shapes import choose_shapes, first_that_holds
from attn_jax.text.specials import END, PAD

Rows = Sequence[Sequence[int] | np.ndarray]  # ids; or vectors, pictures' lines: [length, ...]


def lengths_of(rows: Rows) -> Int32[np.ndarray, " n"]:
    """The length of each row."""
    return np.fromiter(map(len, rows), np.int32, len(rows))


def flat(rows: Rows) -> Int32[np.ndarray, " ids"]:
    """All ids of all rows, one after the other."""
    count = int(lengths_of(rows).sum())
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32, count)


def features_of(rows: Rows, name: str = "sources") -> tuple[tuple[int, ...], np.dtype] | None:
    """The shape and the dtype of each position of rows of arrays; None where rows hold ids.

    >>> features_of([np.zeros((5, 3))]), features_of([[7, 8], []])
    (((3,), dtype('float64')), None)
    """
    if not any(np.ndim(row) > 1 for row in itertools.islice(rows, 1)):
        return None
    found = {(np.shape(row)[1:], getattr(row, "dtype", None)) for row in rows}
    require(len(found) == 1, name, "have one shape of features and one dtype", found)
    return found.pop()


def pad(
    rows: Rows, length: int, features: tuple[tuple[int, ...], np.dtype] | None = None
) -> Shaped[np.ndarray, "n {length} ..."]:
    """The rows in one array, filled up with PAD: of ids, or of arrays of these features.

    >>> pad([[7, 8, 9], [], [4]], 3).tolist()
    [[7, 8, 9], [0, 0, 0], [4, 0, 0]]
    """
    shape, dtype = features or ((), np.int32)
    padded = np.full((len(rows), length, *shape), PAD, dtype)
    if features is None:
        padded[np.arange(length) < lengths_of(rows)[:, None]] = flat(rows)
    for place, row in enumerate(rows if features else ()):
        padded[place, : len(row)] = row if len(row) else 0
    return padded


class PaddedOnDemand:
    """Rows of arrays, padded as they are taken: a copy of them all would be as large again."""

    def __init__(self, rows: Rows, length: int, features: tuple[tuple[int, ...], np.dtype]):
        self._rows, self._how = rows, (length, features)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, places: Int[np.ndarray, " b"]) -> Shaped[np.ndarray, "b ..."]:
        return pad([self._rows[place] for place in places], *self._how)


def padded_sides(
    sides: dict[str, Rows],
    rows: Int[np.ndarray, " rows"],
    shape: Sequence[int],
    *,
    fill: int = 0,
    on_demand: bool = False,
) -> dict[str, Any]:
    """Some rows of each side [rows + fill, length, ...] and their lengths; `fill` rows are empty.

    With `on_demand` rows of arrays are `PaddedOnDemand`.
    """
    arrays: dict[str, Any] = {}
    for (name, side), length in zip(sides.items(), shape, strict=True):
        of_side = [side[row] for row in rows] + [[]] * fill
        features = features_of(side[:1])
        lazy = on_demand and features is not None
        make = PaddedOnDemand if lazy else pad
        arrays |= {name: make(of_side, length, features), f"{name}_length": lengths_of(of_side)}
    return arrays


def with_end(targets: Rows) -> Rows:
    """The targets as a decoder has to write them."""
    return [[*target, END] for target in targets]


@dataclasses.dataclass(frozen=True)
class Padded:
    """One batch and where its rows came from.

    Attributes:
        rows: The place of each row in the input, -1 for a row of length 0 that only fills up.
        batch: source and source_length; with targets, target and target_length too.
    """

    rows: Int[np.ndarray, " b"]
    batch: dict[str, np.ndarray]


def padded_batches(
    sources: Rows,
    targets: Rows | None = None,
    *,
    batch_size: int = 128,
    batch_positions: int | None = None,
    buckets: int = 6,
    lengths: Sequence[int] | None = None,
) -> list[Padded]:
    """Each row once, longest last, in batches of few shapes: to decode or to evaluate.

    The last batch is filled up with rows of length 0, so that it is no new shape. `in_order` gives
    the results back in the order of the input.

    >>> batches = padded_batches([[5, 6, 7, 8], [9], []], batch_size=2)
    >>> in_order(batches, [b.batch["source"][:, 0].tolist() for b in batches])
    [5, 9, 0]

    Args:
        sources: Ids of each source, or an array [length, ...] of one dtype.
        targets: Ids of each target, without END, which is appended. An empty one is kept.
        batch_size: Rows of each batch.
        batch_positions: The most positions of a batch on its longer side, padding included: long
            shapes have fewer rows, one at least.
        buckets: The most shapes; they are chosen for these rows.
        lengths: The lengths that sources are padded to instead, rising, where more rows are to
            come and no new shape shall be compiled for them. What is longer takes the last length
            doubled, and doubled again.
    """
    require(batch_size >= 1, "batch_size", "be at least 1", batch_size)
    bounded = batch_positions is None or batch_positions >= 1
    require(bounded, "batch_positions", "be at least 1", batch_positions)
    sides = {"source": sources} | ({} if targets is None else {"target": with_end(targets)})
    counts = {len(rows) for rows in sides.values()}
    require(len(counts) == 1, "targets", f"be as many as the {len(sources)} sources", counts)
    if not len(sources):
        return []
    features_of(sources)
    table = np.stack([lengths_of(rows) for rows in sides.values()], axis=-1)
    if lengths is None:
        shapes = choose_shapes(table, buckets, lambda _: min(batch_size, len(sources)))
    else:
        require(targets is None, "lengths", "be None where there are targets", lengths)
        shapes = _fixed(lengths, int(table.max()))
    sizes = np.full(len(shapes), batch_size)
    if batch_positions is not None:
        sizes = np.clip(batch_positions // shapes.max(axis=-1), 1, batch_size)
    fitting = first_that_holds(table, shapes)
    order = np.lexsort((table.sum(axis=-1), fitting))
    made = []
    while len(order):
        # Shapes are nested: the last row's holds the others, and has no more rows than theirs.
        allowed = sizes[fitting[order[:batch_size]]]
        count = int(np.sum(np.arange(1, len(allowed) + 1) <= allowed))
        rows, order = order[:count], order[count:]
        place = fitting[rows[-1]]
        fill = int(sizes[place]) - count
        batch = padded_sides(sides, rows, shapes[place].tolist(), fill=fill)
        made.append(Padded(np.concatenate([rows, np.full(fill, -1)]), batch))
    return made


def in_order(batches: Sequence[Padded], results: Iterable[Iterable[Any]]) -> list[Any]:
    """One result for each row of the input, in its order, from the results of each batch."""
    found = {}
    for batch, result in zip(batches, results, strict=True):
        found.update(zip(batch.rows.tolist(), result, strict=True))
    found.pop(-1, None)
    return [found[row] for row in range(len(found))]


def _fixed(lengths: Sequence[int], longest: int) -> np.ndarray:
    rising = len(lengths) > 0 and lengths[0] >= 1 and bool(np.all(np.diff(lengths) > 0))
    require(rising, "lengths", "be positive and rise", list(lengths))
    shapes = [*lengths]
    while shapes[-1] < longest:
        shapes.append(2 * shapes[-1])
    return np.array(shapes)[:, None]
