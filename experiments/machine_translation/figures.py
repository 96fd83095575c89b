"""Pictures of a translator: alignments, BLEU against the source's length."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.plots.explore import Page
from experiments.harness.glyphs import say_missing
from experiments.seq2seq.figures import heat_map, page
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation

HEAT_MAPS, TOKENS = 4, (6, 16)  # how many, and of how many source tokens


def draw(
    loaded: Saved,
    sources: Sequence[str],
    translations: Sequence[Translation],
    lengths: Sequence[Mapping[str, Any]],
    names: tuple[str, str],
) -> Iterator[tuple[str, Figure | Page]]:
    """Yield (name, figure)."""
    fitting = [
        i
        for i, each in enumerate(translations)
        if each.weights is not None and TOKENS[0] <= each.weights.shape[1] <= TOKENS[1]
    ]
    chosen = fitting[:: max(len(fitting) // HEAT_MAPS, 1)][:HEAT_MAPS]
    say_missing(text for i in chosen for text in (sources[i], translations[i].text))
    for number, i in enumerate(chosen, 1):
        figure = heat_map(sources[i], translations[i], loaded.vocabularies, names)
        if figure is not None:
            yield f"alignment_{number}", figure
    if chosen:
        explored = page(sources[chosen[0]], translations[chosen[0]], loaded.vocabularies)
        yield "attention", explored
    if len(lengths) > 1:
        yield "bleu_by_length", bleu_by_length(lengths)


def bleu_by_length(lengths: Sequence[Mapping[str, Any]]) -> Figure:
    """Return BLEU against the source's length, a line for each system."""
    unit, _, *systems = lengths[0]
    return plots.learning_curve(
        [row[unit] for row in lengths],
        {name: [row[name] for row in lengths] for name in systems},
        step_axis=f"source length, {unit}",
        loss_axis="BLEU",
    )
