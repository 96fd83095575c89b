"""Pictures of sequence tasks: alignments, exact match against the length, the learning curve."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attn_jax import plots
from experiments.data.pairs import Pairs
from experiments.seq2seq.figures import heat_map, learning
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation

READABLE = 12  # integers of the sequence whose alignment is easy to read


def draw(
    loaded: Saved,
    test: Pairs,
    found: Sequence[Translation],
    lengths: Sequence[Mapping[str, Any]],
    longest: int,
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure); `longest` is the longest sequence in training."""
    length = np.array([len(line.split()) for line in test.source])
    chosen = {
        "alignment": np.argmin(np.abs(length - READABLE)),
        "alignment_longest": np.argmax(length),
    }
    for name, i in chosen.items():
        figure = heat_map(test.source[i], found[i], loaded.vocabularies)
        if figure is not None:
            yield name, figure
    yield "exact_match_by_length", exact_match_by_length(lengths, longest)
    yield "learning_curve", learning(loaded.directory, log=True)


def exact_match_by_length(lengths: Sequence[Mapping[str, Any]], longest: int) -> Figure:
    """Return exact match against the length, a line for each system; training's end is marked."""
    _, _, *systems = lengths[0]
    figure = plots.learning_curve(
        [row["length"] for row in lengths],
        {name: [100 * row[name] for row in lengths] for name in systems},
        step_axis="length",
        loss_axis="exact match, %",
    )
    (ax,) = figure.axes
    ax.axvline(longest + 0.5, color="#777777", lw=1.0, ls=(0, (2, 2)), zorder=1)
    ax.annotate(
        "longest in training",
        (longest + 0.5, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        rotation=90,
        color="#777777",
    )
    ax.set_ylim(-3, 103)
    return figure
