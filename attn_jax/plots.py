"""Pictures of attention: heat maps of weights, fitted curves, learning curves, error against n.

Each function returns a matplotlib `Figure` and draws with objects alone: no pyplot, no window, no
lasting change to matplotlib's settings. Pass `ax` to draw into a figure of your own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike

INK = "#333333"
FAINT = "#b8b8b8"
# Okabe & Ito (2008), without the yellow, which white paper swallows
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
COLORS = "viridis_r"  # perceptually uniform; nothing is pale, much is dark
FALLBACK_FONTS = (
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "Source Han Sans",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
)
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
}
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
    weights: Sequence[ArrayLike],
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
        weights: Matrices [q, k] of one shape.
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
    with _styled():
        if axes is None:
            axes = _panels(len(matrices), columns, rows, across)
        for number, (ax, each) in enumerate(zip(axes, matrices, strict=True)):
            cells, x_edges, y_edges = _cells(each, rows, across)
            image = ax.pcolormesh(
                x_edges, y_edges, cells, cmap=_colors(), norm=scale, rasterized=True
            )
            if titles is not None:
                ax.set_title(titles[number])
            first, lowest = _on_edge(number, len(matrices), columns)
            _name_side(ax.yaxis, rows, query_axis if first else None)
            _name_side(ax.xaxis, across, key_axis if lowest else None)
            ax.set_xlim(x_edges[0], x_edges[-1])
            upwards = rows.coordinates
            ax.set_ylim(y_edges[0 if upwards else -1], y_edges[-1 if upwards else 0])
        figure = axes[0].get_figure(root=True)
        bar = figure.colorbar(image, ax=list(axes), label="weight", shrink=0.9, aspect=25, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2.5, labelsize=8)
        bar.locator = MaxNLocator(5)
        bar.update_ticks()
    return figure


def curve_fit(
    x: ArrayLike,
    y: ArrayLike,
    *,
    grid: ArrayLike,
    fits: Mapping[str, ArrayLike],
    truth: ArrayLike | None = None,
    band: tuple[ArrayLike, ArrayLike] | None = None,
    band_label: str = "95 % band",
    x_axis: str = "x",
    y_axis: str = "y",
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw data, the truth where it is known, and fits over a grid.

    Args:
        x: Inputs of the data [n].
        y: Outputs of the data [n].
        grid: Inputs of the curves [g], in any order.
        fits: Label → values on the grid [g]; NaN leaves a gap.
        truth: Values on the grid [g].
        band: (lower [g], upper [g]).
        band_label: What the band is.
        x_axis: Name of the horizontal axis.
        y_axis: Name of the vertical axis.
        title: Above the picture.
        ax: Where to draw; None makes a figure.
    """
    x, y, grid = _vector(x, "x"), _vector(y, "y"), _vector(grid, "grid")
    _same_length("y", y, "x", x)
    order = np.argsort(grid, kind="stable")

    def on_grid(values: ArrayLike, name: str) -> np.ndarray:
        values = _vector(values, name)
        _same_length(name, values, "grid", grid)
        return values[order]

    with _styled():
        ax = _axes(ax)
        few = min(1.0, (200 / max(len(x), 1)) ** 0.5)  # many points are drawn smaller and fainter
        ax.plot(
            x,
            y,
            "o",
            ms=2 + 2 * few,
            color="#777777",
            mew=0,
            alpha=0.25 + 0.35 * few,
            label="data",
            zorder=1.5,
            rasterized=len(x) > 5_000,
        )
        if band is not None:
            lower, upper = (on_grid(each, "band") for each in band)
            ax.fill_between(
                grid[order], lower, upper, color=PALETTE[0], alpha=0.18, lw=0, label=band_label
            )
        if truth is not None:
            values = on_grid(truth, "truth")
            ax.plot(grid[order], values, color=INK, lw=1.1, ls=(0, (4, 2)), label="truth", zorder=3)
        for number, (label, values) in enumerate(fits.items()):
            values = on_grid(values, f"fits[{label!r}]")
            ax.plot(grid[order], values, label=label, zorder=2.5, **_look(number))
        _dress(ax, x_axis, y_axis, title)
        _legend_above(ax)
    return ax.get_figure(root=True)


