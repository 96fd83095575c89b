r"""Self-attention in six steps on a sentence of yours, and two claims about it, measured.

    python -m experiments self-attention                              "Thinking Machines"
    python -m experiments self-attention --sentence "Any words here" --claims
    python -m experiments self-attention --claims long-distance --lengths 8 64 --steps 1000

Each step is computed by `attn_jax` and, beside it, by one line of NumPy; then eight heads, and
attention to another sentence. The claims: self-attention recalls a token over any distance where a
GRU and an LSTM forget it (accuracy 100 % up to 512 places), and it is parallel (seconds of a
training step against the length). About three minutes on two cores, the steps alone five seconds.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.harness.runs import Output, Run, compile_quickly, start

NAME = "self-attention"
MOST_WORDS = 32
SHOWN = 4  # entries of each row
LONG_DISTANCE, PARALLELISM = "long-distance", "parallelism"


@dataclass(frozen=True)
class ClaimOptions:
    """How the claims are measured."""

    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    """Distances to recall over, and lengths to time."""
    steps: int = 300
    """Training steps of each model at each distance."""
    batch_size: int = 16
    """Sequences in a batch."""
    learning_rate: float = 1e-2
    """Adam's, after a warm-up, falling along a cosine."""
    features: int = 32
    """Of self-attention; the recurrent layers have as many parameters."""
    heads: int = 4
    """Of self-attention."""
    timing_seconds: float = 0.4
    """To spend on timing each model at each length."""
    seed: int = 0
    """Seed of embeddings, parameters and sequences."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "features", "heads"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be at least 1. Got {getattr(self, name)}.")
        if not self.lengths or min(self.lengths) < 1:
            raise UserError(f"--lengths must be at least 1 each. Got {self.lengths}.")
        if self.features % self.heads:
            raise UserError(f"--heads must divide --features, {self.features}. Got {self.heads}.")
        for name in ("learning_rate", "timing_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be positive. Got {getattr(self, name)}.")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative. Got {self.seed}.")


@dataclass(frozen=True)
class SelfAttention:
    """Take the six steps of self-attention on a sentence, and measure what is claimed of it."""

    sentence: str = "Thinking Machines"
    """The words that attend to each other, 32 at most."""
    other: str = "Machines that learn to attend"
    """The words that they attend to in cross-attention."""
    claims: tuple[Literal["long-distance", "parallelism"], ...] = (LONG_DISTANCE, PARALLELISM)
    """What to measure; nothing after the flag: the steps alone."""
    how: ClaimOptions = field(default_factory=ClaimOptions)
    output: Output = field(default_factory=Output)
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds: short lengths, few steps."""

    def __post_init__(self):
        for name in ("sentence", "other"):
            words = getattr(self, name).split()
            if not 1 <= len(words) <= MOST_WORDS:
                raise UserError(f"--{name} must have 1 to {MOST_WORDS} words. Got {len(words)}.")


def run(options: SelfAttention) -> None:
    """Take the steps, measure the claims, draw."""
    if options.smoke:
        compile_quickly()
        how = dataclasses.replace(
            options.how,
            lengths=(3, 5),
            steps=4,
            batch_size=4,
            features=8,
            heads=2,
            timing_seconds=0.01,
        )
        options = dataclasses.replace(options, how=how)
    output = start(NAME, options, options.output, resume=options.resume)
    metrics = {"steps": take_steps(options, output)}
    measured = {LONG_DISTANCE: long_distance, PARALLELISM: parallelism}
    for claim in measured:
        if claim in options.claims:
            print()
            metrics[claim] = measured[claim](options.how, output)
    output.write_metrics(metrics)
    output.say_where()


# The six steps


def take_steps(options: SelfAttention, output: Run) -> dict[str, Any]:
    """Print and draw the steps, the heads and cross-attention; return weights and differences."""
    from experiments.self_attention import figures, steps

    words, others = options.sentence.split(), options.other.split()
    x, memory = (steps.embed(each, options.how.seed) for each in (words, others))
    layer = steps.layer_of(options.how.seed)
    maps = steps.first_head(layer)
    taken, crossed = (steps.by_library(x, each, maps) for each in (x, memory))
    hand, crossed_hand = (steps.by_hand(x, each, maps) for each in (x, memory))
    (weights, joined), (weights_hand, joined_hand) = (
        heads_of(layer, x),
        steps.heads_by_hand(x, layer),
    )
    print_steps(words, taken, hand)
    print("\nEight heads, each with steps of its own; joined and projected back to 512 numbers")
    print_beside(words, joined, joined_hand)
    print(f'\nCross-attention: "{options.sentence}" asks, "{options.other}" answers; weights')
    print_beside(words, crossed.weights, crossed_hand.weights)
    for name, figure in figures.of_steps(words, others, taken, weights, crossed):
        output.write_figure(name, figure)
    found = dict(steps.differences(taken, hand)) | {
        "heads": steps.largest_difference(weights, weights_hand),
        "joined": steps.largest_difference(joined, joined_hand),
        "cross": steps.largest_difference(crossed.output, crossed_hand.output),
    }
    return {
        "largest_difference": found,
        "weights": taken.weights,
        "cross_weights": crossed.weights,
    }


