"""A few padded shapes for rows of any length: each one compiles, and padding costs time."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from attn_jax.checks import require

CANDIDATES = 20  # quantiles on each side, of all lengths and of the different ones


def choose_shapes(
    lengths: Int[np.ndarray, "n sides"], most: int, at_least: Callable[[np.ndarray], np.ndarray]
) -> Int[np.ndarray, "shapes sides"]:
    """The shapes that pad least, each inside the next; a row takes the first that holds it.

    argmin over S₁ ⊂ … ⊂ S_m, m ≤ most, of Σᵢ (rows in Sᵢ but not in Sᵢ₋₁) · (sum of Sᵢ's sides),
    by dynamic programming over a grid of lengths: exact where a side has no more different lengths
    than the grid. Each shape gets at least `at_least(shape)` rows, and no side is shorter than 1.

    >>> lengths = np.array([[2, 3], [3, 2], [3, 3], [9, 7], [8, 8]])
    >>> choose_shapes(lengths, 2, lambda shape: 1).tolist()
    [[3, 3], [9, 8]]
    """
    require(most >= 1, "buckets", "be at least 1", most)
    lengths = np.maximum(lengths, 1)
    grids = [_candidates(side) for side in lengths.T]
    shapes = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1).reshape(-1, len(grids))
    held = _held(lengths, grids)
    rows = held[None, :] - held[:, None]  # [shape before, shape]
    inside = (shapes[:, None] <= shapes[None, :]).all(axis=-1)
    enough = at_least(shapes)
    cost = np.where(inside & (rows >= enough), rows * shapes.sum(axis=-1), np.inf)
    best = [np.where(held >= enough, held * shapes.sum(axis=-1), np.inf)]
    before = [np.full(len(shapes), -1)]
    for _ in range(most - 1):
        total = best[-1][:, None] + cost
        best.append(total.min(axis=0))
        before.append(total.argmin(axis=0))
    last = int(np.argmin([costs[-1] for costs in best]))
    assert np.isfinite(best[last][-1]), "one shape for all rows has too few rows"
    chosen = [len(shapes) - 1]
    for step in range(last, 0, -1):
        chosen.append(int(before[step][chosen[-1]]))
    return shapes[chosen[::-1]]


def first_that_holds(
    lengths: Int[np.ndarray, "n sides"], shapes: Int[np.ndarray, "shapes sides"]
) -> Int[np.ndarray, " n"]:
    """The number of the first shape that is as long as a row on every side."""
    return np.argmax((lengths[:, None] <= shapes[None, :]).all(axis=-1), axis=1)


def _candidates(lengths: np.ndarray) -> np.ndarray:
    different = np.unique(lengths)
    if len(different) <= 2 * CANDIDATES:
        return different
    # Of all lengths for the bulk, of the different ones for the few long rows.
    parts = np.linspace(0, 1, CANDIDATES)
    return np.unique([np.quantile(of, parts, method="higher") for of in (lengths, different)])


def _held(lengths: np.ndarray, grids: list[np.ndarray]) -> np.ndarray:
    """How many rows each shape of the grid holds."""
    sizes = [len(grid) for grid in grids]
    cells = [np.searchsorted(grid, side) for grid, side in zip(grids, lengths.T, strict=True)]
    counts = np.bincount(np.ravel_multi_index(cells, sizes), minlength=int(np.prod(sizes)))
    counts = counts.reshape(sizes)
    for axis in range(len(sizes)):
        counts = counts.cumsum(axis=axis)
    return counts.ravel()
