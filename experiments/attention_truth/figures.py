"""The task's score against where attention looks: one panel for each task."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from attn_jax.plots.style import FAINT, PALETTE, styled

MARKERS = ("o", "s", "^", "D", "v")
COLUMNS = 3  # of panels


def of_tasks(table: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> Figure:
    """Draw each model as a point, colour by normalizer and form by score, with its deviations.

    The dashed line across is the twin without attention, the dotted one down is chance.
    """
    attending = [row for row in table if "hit" in row]
    both = [row["model"].split(" × ") for row in attending]
    colour = dict(zip(dict.fromkeys(normalizer for _, normalizer in both), PALETTE, strict=False))
    marker = dict(zip(dict.fromkeys(score for score, _ in both), MARKERS, strict=False))
    columns = min(COLUMNS, len(units))
    rows = math.ceil(len(units) / columns)
    with styled():
        figure = Figure(figsize=(3.1 * columns + 1.4, 2.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, (task, unit) in zip(panels, units.items(), strict=False):
            for row, (score, normalizer) in zip(attending, both, strict=True):
                if row["task"] == task:
                    ax.errorbar(
                        100 * row["hit"],
                        row["score"],
                        xerr=100 * row["hit_deviation"],
                        yerr=row["score_deviation"],
                        fmt=marker[score],
                        color=colour[normalizer],
                        markersize=5,
                        elinewidth=0.8,
                    )
                    ax.axvline(100 * row["chance"], color=FAINT, linestyle=":", linewidth=1)
            for row in table:
                if row["task"] == task and "hit" not in row:
                    ax.axhline(row["score"], color=FAINT, linestyle="--", linewidth=1)
            ax.set(title=task, xlabel="largest weight in the region, %", ylabel=unit, xlim=(0, 103))
            ax.spines[["top", "right"]].set_visible(False)
        for ax in panels[len(units) :]:
            ax.set_visible(False)
        handles = [
            panels[0].plot([], [], "o", color=each, label=name)[0] for name, each in colour.items()
        ]
        handles += [
            panels[0].plot([], [], each, color="black", fillstyle="none", label=name)[0]
            for name, each in marker.items()
        ]
        handles.append(panels[0].plot([], [], "--", color=FAINT, label="no attention")[0])
        handles.append(panels[0].plot([], [], ":", color=FAINT, label="chance")[0])
        figure.legend(handles=handles, loc="outside right center")
    return figure
