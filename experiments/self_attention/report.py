"""The six steps and the claims, as tables, pictures and numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness.runs import Run, start
from experiments.harness.tables import print_table
from experiments.self_attention import ClaimOptions, SelfAttention, figures, recall, steps, timing

PRINTED = 4  # entries of each row


def run(options: SelfAttention) -> None:
    """Take the steps, measure the claims, draw."""
    output = start("self-attention", options, options.output, resume=options.resume)
    metrics = {"steps": take_steps(options, output)}
    if "long-distance" in options.claims:
        metrics["long-distance"] = long_distance(options.how, output)
    if "parallelism" in options.claims:
        metrics["parallelism"] = parallelism(options.how, output)
    output.write_metrics(metrics)
    output.say_where()


def take_steps(options: SelfAttention, output: Run) -> dict[str, Any]:
    """Print and draw the steps, the heads and cross-attention; return weights and differences."""
    words, others = options.sentence.split(), options.other.split()
    x, memory = (steps.embed(each, options.how.seed) for each in (words, others))
    layer = steps.layer_of(options.how.seed)
    maps = steps.projections(layer)[0]
    taken, hand = (take(x, x, maps) for take in (steps.by_library, steps.by_hand))
    crossed, crossed_hand = (take(x, memory, maps) for take in (steps.by_library, steps.by_hand))
    heads, joined = steps.heads_by_library(x, layer)
    heads_hand, joined_hand = steps.heads_by_hand(x, layer)
    print("Embeddings and projections are random: nothing is trained here.")
    for name, (title, line) in steps.STEPS.items():
        print(f"\n{title}\n   by hand: {line}")
        print_beside(words, getattr(taken, name), getattr(hand, name))
    print("\nEight heads, each with steps of its own; joined and projected back to 512 numbers")
    print_beside(words, joined, joined_hand)
    print(f'\nCross-attention, queries from "{options.sentence}", keys from "{options.other}"')
    print_beside(words, crossed.weights, crossed_hand.weights)
    for name, figure in figures.of_steps(words, others, taken, heads, crossed):
        output.write_figure(name, figure)
    pairs = {name: (getattr(taken, name), getattr(hand, name)) for name in steps.STEPS}
    pairs["heads"], pairs["joined"] = (heads, heads_hand), (joined, joined_hand)
    pairs["cross"] = crossed.output, crossed_hand.output
    return {
        "largest_difference": {name: difference(*pair) for name, pair in pairs.items()},
        "weights": taken.weights,
        "cross_weights": crossed.weights,
    }


def print_beside(words: Sequence[str], taken: np.ndarray, hand: np.ndarray) -> None:
    """Print the first entries of each row, by the library and by hand, and their difference."""
    rows = zip(words, taken, hand, strict=True)
    print_table([{"token": w, "attn_jax": entries(a), "by hand": entries(b)} for w, a, b in rows])
    print(f"largest difference {difference(taken, hand):.1e}")


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return max |one - other|."""
    return float(np.max(np.abs(one - other)))


def entries(row: np.ndarray) -> str:
    """Return the first entries of a row as text.

    >>> entries(np.array([0.5, -1.25, 0.0, 1.0, 2.0]))
    '  0.500  -1.250   0.000   1.000 …'
    """
    return "".join(f"{each:8.3f}" for each in row[:PRINTED])[1:] + " …" * (len(row) > PRINTED)


def long_distance(how: ClaimOptions, output: Run) -> dict[str, Any]:
    """Measure recall and gradients against the distance, print and draw them."""
    print("\nLong distance: name one of 8 tokens, L places after it")
    rows = []
    for row in recall.each(how, output.directory / "training"):
        rows.append(row)
        right, seconds = f"{100 * row['accuracy']:5.1f} %", f"{row['seconds']:.1f} s"
        print(f"  L {row['length']:<5} {row['model']:14} {right}  {seconds}", flush=True)
    counts = {row["model"]: f"{row['parameters']:,}" for row in rows}
    print("parameters:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    summaries = [recall.summary(row) for row in rows]
    print_by_length("Right answers, share", summaries, "accuracy")
    for when in ("before", "after"):
        title = f"The gradient's size at the first input / at the last one, {when} training"
        print_by_length(title, summaries, f"gradient_ratio_{when}")
    output.write_figure("recall", figures.recall(summaries))
    output.write_figure("gradients", figures.gradients(rows))
    return {"rows": summaries}


def parallelism(how: ClaimOptions, output: Run) -> dict[str, Any]:
    """Time training steps against the length, print and draw the medians."""
    rows = list(timing.each(how))
    milliseconds = [row | {"ms": 1000 * row["seconds"]} for row in rows]
    title = f"Parallelism: milliseconds of a training step, {how.batch_size} sequences"
    print_by_length(title, milliseconds, "ms")
    print_by_length("CPU cores that it keeps busy", rows, "cores")
    output.write_figure("parallelism", figures.parallelism(rows))
    return {"rows": rows}


def print_by_length(title: str, rows: Sequence[dict[str, Any]], name: str) -> None:
    """Print one number of each row: a line for each length, a column for each model."""
    print(f"\n{title}")
    table = recall.by_length(rows, name)
    print_table([{"L": length, **numbers} for length, numbers in table.items()])
