"""Pictures of any translator: the weights of a translation, the learning curve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attn_jax import plots, training
from attn_jax.plots.explore import Page
from experiments.harness.glyphs import label
from experiments.seq2seq.translator import Translation


def heat_map(
    source: str,
    translation: Translation,
    vocabularies: tuple[Any, Any],
    names: tuple[str, str] = ("source", "target"),
) -> Figure | None:
    """Return the weights of a translation as a picture, its tokens down, the source's across."""
    if (tokens := tokens_of(source, translation, vocabularies)) is None:
        return None
    queries, keys = tokens
    return plots.attention_heatmap(
        translation.weights,
        query_labels=list(map(label, queries)),
        key_labels=list(map(label, keys)),
        query_axis=names[1],
        key_axis=names[0],
    )


def page(source: str, translation: Translation, vocabularies: tuple[Any, Any]) -> Page | None:
    """Return a page to explore the weights of a translation."""
    if (tokens := tokens_of(source, translation, vocabularies)) is None:
        return None
    return plots.explore(translation.weights, *tokens, title=translation.text or "Attention")


def tokens_of(
    source: str, translation: Translation, vocabularies: tuple[Any, Any]
) -> tuple[list[str], list[str]] | None:
    """Return the tokens of the weights' rows and columns; None where there are no weights."""
    if translation.weights is None or 0 in translation.weights.shape:
        return None
    rows, columns = translation.weights.shape
    queries = [*map(vocabularies[1].token, translation.ids), "<end>"][:rows]
    return queries, vocabularies[0].tokens(source)[:columns]


def learning(
    directory: Path, *, log: bool = False, shares: Mapping[str, str] | None = None
) -> Figure | None:
    """Return the learning curve of a run, None where it has no rows.

    Below it are `shares`, label → name of a number that each evaluation has, in per cent.
    """
    rows = training.read_history(directory / "training")
    if not rows:
        return None
    evaluated = [row for row in rows if "evaluation" in row]
    steps = [row["step"] for row in evaluated]

    def curve(name: str, times: float = 1) -> tuple[list[int], list[float]]:
        return steps, [times * row["evaluation"][name] for row in evaluated]

    return plots.learning_curve(
        [row["step"] for row in rows],
        {"training": [row["loss"] for row in rows]}
        | ({"dev": curve("dev_loss")} if evaluated else {}),
        beside={name: curve(number, 100) for name, number in (shares or {}).items()} or None,
        loss_axis="loss per token, nats",
        log=log,
    )