def learning_curve(
    step: ArrayLike,
    losses: Mapping[str, ArrayLike],
    *,
    beside: Mapping[str, ArrayLike] | None = None,
    beside_axis: str = "",
    step_axis: str = "step",
    loss_axis: str = "loss",
    log: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw losses against the step, and below them what was learned meanwhile (a bandwidth).

    Args:
        step: [s].
        losses: Label → loss [s]; NaN leaves a gap.
        beside: Label → a second quantity [s], in its own panel under the losses.
        beside_axis: Name of that panel's vertical axis; "" takes its only label.
        step_axis: Name of the horizontal axis.
        loss_axis: Name of the losses' vertical axis.
        log: Draw the losses on a logarithmic axis.
        title: Above the picture.
    """
    step = _vector(step, "step")
    with _styled():
        panels = 1 if beside is None else 2
        figure = Figure(figsize=(4.8, 3.0 if beside is None else 4.0), layout="constrained")
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[2, 1][:panels])
        top, lowest = axes[0, 0], axes[-1, 0]
        _lines(top, step, losses, "losses", first_look=0)
        if log:
            top.set_yscale("log")
        _dress(top, None, loss_axis, title)
        if len(losses) > 1:
            _legend_above(top)
        if beside is not None:
            _lines(lowest, step, beside, "beside", first_look=len(losses))
            _dress(lowest, None, beside_axis or "/".join(beside), None)
            if len(beside) > 1:
                lowest.legend(loc="best")
        lowest.set_xlabel(step_axis)
        figure.align_ylabels()
    return figure


def error_against_n(
    n: ArrayLike,
    errors: Mapping[str, ArrayLike],
    *,
    exponent: float | None = None,
    n_axis: str = "number of keys n",
    error_axis: str = "mean squared error",
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw error against the amount of data, both logarithmic, each line named at its end.

    Args:
        n: Amounts of data [s], positive.
        errors: Label → error [s], or repeats [r, s]: then the median and a band of quartiles.
        exponent: Draw a thin line of slope n^exponent through the first method's first point.
        n_axis: Name of the horizontal axis.
        error_axis: Name of the vertical axis.
        title: Above the picture.
        ax: Where to draw; None makes a figure.
    """
    n = _vector(n, "n")
    if not n.size or not np.all(n > 0):
        raise ValueError(f"n must be positive, at least one. Got {n.tolist()}.")
    order = np.argsort(n, kind="stable")
    n = n[order]
    with _styled():
        ax = _axes(ax)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ends = []
        for number, (label, each) in enumerate(errors.items()):
            each = np.atleast_2d(np.asarray(each, np.float64))
            if each.ndim != 2 or each.shape[1] != len(n):
                raise ValueError(
                    f"errors[{label!r}] must be [{len(n)}] or [repeats, {len(n)}], as n is. "
                    f"Got {np.shape(errors[label])}."
                )
            middle = np.median(each, axis=0)[order]
            look = _look(number)
            ax.plot(n, middle, marker="o", ms=3.5, mew=0, label=label, **look)
            if len(each) > 1:
                lower, upper = np.quantile(each, [0.25, 0.75], axis=0)[:, order]
                ax.fill_between(n, lower, upper, color=look["color"], alpha=0.15, lw=0)
            ends.append((label, middle[-1], look["color"]))
            if number == 0 and exponent is not None:
                line = middle[0] * (n / n[0]) ** exponent
                ax.plot(n, line, color=FAINT, lw=1.0, ls=(0, (4, 2)), zorder=1)
                ends.append((f"∝ n^{exponent:g}", line[-1], "#888888"))
        _dress(ax, n_axis, error_axis, title)
        if len(n) <= 8:
            ax.xaxis.set_major_locator(FixedLocator(n))
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.xaxis.set_minor_locator(FixedLocator([]))
        _label_ends(ax, ends)
    return ax.get_figure(root=True)


def save(figure: Figure, path: str | PathLike[str], *, dpi: int = 150) -> None:
    """Write the figure to a file; the same figure gives the same bytes."""
    with _styled():
        figure.savefig(path, dpi=dpi)


@contextmanager
def _styled() -> Iterator[None]:
    """Use `STYLE`, with the fonts that this machine has, until the end of the block."""
    with mpl.rc_context(STYLE | {"font.family": list(_fonts())}):
        yield


def _fonts() -> tuple[str, ...]:
    """Return the font families in the order in which a missing letter is looked for."""
    here = set(font_manager.fontManager.get_font_names())
    return ("DejaVu Sans", *(each for each in FALLBACK_FONTS if each in here))


def _matrix(weights: ArrayLike) -> np.ndarray:
    """Return weights [q, k] in float64, refused where they are no matrix or empty."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(
            "weights must be one matrix [q, k] with a row and a column at least (one head at a "
            f"time: attention_heatmaps takes many). Got {weights.shape}."
        )
    return weights


def _vector(values: ArrayLike, name: str) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional. Got {values.shape}.")
    return values


def _same_length(name: str, values: np.ndarray, other_name: str, other: np.ndarray) -> None:
    if len(values) != len(other):
        raise ValueError(
            f"{name} and {other_name} must be equally long. Got {len(values)} and {len(other)}."
        )


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
            if values.dtype.kind in "biuf":
                positions = values.astype(np.float64)
                if not np.isfinite(positions).all():
                    raise ValueError(f"{name} must be finite numbers or strings. Got {given!r}.")
                self.order = np.argsort(positions, kind="stable")
                self.coordinates = True
            else:
                self.tokens = [_visible(str(each)) for each in values]
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


def _visible(token: str) -> str:
    """Return a token as a label: blanks shown, long ones cut."""
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


def _panels(count: int, columns: int, rows: _Labels, across: _Labels) -> list[Axes]:
    """Return axes for the matrices in a new figure that is as large as its labels need."""
    if columns < 1:
        raise ValueError(f"columns must be at least 1. Got {columns}.")
    columns = min(columns, count)
    lines = -(-count // columns)
    width, height = _inches(across, count), _inches(rows, count)
    names = max(map(len, rows.tokens), default=0) * 0.07 if rows.tokens else 0.3
    under = max(map(len, across.tokens), default=0) * 0.07 if across.tokens else 0.25
    size = (columns * width + names + 1.0, lines * (height + 0.25) + under + 0.35)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in axes[count:]:
        ax.remove()
    return list(axes[:count])


def _inches(side: _Labels, panels: int) -> float:
    """Return the length of one side of a panel: about square, room for every token's name."""
    usual = 3.2 if panels == 1 else 2.3
    return usual if side.tokens is None else float(np.clip(0.24 * len(side), 1.4, 6.5))


def _on_edge(number: int, count: int, columns: int) -> tuple[bool, bool]:
    """Say whether a panel stands in the first column, and whether none stands below it."""
    columns = min(columns, count)
    return number % columns == 0, number + columns >= count


def _name_side(axis: mpl.axis.Axis, side: _Labels, name: str | None) -> None:
    """Name an axis of a heat map and its cells."""
    if name is not None:
        axis.set_label_text(name)
    across = axis.axis_name == "x"
    axis.set_tick_params(which="both", length=2.5, width=0.6)
    if side.tokens is None:
        axis.set_major_locator(MaxNLocator(6, integer=not side.coordinates, min_n_ticks=1))
        return
    every = -(-len(side) // 60)  # beyond 60 tokens only every second, third … has its name
    axis.set_ticks(side.positions[::every])
    axis.set_ticklabels(
        side.tokens[::every],
        fontfamily=list(_fonts()),
        fontsize=8.5 if len(side) <= 30 else 7,
        parse_math=False,
        **(
            {"rotation": 55, "ha": "right", "va": "top", "rotation_mode": "anchor"}
            if across and max(map(len, side.tokens)) > 2
            else {}
        ),
    )
    axis.set_tick_params(length=0, pad=3)


def _colors() -> mpl.colors.Colormap:
    return mpl.colormaps[COLORS].with_extremes(bad="#dddddd")


def _axes(ax: Axes | None) -> Axes:
    """Return the axes to draw in."""
    return ax or Figure(figsize=(4.8, 3.2), layout="constrained").subplots()


def _look(number: int) -> dict:
    """Return colour and dash of the line of that number: told apart without colour too."""
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": DASHES[number % len(DASHES)],
    }


def _lines(
    ax: Axes, x: np.ndarray, lines: Mapping[str, ArrayLike], argument: str, first_look: int
) -> None:
    """Draw lines [s] over x [s]."""
    for number, (label, values) in enumerate(lines.items(), first_look):
        values = _vector(values, f"{argument}[{label!r}]")
        _same_length(f"{argument}[{label!r}]", values, "step", x)
        ax.plot(x, values, label=label, marker="o" if len(x) == 1 else None, **_look(number))


def _dress(ax: Axes, x_axis: str | None, y_axis: str | None, title: str | None) -> None:
    """Name the axes; two spines and a light grid."""
    ax.set(xlabel=x_axis or "", ylabel=y_axis or "")
    if title is not None:
        ax.set_title(title)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", length=2.5, width=0.6)
    ax.grid(True, which="major")


def _legend_above(ax: Axes) -> None:
    """Put the legend over the axes, where it hides no data, in rows of three."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=3,
        borderaxespad=0.2,
        handlelength=1.9,
        columnspacing=1.3,
        labelspacing=0.3,
    )
    if ax.get_title():
        ax.set_title(ax.get_title(), pad=8 + 15 * -(-len(ax.get_legend_handles_labels()[1]) // 3))


def _label_ends(ax: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write each line's (label, last value, colour) right of its end, moved apart."""
    ends = [end for end in ends if np.isfinite(end[1]) and end[1] > 0]
    if not ends:
        return
    low, high = np.log10(ax.get_ylim())
    wanted = [(np.log10(value) - low) / (high - low) for _, value, _ in ends]
    for (label, _, color), height in zip(ends, _apart(wanted, gap=0.07), strict=True):
        ax.text(1.02, height, label, color=color, transform=ax.transAxes, va="center", ha="left")


def _apart(heights: Sequence[float], gap: float) -> np.ndarray:
    """Return heights near the wanted ones, `gap` apart at least, in the same order.

    >>> _apart([0.5, 0.5], 0.1).tolist()
    [0.45, 0.55]
    """
    order = np.argsort(heights, kind="stable")
    steps = gap * np.arange(len(heights))
    # least squares under "each a gap above the one below" is isotonic regression of wanted - steps
    blocks: list[list[float]] = []
    for wanted in np.asarray(heights)[order] - steps:
        blocks.append([wanted])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    result = np.empty(len(heights))
    result[order] = np.concatenate([np.full(len(b), np.mean(b)) for b in blocks]) + steps
    return result
