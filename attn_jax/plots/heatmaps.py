"""Heat maps of attention weights: tokens, indices or true coordinates along each side."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from attn_jax.plots.style import fonts, styled

COLORS = "magma_r"  # perceptually uniform; nothing is pale, much is dark
MOST_CELLS = 256  # per axis: fewer cells than pixels, so that no thin diagonal falls between
MOST_LETTERS = 18


def attention_heatmap(
    weights: ArrayLike,
    *,
    query_labels: ArrayLike | None = None,
    key_labels: ArrayLike | None = None,
    query_axis: str = "query",
    key_axis: str = "key",
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw one attention matrix, queries down and keys across.

    Labels are tokens (strings), positions (numbers: the axes become coordinates, growing upwards
    and to the right, cells reach half-way to their neighbours), or None for the index.

    Args:
        weights: [q, k]; NaN is drawn grey.
        query_labels: [q] strings or finite numbers in any order.
        key_labels: [k], the same.
        query_axis: Name of the vertical axis.
        key_axis: Name of the horizontal axis.
        title: Above the picture.
        ax: Where to draw; None makes a figure.
    """
    return attention_heatmaps(
        [weights],
        titles=None if title is None else [title],
        query_labels=query_labels,
        key_labels=key_labels,
        query_axis=query_axis,
        key_axis=key_axis,
        axes=None if ax is None else [ax],
    )


def attention_heatmaps(
    weights: ArrayLike | Sequence[ArrayLike],
    *,
    titles: Sequence[str] | None = None,
    query_labels: ArrayLike | None = None,
    key_labels: ArrayLike | None = None,
    query_axis: str = "query",
    key_axis: str = "key",
    columns: int = 4,
    axes: Sequence[Axes] | None = None,
) -> Figure:
    """Draw attention matrices side by side on one scale of colours: before and after, or heads.

    Args:
        weights: Matrices [q, k] of one shape, or an array [panels, q, k].
        titles: One for each matrix.
        query_labels: [q], as in `attention_heatmap`.
        key_labels: [k].
        query_axis: Name of the vertical axis.
        key_axis: Name of the horizontal axis.
        columns: Panels in a row, at most.
        axes: Where to draw, one for each matrix; None makes a figure.
    """
    matrices = [_matrix(each) for each in weights]
    if not matrices or len({each.shape for each in matrices}) > 1:
        shapes = [each.shape for each in matrices]
        raise ValueError(f"weights must be matrices of one shape, at least one. Got {shapes}.")
    for name, given in (("titles", titles), ("axes", axes)):
        if given is not None and len(given) != len(matrices):
            raise ValueError(
                f"{name} must be as many as weights, {len(matrices)}. Got {len(given)}."
            )
    rows = _Labels(query_labels, matrices[0].shape[0], "query_labels")
    across = _Labels(key_labels, matrices[0].shape[1], "key_labels")
    finite = np.concatenate([each[np.isfinite(each)] for each in matrices])
    low, high = min(0.0, finite.min(initial=0)), finite.max(initial=0)
    scale = mpl.colors.Normalize(low, high if high > low else low + 1)
    with styled():
        left = lowest = axes
        if axes is None:
            titled = 0.085 * max(map(len, titles or [""]))  # inches
            least = (max(titled, 0.078 * len(key_axis)), 0.078 * len(query_axis))
            axes, wide = _panels(len(matrices), columns, rows, across, least)
            left, lowest = axes[::wide], axes[-wide:]
        for number, (ax, each) in enumerate(zip(axes, matrices, strict=True)):
            cells, x_edges, y_edges = _cells(each, rows, across)
            image = ax.pcolormesh(
                x_edges, y_edges, cells, cmap=_colors(), norm=scale, rasterized=True
            )
            if titles is not None:
                ax.set_title(titles[number])
            _name_side(ax.yaxis, rows, query_axis if ax in left else "")
            _name_side(ax.xaxis, across, key_axis if ax in lowest else "")
            ax.set_xlim(x_edges[0], x_edges[-1])
            upwards = rows.coordinates
            ax.set_ylim(y_edges[0 if upwards else -1], y_edges[-1 if upwards else 0])
        figure = axes[0].get_figure(root=True)
        bar = figure.colorbar(image, ax=list(axes), label="weight", aspect=25, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2.5, labelsize=8)
        bar.locator = MaxNLocator(5)
        bar.update_ticks()
    return figure


def _matrix(weights: ArrayLike) -> np.ndarray:
    """Return weights [q, k] in float64, refused where they are no matrix or empty."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(
            "weights must be one matrix [q, k] with a row and a column at least (one head at a "
            f"time: attention_heatmaps takes many). Got {weights.shape}."
        )
    return weights


class _Labels:
    """The cells along one side of a matrix: their order, their edges, their names."""

    def __init__(self, given: ArrayLike | None, count: int, name: str):
        self.tokens: list[str] | None = None
        self.order = np.arange(count)
        positions = np.arange(count, dtype=np.float64)
        self.coordinates = False
        if given is not None:
            values = np.asarray(given)
            if values.shape != (count,):
                raise ValueError(
                    f"{name} must be one for each of the {count} rows or columns of weights. "
                    f"Got shape {values.shape}."
                )
            if values.dtype.kind in "OSUT":
                self.tokens = [token_label(str(each)) for each in values]
            else:
                positions = values.astype(np.float64)
                if not np.isfinite(positions).all():
                    raise ValueError(f"{name} must be finite numbers or strings. Got {given!r}.")
                self.order = np.argsort(positions, kind="stable")
                self.coordinates = True
        self.positions, self.starts = np.unique(positions[self.order], return_index=True)
        self.edges = _edges(self.positions)

    def __len__(self) -> int:
        return len(self.positions)


def _edges(positions: np.ndarray) -> np.ndarray:
    """Return the cells' edges [n + 1] around sorted positions [n]: half-way to the neighbours."""
    if len(positions) == 1:
        return positions[0] + np.array([-0.5, 0.5])
    between = positions[:-1] / 2 + positions[1:] / 2
    first, last = 2 * positions[0] - between[0], 2 * positions[-1] - between[-1]
    return np.concatenate([[first], between, [last]])


