"""Pictures of date translation: alignments, exact match in bars, training."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.plots.style import PALETTE, drawable, styled
from experiments.data import dates
from experiments.data.dates import Written
from experiments.harness.glyphs import SIGNS, readable, say_missing, visible
from experiments.seq2seq.figures import learning
from experiments.seq2seq.translator import Translation

ALIGNMENTS = 3


def draw(
    directory: Path,
    drawn: Sequence[tuple[Written, Translation]],
    worst: Mapping[str, float],
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure): some alignments, exact match by language, the learning curve."""
    say_missing(written.text for written, _ in drawn)
    for number, (written, translation) in enumerate(drawn, 1):
        if translation.weights is not None:
            yield f"alignment_{number}_{written.language}", alignment(written, translation)
    names = {code: f"{readable(dates.name_of(code))} ({code})" for code in worst}
    shares = {names[code]: 100 * share for code, share in worst.items()}
    yield "exact_match_by_language", bars(shares)
    curve = learning(directory, log=True, shares={"exact match, %": "dev_exact"})
    if curve is not None:
        yield "learning_curve", curve


def of_comparison(
    shares: Mapping[str, float], histories: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, Figure]]:
    """Yield exact match of each score and normalizer, and how each of them learned."""
    yield "scores", bars(shares)
    curves = {name: [row["loss"] for row in rows] for name, rows in histories.items()}
    steps = [row["step"] for row in next(iter(histories.values()))]
    axis = "training loss, nats"
    yield "scores_training", plots.learning_curve(steps, curves, loss_axis=axis, log=True)


def bars(values: Mapping[str, float]) -> Figure:
    """Draw one bar for each name, from 0 to 100, with its number."""
    with styled():
        figure = Figure(figsize=(5.2, 0.8 + 0.19 * len(values)), layout="constrained")
        ax = figure.subplots()
        places = range(len(values))
        ax.barh(places, list(values.values()), color=PALETTE[0], height=0.7)
        for place, value in zip(places, values.values(), strict=True):
            ax.text(value + 1, place, f"{value:.2f}", va="center", fontsize=8)
        ax.set_yticks(places, list(values))
        ax.set(xlim=(0, 111), ylim=(len(values) - 0.4, -0.6))
        ax.set(xlabel="exact match on unseen dates, %", xticks=range(0, 101, 20))
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(length=0)
        ax.grid(True, axis="x")
    return figure


def alignment(written: Written, translation: Translation) -> Figure:
    """Draw the weights of each character of the date (down) over those of its source (across)."""
    characters = unicodedata.normalize("NFC", written.text)
    target = [*translation.text, "end"]
    title = f"{readable(dates.name_of(written.language))} → {translation.text}"
    if written.iso and written.iso != translation.text:
        title += f" (truth: {written.iso})"
    used = {SIGNS[each]: each for each in characters if each in SIGNS and each != " "}
    legend = "   ".join(f"{sign} U+{ord(each):04X}" for sign, each in used.items())
    return plots.attention_heatmap(
        translation.weights,
        query_labels=target[: len(translation.weights)],
        key_labels=[written.language, *map(visible, characters)],
        query_axis="ISO 8601",
        key_axis="source" + (f"      {legend}" if legend else ""),
        title=title,
    )


def worth_drawing(test: Iterable[Written]) -> list[Written]:
    """Return a few dates of different scripts, those with something unusual in them first.

    Only texts that the fonts of this machine draw, where there are enough of them.
    """
    test = list(test)
    scripts = {each.language: script for each in test if (script := script_of(each.text))}
    best: dict[str, Written] = {}
    for each in test:
        script = scripts.get(each.language, each.language)
        if script not in best or _interest(each) > _interest(best[script]):
            best[script] = each
    return sorted(best.values(), key=_interest, reverse=True)[:ALIGNMENTS]


def _interest(written: Written) -> tuple[bool, bool, bool]:
    characters = unicodedata.normalize("NFC", written.text)
    return (
        drawable().issuperset(characters),
        any(each in SIGNS for each in characters if each != " "),
        written.format == "full",
    )


def script_of(text: str) -> str | None:
    """Return the script of the first letter, None where there is none.

    >>> script_of("17 мая"), script_of("17/5")
    ('CYRILLIC', None)
    """
    letters = (each for each in text if unicodedata.category(each)[0] == "L")
    return next((unicodedata.name(each, "").split(" ")[0] for each in letters), None)
