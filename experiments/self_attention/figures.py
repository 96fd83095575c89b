"""Pictures of self-attention: the six steps, heads, two sentences, recall, gradients, seconds."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attn_jax import plots
from attn_jax.plots.heatmaps import COLORS, name_cells, token_label
from attn_jax.plots.style import FAINT, PALETTE, styled
from experiments.harness.glyphs import label, say_missing
from experiments.self_attention.recall import KEPT, by_length
from experiments.self_attention.steps import STEPS, Steps

MOST_NUMBERS = 6  # words whose scores are written into their cells
WHOLE = slice(None)
# Each step's row, its column of three or all of them, and its title there.
PLACES = {
    "embeddings": (0, WHOLE, STEPS["embeddings"][0]),
    "query": (1, 0, "2. query"),
    "key": (1, 1, "2. key"),
    "value": (1, 2, "2. value"),
    "scores": (2, 0, "3. query · key"),
    "scaled": (2, 1, "4. divided by 8"),
    "weights": (2, 2, "5. softmax"),
    "output": (3, WHOLE, STEPS["output"][0]),
}


def of_steps(
    words: Sequence[str], others: Sequence[str], taken: Steps, heads: np.ndarray, crossed: Steps
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure)."""
    say_missing([*words, *others])
    words, others = ([token_label(label(each)) for each in side] for side in (words, others))
    yield "six_steps", six_steps(words, taken)
    titles = [f"head {number + 1}" for number in range(len(heads))]
    names = {"query_labels": words, "key_labels": words}
    yield "heads", plots.attention_heatmaps(heads, titles=titles, **names)
    yield "self_and_cross", self_and_cross(words, others, taken, crossed)


def six_steps(words: Sequence[str], taken: Steps) -> Figure:
    """Draw what each step gives, a row of cells for each word."""
    square, strip = (max(inches(len(words), most=0.21), least) for least in (1.6, 0.4))
    names = 0.075 * max(map(len, words))
    heights = [strip, strip, square, strip]
    size = (3 * (square + 0.75) + names, sum(heights) + 0.8 * names + 2.2)
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(4, 3, height_ratios=heights)
        for name, (row, columns, title) in PLACES.items():
            ax = figure.add_subplot(grid[row, columns])
            array = getattr(taken, name)
            cells(ax, array, words, signed=name != "weights", square=row == 2)
            ax.set_title(title)
            if columns not in (0, WHOLE):
                ax.set_yticklabels([])
    return figure


def inches(cells: int, *, most: float) -> float:
    """Return the length of a side of cells: so many inches for each of a few, less for more.

    >>> inches(1, most=0.4), round(inches(32, most=0.4), 2)
    (0.4, 7.4)
    """
    few = min(cells, 12)
    return most * few + 0.13 * (cells - few)


def cells(ax: Axes, array: np.ndarray, words: Sequence[str], *, signed: bool, square: bool) -> None:
    """Draw an array, red above 0 and blue below; a square of few words has its numbers written."""
    largest = float(np.abs(array).max()) or 1.0
    low, high, colors = (-largest, largest, "RdBu_r") if signed else (0, 1, COLORS)
    image = ax.pcolormesh(array, rasterized=True, cmap=colors, vmin=low, vmax=high)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    middles = np.arange(len(words)) + 0.5
    name_cells(ax.yaxis, middles, words)
    long = 20 if square else max(3 * len(words), 6)  # a bar's length in its widths
    bar = ax.get_figure().colorbar(image, ax=ax, aspect=long, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(4 if len(words) > 3 else 2)
    bar.ax.tick_params(length=2.5, labelsize=8)
    bar.update_ticks()
    if not square:
        return
    name_cells(ax.xaxis, middles, words)
    if len(words) > MOST_NUMBERS:
        return
    for (i, j), number in np.ndenumerate(array):
        ink = "white" if abs(number) > 0.5 * high else "black"
        ax.text(j + 0.5, i + 0.5, f"{number:.2f}", ha="center", va="center", color=ink)


def self_and_cross(
    words: Sequence[str], others: Sequence[str], taken: Steps, crossed: Steps
) -> Figure:
    """Draw the weights of one sentence over itself, and over another one."""
    drawn = {"self-attention": (words, taken), "cross-attention": (others, crossed)}
    sizes = [inches(max(len(keys), 3), most=0.4) for keys, _ in drawn.values()]
    size = (4.4 + sum(sizes), 2.0 + inches(max(len(words), 3), most=0.35))
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, 2, width_ratios=sizes)
        for ax, (title, (keys, each)) in zip(axes, drawn.items(), strict=True):
            labels = {"query_labels": words, "key_labels": keys}
            plots.attention_heatmap(each.weights, title=title, ax=ax, **labels)
    return figure


def recall(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the share of right answers against the distance."""
    lengths, lines = curves(rows, "accuracy", times=100)
    axes = {"step_axis": "distance to recall over, tokens", "loss_axis": "right, %"}
    figure = plots.learning_curve(lengths, lines, **axes)
    (ax,) = figure.axes
    along_lengths(ax, lengths)
    ax.axhline(100 / KEPT, color=FAINT, lw=1.0, ls=(0, (2, 2)), zorder=1)
    ax.annotate("guessed", (lengths[0], 100 / KEPT), xytext=(0, -11), textcoords="offset points")
    ax.set_ylim(-3, 103)
    return figure


def gradients(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the gradient's size from the end to the start, of the longest distance."""
    with styled():
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for ax, when in zip(axes, ("before", "after"), strict=True):
            longest = list(by_length(rows, f"gradient_{when}").values())[-1]
            for color, (name, numbers) in zip(PALETTE, longest.items(), strict=False):
                sizes = np.array(numbers, float)[::-1]
                ax.plot(np.where(sizes > 0, sizes, np.nan), color=color, label=name, lw=1.2)
            ax.set(yscale="log", xlabel="places before the end", title=f"{when} training")
            ax.grid(True)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("size of ∂ logits / ∂ input")
        axes[0].legend()
    return figure


def parallelism(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the seconds of a training step against the length."""
    axes = {"n_axis": "length, tokens", "error_axis": "seconds of a training step"}
    return plots.error_against_n(*curves(rows, "seconds"), **axes)


def curves(
    rows: Sequence[dict[str, Any]], name: str, *, times: float = 1
) -> tuple[list[int], dict[str, list[float]]]:
    """Return the lengths, and each model's numbers at them."""
    table = by_length(rows, name)
    models = dict.fromkeys(row["model"] for row in rows)
    return list(table), {
        model: [times * numbers[model] for numbers in table.values()] for model in models
    }


def along_lengths(ax: Axes, lengths: Sequence[int]) -> None:
    """Give a picture a logarithmic axis of lengths, named where there is room for their names."""
    ax.set_xscale("log")
    least = (lengths[-1] / lengths[0]) ** 0.08  # between two that are named
    named = [lengths[0]]
    for each in lengths:
        if each > named[-1] * least:
            named.append(each)
    ax.set_xticks(named, [str(each) for each in named])
    ax.minorticks_off()
