"""Pictures of self-attention: the six steps, heads, two sentences, recall, gradients, seconds."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.plots.heatmaps import COLORS
from attn_jax.plots.style import FAINT, PALETTE, fonts, styled
from experiments.letters import label, say_missing
from experiments.self_attention_recall import KEPT
from experiments.self_attention_steps import TITLES, Steps

SIGNED = "RdBu_r"
MOST_NUMBERS = 6  # words whose scores are written into their cells
# Where each step stands: its row, and its columns of twelve.
PLACES = {
    "embeddings": (0, slice(0, 12)),
    "query": (1, slice(0, 4)),
    "key": (1, slice(4, 8)),
    "value": (1, slice(8, 12)),
    "scores": (2, slice(0, 4)),
    "scaled": (2, slice(4, 8)),
    "weights": (2, slice(8, 12)),
    "output": (3, slice(0, 12)),
}
TITLES_DRAWN = {
    "query": "2. query",
    "key": "2. key",
    "value": "2. value",
    "scores": "3. query · key",
    "scaled": "4. divided by 8",
    "weights": "5. softmax",
}


def of_steps(
    words: Sequence[str], others: Sequence[str], taken: Steps, heads: np.ndarray, crossed: Steps
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure)."""
    say_missing([*words, *others])
    words, others = ([label(each) for each in side] for side in (words, others))
    yield "six_steps", six_steps(words, taken)
    yield (
        "heads",
        plots.attention_heatmaps(
            list(heads),
            titles=[f"head {number + 1}" for number in range(len(heads))],
            query_labels=words,
            key_labels=words,
            query_axis="asks",
            key_axis="answers",
        ),
    )
    yield "self_and_cross", self_and_cross(words, others, taken, crossed)


def six_steps(words: Sequence[str], taken: Steps) -> Figure:
    """Draw what each step gives, a row of cells for each word."""
    strip, square = 0.45 + 0.2 * len(words), 0.9 + 0.3 * max(len(words), 3)
    heights = [strip, strip, square, strip]
    with styled():
        figure = Figure(figsize=(9, sum(heights) + 0.8), layout="constrained")
        grid = figure.add_gridspec(4, 12, height_ratios=heights)
        for name, (row, columns) in PLACES.items():
            ax = figure.add_subplot(grid[row, columns])
            cells(ax, getattr(taken, name), words, signed=name != "weights")
            ax.set_title(TITLES_DRAWN.get(name, TITLES[name]))
            if columns.start:
                ax.set_yticklabels([])
    return figure


def cells(ax: Axes, array: np.ndarray, words: Sequence[str], *, signed: bool) -> None:
    """Draw an array, red above 0 and blue below; a square of few words has its numbers written."""
    reach = float(np.abs(array).max()) or 1.0
    low, high, colors = (-reach, reach, SIGNED) if signed else (0, 1, COLORS)
    image = ax.pcolormesh(array, rasterized=True, cmap=colors, vmin=low, vmax=high)
    ax.invert_yaxis()
    how = {"parse_math": False, "fontfamily": list(fonts())}
    ax.set_yticks(np.arange(len(words)) + 0.5, words, **how)
    ax.tick_params(length=0)
    ax.get_figure().colorbar(image, ax=ax, aspect=12, pad=0.02).outline.set_visible(False)
    if array.shape[1] != len(words):
        return
    ax.set_xticks(np.arange(len(words)) + 0.5, words, rotation=30, ha="right", **how)
    if len(words) > MOST_NUMBERS:
        return
    for (i, j), number in np.ndenumerate(array):
        ink = "white" if abs(number) > 0.5 * high else "black"
        ax.text(j + 0.5, i + 0.5, f"{number:.2f}", ha="center", va="center", color=ink)


def self_and_cross(
    words: Sequence[str], others: Sequence[str], taken: Steps, crossed: Steps
) -> Figure:
    """Draw the weights of one sentence over itself, and over another one."""
    with styled():
        sizes = [max(len(each), 3) for each in (words, others)]
        size = (3.6 + 0.4 * sum(sizes), 1.6 + 0.35 * max(len(words), 3))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, 2, width_ratios=sizes)
        drawn = (("self-attention", words, taken), ("cross-attention", others, crossed))
        for ax, (title, answering, each) in zip(axes, drawn, strict=True):
            plots.attention_heatmap(
                each.weights,
                query_labels=words,
                key_labels=answering,
                query_axis="asks",
                key_axis="answers",
                title=title,
                ax=ax,
            )
    return figure


def recall(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the share of right answers against the distance."""
    lengths, lines = curves(rows, "accuracy")
    figure = plots.learning_curve(
        lengths,
        {name: [100 * each for each in line] for name, line in lines.items()},
        step_axis="distance to recall over, tokens",
        loss_axis="right, %",
    )
    (ax,) = figure.axes
    along_lengths(ax, lengths)
    ax.axhline(100 / KEPT, color=FAINT, lw=1.0, ls=(0, (2, 2)), zorder=1)
    ax.annotate("guessed", (lengths[0], 100 / KEPT), xytext=(0, -11), textcoords="offset points")
    ax.set_ylim(-3, 103)
    return figure


def gradients(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the gradient's size from the end to the start, of the longest distance."""
    longest = max(row["length"] for row in rows)
    with styled():
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, when in zip(axes, ("before", "after"), strict=True):
            of_model = {row["model"]: row for row in rows if row["length"] == longest}
            for color, (name, row) in zip(PALETTE, of_model.items(), strict=False):
                sizes = np.array(row[f"gradient_{when}"], float)[::-1]
                ax.plot(np.where(sizes > 0, sizes, np.nan), color=color, label=name, lw=1.2)
            ax.set(yscale="log", xlabel="places before the end", title=f"{when} training")
            ax.grid(True)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("size of ∂ logits / ∂ input")
        axes[0].legend()
    return figure


def parallelism(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the seconds of a training step against the length."""
    lengths, lines = curves(rows, "seconds")
    return plots.error_against_n(
        lengths, lines, n_axis="length, tokens", error_axis="seconds of a training step"
    )


def curves(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], dict[str, list[float]]]:
    """Return the lengths, and each model's numbers at them."""
    lengths = sorted({row["length"] for row in rows})
    at = {(row["model"], row["length"]): row[name] for row in rows}
    models = dict.fromkeys(row["model"] for row in rows)
    return lengths, {model: [at[model, length] for length in lengths] for model in models}


def along_lengths(ax: Axes, lengths: Sequence[int]) -> None:
    """Give a picture a logarithmic axis of lengths, each of them named."""
    ax.set_xscale("log")
    ax.set_xticks(lengths, [str(each) for each in lengths])
    ax.minorticks_off()