def token_label(token: str) -> str:
    """Return a token as a label of a cell: blanks made visible, long ones cut."""
    token = token.replace("\n", "\\n").replace("\t", "\\t").replace(" ", "␣") or "∅"
    return token if len(token) <= MOST_LETTERS else token[: MOST_LETTERS - 1] + "…"


def _cells(
    weights: np.ndarray, rows: _Labels, across: _Labels
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cells to draw and their edges: (cells, x edges, y edges).

    Equal positions share a cell, and where cells would be thinner than a pixel a regular grid
    takes the largest weight that each of its cells meets.
    """
    weights = weights[rows.order][:, across.order]
    weights = np.fmax.reduceat(weights, rows.starts, axis=0)
    weights = np.fmax.reduceat(weights, across.starts, axis=1)
    weights, y_edges = _coarse(weights, rows.edges)
    weights, x_edges = _coarse(weights.T, across.edges)
    return weights.T, x_edges, y_edges


def _coarse(weights: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows [n, …] on at most `MOST_CELLS` cells, the largest of the rows that meet each."""
    extent = edges[-1] - edges[0]
    if np.diff(edges).min() >= extent / MOST_CELLS * (1 - 1e-9):
        return weights, edges
    grid = np.linspace(edges[0], edges[-1], MOST_CELLS + 1)
    first = np.clip(np.searchsorted(edges, grid[:-1], "right") - 1, 0, len(weights) - 1)
    last = np.maximum(np.searchsorted(edges, grid[1:], "left"), first + 1)
    padded = np.concatenate([weights, np.full_like(weights[:1], np.nan)])
    return np.fmax.reduceat(padded, np.stack([first, last], 1).ravel(), axis=0)[::2], grid


def _panels(
    count: int, columns: int, rows: _Labels, across: _Labels, least: tuple[float, float]
) -> tuple[list[Axes], int]:
    """Return axes in a new figure as large as its labels need, and how many stand in a row.

    Each panel is at least so wide and high, in inches, as its title and its axes' names need.
    """
    if columns < 1:
        raise ValueError(f"columns must be at least 1. Got {columns}.")
    lines = -(-count // columns)
    columns = -(-count // lines)  # 6 in rows of at most 4 are 3 and 3
    sides = (_inches(across, count), _inches(rows, count))
    width, height = map(max, sides, least)
    names = max(map(len, rows.tokens), default=0) * 0.07 if rows.tokens else 0.3
    under = max(map(len, across.tokens), default=0) * 0.07 if across.tokens else 0.25
    size = (columns * width + names + 1.0, lines * (height + 0.25) + under + 0.35)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in axes[count:]:
        ax.remove()
    for ax in axes[max(count - columns, 0) : count]:
        ax.tick_params(labelbottom=True)
    return list(axes[:count]), columns


def _inches(side: _Labels, panels: int) -> float:
    """Return the length of one side of a panel: about square, room for every token's name."""
    usual = 3.2 if panels == 1 else 2.3
    return usual if side.tokens is None else float(np.clip(0.24 * len(side), 1.4, 7.2))


def _name_side(axis: mpl.axis.Axis, side: _Labels, name: str) -> None:
    """Name an axis of a heat map and its cells."""
    axis.set_label_text(name)
    axis.set_tick_params(which="both", length=2.5, width=0.6)
    if side.tokens is None:
        axis.set_major_locator(MaxNLocator(6, integer=not side.coordinates, min_n_ticks=1))
        return
    name_cells(axis, side.positions, side.tokens)


def name_cells(axis: mpl.axis.Axis, positions: ArrayLike, tokens: Sequence[str]) -> None:
    """Write tokens beside the cells at these positions, as small and as steep as they need."""
    every = -(-len(tokens) // 60)  # beyond 60 tokens only every second, third … has its name
    axis.set_ticks(np.asarray(positions)[::every])
    axis.set_ticklabels(
        tokens[::every],
        fontfamily=list(fonts()),
        fontsize=8.5 if len(tokens) <= 30 else 7,
        parse_math=False,
        **(
            {"rotation": 55, "ha": "right", "va": "top", "rotation_mode": "anchor"}
            if isinstance(axis, XAxis) and max(map(len, tokens)) > 2
            else {}
        ),
    )
    axis.set_tick_params(length=0, pad=3)


def _colors() -> mpl.colors.Colormap:
    return mpl.colormaps[COLORS].with_extremes(bad="#dddddd")
