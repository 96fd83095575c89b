"""Reverse, copy, sort: generated sequences of integers, as two toolkits' own tests define them.

    reverse       integers 0-49. 50,000 sequences of 1 to 25 to train on, 1,000 of 1 to 30 to choose
                  and 1,000 to test with. (JoeyNMT, scripts/generate_reverse_task.py.)
    copy, sort    digits. 10,000 sequences of 1 to 10, 100 of 1 to 10, and 110 of up to 11, of which
                  10 are empty. (Sockeye 1, test/system/test_seq_copy_sys.py.)

A length is drawn evenly, then each integer. The parts have streams of their own, so that no part
changes with another's size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.data.pairs import Pairs, Parts

TaskName = Literal["reverse", "copy", "sort"]


class Part(NamedTuple):
    """How many sequences, of which lengths."""

    count: int
    longest: int
    empty: int = 0  # so many of them


@dataclass(frozen=True)
class Task:
    """What is generated, what becomes of it, and the training that the toolkit's test allows."""

    change: Callable[[Sequence[int]], Sequence[int]]
    symbols: int
    train: Part
    dev: Part
    test: Part
    steps: int
    batch_size: int


def _digits(change: Callable[[Sequence[int]], Sequence[int]], steps: int) -> Task:
    parts = (Part(10_000, 10), Part(100, 10), Part(110, 11, empty=10))
    return Task(change, 10, *parts, steps=steps, batch_size=16)


TASKS: dict[TaskName, Task] = {
    "reverse": Task(
        lambda sequence: sequence[::-1],
        50,
        Part(50_000, 25),
        Part(1_000, 30),
        Part(1_000, 30),
        steps=8_000,
        batch_size=24,  # 12, and the gradients of two batches together
    ),
    "copy": _digits(lambda sequence: sequence, steps=4_000),
    "sort": _digits(sorted, steps=7_000),
}
TINY = {"train": Part(200, 5), "dev": Part(30, 7), "test": Part(20, 7, empty=2)}


def task(name: TaskName, *, smoke: bool) -> Task:
    """Return a task; a tiny run's has few sequences."""
    return dataclasses.replace(TASKS[name], **TINY) if smoke else TASKS[name]


def generate(task: Task, *, seed: int) -> Parts:
    """Return lines of integers; each part is a pure function of its definition and the seed.

    >>> import dataclasses
    >>> few = dataclasses.replace(TASKS["sort"], train=Part(1, 3))
    >>> generate(few, seed=0).train
    Pairs(source=['6 5 2'], target=['2 5 6'])
    """
    parts = (task.train, task.dev, task.test)
    return Parts(*(_pairs(task, part, [seed, place]) for place, part in enumerate(parts)))


def _pairs(task: Task, part: Part, seed: Any) -> Pairs:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, part.longest + 1, part.count)
    lengths[rng.permutation(part.count)[: part.empty]] = 0
    drawn = np.split(rng.integers(0, task.symbols, lengths.sum()), np.cumsum(lengths)[:-1])
    sources = [each.tolist() for each in drawn]
    sides = sources, map(task.change, sources)
    return Pairs(*([" ".join(map(str, each)) for each in side] for side in sides))


def vocabulary(task: Task) -> Any:
    """Return the vocabulary of both sides: every integer of the task."""
    from attn_jax import text

    return text.Vocabulary.train([" ".join(map(str, range(task.symbols)))])
