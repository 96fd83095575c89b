"""Audio against characters: the weights over time, with the words' true boundaries."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.plots.explore import Page
from attn_jax.plots.style import PALETTE, styled
from experiments.data.speech import Utterance
from experiments.data.speech_features import RATE, SECONDS
from experiments.seq2seq.translator import Translation


def page(
    samples: np.ndarray,
    utterance: Utterance,
    best: Translation,
    memory_length: Callable[[int], int],
) -> Page:
    """Return a page on which each character's weights lie over the sound, which plays."""
    characters = [*best.text, "end"][: len(best.weights)]
    positions = memory_length(len(utterance.features))
    step = len(utterance.features) / positions * SECONDS
    times = [f"{place * step:.2f} s" for place in range(positions)]
    heard = samples[: round(positions * step * RATE)]
    weights = best.weights[:, :positions]
    return plots.explore(weights, characters, times, title=best.text, audio=(heard, RATE))


def alignment(
    utterance: Utterance, best: Translation, memory_length: Callable[[int], int]
) -> Figure:
    """Draw the sound above, below it each character's weights over time; words begin at lines."""
    seconds = len(utterance.features) * SECONDS
    characters = [*best.text, "end"][: len(best.weights)]
    with styled():
        height = 1.6 + 0.13 * len(characters)
        figure = Figure(figsize=(7.2, height), layout="constrained")
        above, below = figure.subplots(
            2, 1, sharex=True, height_ratios=(1, max(height - 1.6, 1.5)), squeeze=True
        )
        features = utterance.features.T.astype(float)
        extent = (0, seconds, 0, features.shape[0])
        above.imshow(features, origin="lower", aspect="auto", extent=extent, cmap="Greys")
        above.set(ylabel="mel", yticks=[])
        above.set_title(utterance.text or best.text)
        positions = memory_length(len(utterance.features))
        frames = len(utterance.features) / positions
        extent = (0, positions * frames * SECONDS, len(characters) - 0.5, -0.5)
        image = below.imshow(
            best.weights,
            aspect="auto",
            extent=extent,
            cmap="Blues",
            vmin=0,
            interpolation="nearest",
        )
        below.set_yticks(range(len(characters)), characters, fontsize=7)
        below.set(xlabel="seconds", ylabel="written", xlim=(0, seconds))
        for start, _ in utterance.words:
            for ax in (above, below):
                ax.axvline(start, color=PALETTE[1], linewidth=0.8)
        figure.colorbar(image, ax=below, label="weight", fraction=0.04)
    return figure