def heads_of(layer: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a layer's weights [heads, t, t] and its output [t, 512]."""
    return np.asarray(layer.weights(x[None])[0]), np.asarray(layer(x[None])[0])


def print_steps(words: Sequence[str], taken: Any, hand: Any) -> None:
    """Print each step by the library and, beside it, by hand."""
    from experiments.self_attention import steps

    print("Embeddings and projections are random: nothing is trained here.")
    for name, title in steps.TITLES.items():
        print(f"\n{title}\n   by hand: {steps.BY_HAND[name]}")
        print_beside(words, getattr(taken, name), getattr(hand, name))


def print_beside(words: Sequence[str], taken: np.ndarray, hand: np.ndarray) -> None:
    """Print the first entries of each row, by the library and by hand, and their difference."""
    from experiments.self_attention.steps import largest_difference

    rows = [
        {"token": word, "attn_jax": entries(one), "by hand": entries(other)}
        for word, one, other in zip(words, taken, hand, strict=True)
    ]
    tables.print_table(rows)
    print(f"largest difference {largest_difference(taken, hand):.1e}")


def entries(row: np.ndarray) -> str:
    """Return the first entries of a row as text.

    >>> entries(np.array([0.5, -1.25, 0.0, 1.0, 2.0]))
    '  0.500  -1.250   0.000   1.000 …'
    """
    return "".join(f"{each:8.3f}" for each in row[:SHOWN])[1:] + " …" * (len(row) > SHOWN)


# The claims


def long_distance(how: ClaimOptions, output: Run) -> dict[str, Any]:
    """Measure recall and gradients against the distance, print and draw them."""
    from experiments.self_attention import figures, recall

    print("Long distance: name one of 8 tokens, L places after it")
    rows = []
    for row in recall.each(how, output.directory / "training"):
        rows.append(row)
        right, seconds = f"{100 * row['accuracy']:5.1f} %", f"{row['seconds']:.1f} s"
        print(f"  L {row['length']:<5} {row['model']:14} {right}  {seconds}", flush=True)
    counts = {row["model"]: f"{row['parameters']:,}" for row in rows}
    print("parameters:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    summaries = [recall.summary(row) for row in rows]
    print("\nRight answers, share")
    tables.print_table(by_length(summaries, "accuracy"))
    for when in ("before", "after"):
        print(f"\nThe gradient's size at the first input / at the last one, {when} training")
        tables.print_table(by_length(summaries, f"gradient_ratio_{when}"))
    output.write_figure("recall", figures.recall(summaries))
    output.write_figure("gradients", figures.gradients(rows))
    return {"rows": summaries}


def parallelism(how: ClaimOptions, output: Run) -> dict[str, Any]:
    """Time training steps against the length, print and draw the medians."""
    from experiments.self_attention import figures, timing

    rows = list(timing.each(how))
    print(f"Parallelism: milliseconds of a training step, {how.batch_size} sequences")
    milliseconds = [row | {"ms": 1000 * row["seconds"]} for row in rows]
    tables.print_table(by_length(milliseconds, "ms"))
    print("\nCPU cores that it keeps busy")
    tables.print_table(by_length(rows, "cores"))
    output.write_figure("parallelism", figures.parallelism(rows))
    return {"rows": rows}


def by_length(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return one number of each row as a table: a row for each length, a column for each model.

    >>> by_length([{"model": "GRU", "length": 8, "ms": 2.0}], "ms")
    [{'L': 8, 'GRU': 2.0}]
    """
    table: dict[int, dict[str, Any]] = {}
    for row in rows:
        table.setdefault(row["length"], {"L": row["length"]})[row["model"]] = row[name]
    return list(table.values())


COMMANDS = {"run": run}
