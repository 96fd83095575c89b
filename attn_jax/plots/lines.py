"""Fitted curves, learning curves, error against the amount of data."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter
from numpy.typing import ArrayLike

from attn_jax.plots.style import FAINT, INK, PALETTE, styled

DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))


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

    with styled():
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
            ax.plot(grid[order], values, label=label, zorder=2.5, **_style(number))
        _dress(ax, x_axis, y_axis, title)
        _legend_above(ax)
    return ax.get_figure(root=True)


Curve = ArrayLike | tuple[ArrayLike, ArrayLike]  # values, or steps and values


def learning_curve(
    step: ArrayLike,
    losses: Mapping[str, Curve],
    *,
    beside: Mapping[str, Curve] | None = None,
    beside_axis: str = "",
    step_axis: str = "step",
    loss_axis: str = "loss",
    log: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw losses against the step, and below them what was learned meanwhile (a bandwidth).

    Args:
        step: [s].
        losses: Label → loss [s]; NaN leaves a gap. One that is known less often comes as a pair
            (its own steps, loss).
        beside: Label → a second quantity [s], in its own panel under the losses. Where its labels
            are the losses', each line looks like its loss's.
        beside_axis: Name of that panel's vertical axis; "" takes its only label.
        step_axis: Name of the horizontal axis.
        loss_axis: Name of the losses' vertical axis.
        log: Draw the losses on a logarithmic axis.
        title: Above the picture.
    """
    step = _vector(step, "step")
    with styled():
        panels = 1 if beside is None else 2
        figure = Figure(figsize=(4.8, 3.0 if beside is None else 4.0), layout="constrained")
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[2, 1][:panels])
        top, lowest = axes[0, 0], axes[-1, 0]
        _lines(top, step, losses, "losses")
        if log:
            top.set_yscale("log")
        _dress(top, None, loss_axis, title)
        if len(losses) > 1:
            _legend_above(top)
        if beside is not None:
            same = list(beside) == list(losses)
            _lines(lowest, step, beside, "beside", first_color=0 if same else len(losses))
            _dress(lowest, None, beside_axis or "/".join(beside), None)
            if len(beside) > 1 and not same:
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
    with styled():
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
            style = _style(number)
            ax.plot(n, middle, marker="o", ms=3.5, mew=0, label=label, **style)
            if len(each) > 1:
                lower, upper = np.quantile(each, [0.25, 0.75], axis=0)[:, order]
                ax.fill_between(n, lower, upper, color=style["color"], alpha=0.15, lw=0)
            ends.append((label, middle[-1], style["color"]))
            if number == 0 and exponent is not None:
                line = middle[0] * (n / n[0]) ** exponent
                ax.plot(n, line, color=FAINT, lw=1.0, ls=(0, (4, 2)), zorder=1)
                ends.append((f"$\\propto n^{{{exponent:g}}}$", line[-1], "#777777"))
        _dress(ax, n_axis, error_axis, title)
        if len(n) <= 8:
            ax.xaxis.set_major_locator(FixedLocator(n))
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.xaxis.set_minor_locator(FixedLocator([]))
        _label_ends(ax, ends)
    return ax.get_figure(root=True)


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


def _axes(ax: Axes | None) -> Axes:
    """Return the axes to draw in."""
    return ax or Figure(figsize=(4.8, 3.2), layout="constrained").subplots()


def _style(number: int, first_color: int = 0) -> dict:
    """Return colour and dash of the line of that number: told apart without colour too."""
    return {
        "color": PALETTE[(first_color + number) % len(PALETTE)],
        "linestyle": DASHES[number % len(DASHES)],
    }


def _lines(
    ax: Axes, x: np.ndarray, lines: Mapping[str, Curve], argument: str, first_color: int = 0
) -> None:
    """Draw lines [s] over x [s], or over their own x."""
    for number, (label, values) in enumerate(lines.items()):
        own, name = x, f"{argument}[{label!r}]"
        if isinstance(values, tuple) and len(values) == 2 and np.ndim(values[0]) == 1:
            own, values = _vector(values[0], f"the steps of {name}"), values[1]
        values = _vector(values, name)
        _same_length(name, values, "step", own)
        ax.plot(
            own,
            values,
            label=label,
            marker="o" if len(own) == 1 else None,
            **_style(number, first_color),
        )


def _dress(ax: Axes, x_axis: str | None, y_axis: str | None, title: str | None) -> None:
    """Name the axes; two spines and a light grid."""
    ax.set(xlabel=x_axis or "", ylabel=y_axis or "")
    if title is not None:
        ax.set_title(title)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", length=2.5, width=0.6)
    ax.grid(True, which="major")


def _legend_above(ax: Axes) -> None:
    """Put the legend over the axes, where it hides no data, in rows of three or two."""
    labels = ax.get_legend_handles_labels()[1]
    columns = 3 if max(map(len, labels)) <= 15 else 2
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handlelength=1.9,
        columnspacing=1.3,
        labelspacing=0.3,
    )
    if ax.get_title():
        ax.set_title(ax.get_title(), pad=8 + 15 * -(-len(labels) // columns))


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
