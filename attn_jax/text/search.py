"""Searching for the targets of sources of any length, in few padded shapes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from attn_jax.text.padding import Rows, in_order, padded_batches

LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)  # that sources are padded to; then doubled


class Hypothesis(NamedTuple):
    """One target found for a source.

    Attributes:
        ids: Its tokens, without the end.
        score: What the search ranks by.
        finished: Whether the end was produced.
        weights: Those of the tokens, and of the end where it is finished, over the memory of the
            source; None where the search has none.
    """

    ids: list[int]
    score: float
    finished: bool
    weights: Float[np.ndarray, "t m"] | None


def padded_search(
    search: Callable[[Shaped[np.ndarray, "b s ..."], Int[np.ndarray, " b"]], Any],
    sources: Rows,
    *,
    batch_size: int = 128,
    batch_positions: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    memory_length: Callable[[int], int] = int,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, in the order of the sources.

    Args:
        search: (source, source_length) -> `decoding.Decoded`, jitted: it compiles for each shape.
        sources: Ids of each source, or an array [length, ...].
        batch_size: The most sources of a batch. A few sources make a smaller batch, of a power of
            two; it is filled up with sources of length 0.
        batch_positions: The most positions of a batch, padding included; None: any number.
        lengths: What sources are padded to, rising; then doubled.
        memory_length: length of a source -> how many positions its memory has.

    >>> def copy(source, length):
    ...     from attn_jax.decoding import Decoded
    ...
    ...     scores = np.zeros(len(length))
    ...     return Decoded(source, length, scores, scores > 0, None, scores)
    >>> [[each.ids for each in found] for found in padded_search(copy, [[7, 8, 9], [], [4]])]
    [[[7, 8, 9]], [[]], [[4]]]
    """
    batches = padded_batches(
        sources,
        batch_size=min(batch_size, _power_of_two(len(sources))),
        batch_positions=batch_positions,
        lengths=lengths,
    )

    def searched(batch):
        length = batch["source_length"]
        positions = [memory_length(int(each)) for each in length]
        return _hypotheses(search(batch["source"], length), positions)

    return in_order(batches, (searched(each.batch) for each in batches))


def _hypotheses(decoded: Any, positions: Sequence[int]) -> list[list[Hypothesis]]:
    """The hypotheses of each row of a batch, without padding."""
    names = ("tokens", "lengths", "scores", "finished", "weights")
    parts = {name: getattr(decoded, name) for name in names}
    arrays = {name: np.asarray(part) for name, part in parts.items() if part is not None}
    if arrays["lengths"].ndim == 1:
        arrays = {name: array[:, None] for name, array in arrays.items()}

    def one(row: int, n: int) -> Hypothesis:
        count, finished = int(arrays["lengths"][row, n]), bool(arrays["finished"][row, n])
        weights = None
        if "weights" in arrays:  # a copy: a view would keep the whole batch
            weights = arrays["weights"][row, n, :count, : positions[row]].copy()
        ids = arrays["tokens"][row, n, : count - finished].tolist()
        return Hypothesis(ids, float(arrays["scores"][row, n]), finished, weights)

    rows, n_best = arrays["lengths"].shape
    return [[one(row, n) for n in range(n_best)] for row in range(rows)]


def _power_of_two(count: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(count - 1, 0).bit_length()
