"""Pictures of captions: where each word looks, and its weights against boxes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attn_jax import plots, text
from attn_jax.plots.explore import Page
from attn_jax.plots.style import FAINT, PALETTE, styled
from experiments.data import captions
from experiments.data.captions import Captioned
from experiments.harness.glyphs import label
from experiments.seq2seq.translator import Translation

COLUMNS = 6  # pictures in a row
MOST = 24  # words that are drawn
DARK = 0.65  # of the picture where no weight is


def words(example: Captioned, written: Translation, target: text.Vocabulary) -> Figure | None:
    """Draw a picture with its boxes, and once per word with the weights over it.

    The box of what a word names is outlined.
    """
    if written.weights is None or not written.ids:
        return None
    tokens = [label(target.token(each)) for each in written.ids[:MOST]]
    named = _named(example, written, target)
    count = 1 + len(tokens)
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    with styled():
        figure = Figure(figsize=(1.55 * columns, 1.8 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax in axes:
            ax.set_axis_off()
        axes[0].imshow(example.image)
        axes[0].set_title("picture")
        for _, box in example.objects:
            _outline(axes[0], box)
        for ax, token, weights, boxes in zip(
            axes[1:], tokens, written.weights, named, strict=False
        ):
            overlay(ax, example.image, weights)
            ax.set_title(token, parse_math=False)
            for box in boxes:
                _outline(ax, box)
    return figure


def page(example: Captioned, written: Translation, target: text.Vocabulary) -> Page | None:
    """Return a page on which each word's weights lie over the picture."""
    if written.weights is None or not written.ids:
        return None
    tokens = [*map(target.token, written.ids), "<end>"][: len(written.weights)]
    cells = [f"{number + 1}" for number in range(written.weights.shape[1])]
    return plots.explore(written.weights, tokens, cells, title=written.text, image=example.image)


def overlay(ax: Any, image: np.ndarray, weights: np.ndarray) -> None:
    """Draw a picture, dark where the weights [cells] of a square grid are small."""
    side, size = round(len(weights) ** 0.5), len(image)
    ax.imshow(image)
    shade = np.zeros((side, side, 4))
    shade[..., 3] = DARK * (1 - weights / max(weights.max(), 1e-9)).reshape(side, side)
    ax.imshow(shade, extent=(-0.5, size - 0.5, size - 0.5, -0.5), interpolation="nearest")


def boxes(example: Captioned, written: Translation, target: text.Vocabulary) -> Figure | None:
    """Draw how much of each word's weight is in each box, and outside all of them."""
    if written.weights is None or not (written.ids and example.objects):
        return None
    weights = written.weights[: min(len(written.ids), MOST)]
    side, size = round(weights.shape[1] ** 0.5), len(example.image)
    inside = np.array([captions.cells(box, side, size) for _, box in example.objects])
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    shares = np.concatenate([weights @ inside.T, weights @ ~inside.any(axis=0)[:, None]], 1) / total
    return plots.attention_heatmap(
        shares,
        query_labels=[label(target.token(each)) for each in written.ids[:MOST]],
        key_labels=[*(label(name) for name, _ in example.objects), "elsewhere"],
        query_axis="caption",
        key_axis="box",
    )


def of_comparison(
    table: Sequence[Mapping[str, Any]], example: Captioned, looks: Mapping[str, Any]
) -> Figure:
    """Draw how often each normalizer's largest weight is in the box, and one word's weights.

    `looks` is normalizer → (word, its weights, its box).
    """
    with styled():
        figure = Figure(figsize=(1.7 * len(table) + 0.6, 4.2), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=(1.2, 1))
        ax = above.subplots()
        places = np.arange(len(table))
        for shift, (key, name) in enumerate(
            {
                "pointing_accuracy": "largest weight in the box",
                "pointing_mass": "weight in it",
            }.items()
        ):
            shares = [100 * row[key] for row in table]
            bars = ax.bar(places + 0.38 * (shift - 0.5), shares, 0.36, color=PALETTE[shift])
            bars.set_label(name)
            ax.bar_label(bars, fmt="%.0f", fontsize=8)
        chance = 100 * np.mean([row["chance"] for row in table])
        ax.axhline(chance, color=FAINT, linestyle=":", label="chance")
        ax.set(xticks=places, xticklabels=[row["normalizer"] for row in table], ylabel="%")
        ax.set_ylim(0, 112)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
        for each, (token, weights, box) in zip(
            below.subplots(1, len(table), squeeze=False).ravel(), looks.values(), strict=True
        ):
            each.set_axis_off()
            overlay(each, example.image, weights)
            _outline(each, box)
            each.set_title(token, parse_math=False)
    return figure


def _named(
    example: Captioned, written: Translation, target: text.Vocabulary
) -> list[list[captions.Box]]:
    """The boxes that each token names."""
    named = example.named(written.text)
    return [
        [box for of_name, box in named if word in of_name] for word in target.words_of(written.ids)
    ]


def _outline(ax: Any, box: captions.Box) -> None:
    left, top, right, bottom = box
    corner, size = (left - 0.5, top - 0.5), (right - left, bottom - top)
    ax.add_patch(Rectangle(corner, *size, fill=False, edgecolor=PALETTE[1], linewidth=1.2))
