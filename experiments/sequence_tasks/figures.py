"""Pictures of sequence tasks: alignments, exact match against the length, the learning curve."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax import plots
from experiments.data.integers import Lines, Task
from experiments.seq2seq.figures import heat_map, learning
from experiments.seq2seq.translator import Translation

READABLE = 12  # integers of the sequence whose alignment is easy to read


def draw(
    directory: Path,
    loaded: Any,
    test: Lines,
    found: Sequence[Translation],
    lengths: Sequence[Mapping[str, Any]],
    task: Task,
) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure)."""
    length = np.array([len(line.split()) for line in test.source])
    chosen = {
        "alignment": np.argmin(np.abs(length - READABLE)),
        "alignment_longest": np.argmax(length),
    }
    vocabularies = (loaded.source, loaded.target)
    for name, i in chosen.items():
        figure = heat_map(test.source[i], found[i], vocabularies, ("source", "target"))
        if figure is not None:
            yield name, figure
    yield "exact_match_by_length", exact_match_by_length(lengths, task.train.longest)
    yield "learning_curve", learning(directory, log=True)


def exact_match_by_length(lengths: Sequence[Mapping[str, Any]], longest: int) -> Any:
    """Return exact match against the length, a line for each system; training's end is marked."""
    systems = [name for name in lengths[0] if name not in ("length", "sequences")]
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
