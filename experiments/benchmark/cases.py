"""A case: one shape, score, normalizer, dtype and direction, on which implementations compete."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.benchmark.shapes import Shape
from experiments.benchmark.slots import NORMALIZERS, SCORES
from experiments.harness.errors import unknown

DTYPES = ("float32", "bfloat16", "float16", "float64")
RESULTS = {
    "forward": ("output",),
    "gradient": ("query", "key", "value"),  # of Σ output · cotangent
    "jvp": ("output", "tangent"),
}
DIRECTIONS = tuple(RESULTS)


@dataclass(frozen=True)
class Case:
    """What is computed."""

    shape: Shape
    score: str
    normalizer: str
    dtype: str
    direction: str

    @property
    def names(self) -> dict[str, str]:
        """The case as the names that a row of the results carries."""
        return {
            "shape": self.shape.name,
            "score": self.score,
            "normalizer": self.normalizer,
            "dtype": self.dtype,
            "direction": self.direction,
        }

    def __str__(self) -> str:
        return " ".join(self.names.values())


def plan(
    shapes: Iterable[Shape],
    *,
    scores: Sequence[str],
    normalizers: Sequence[str],
    dtypes: Sequence[str],
    directions: Sequence[str],
) -> list[Case]:
    """Return every combination; without scores or normalizers each shape's own."""
    known = {"score": SCORES, "normalizer": NORMALIZERS, "dtype": DTYPES, "direction": DIRECTIONS}
    for what, asked in zip(known, (scores, normalizers, dtypes, directions), strict=True):
        for name in asked:
            if name not in known[what]:
                raise unknown(what, name, known[what])
    return [
        Case(shape, *names)
        for shape in shapes
        for names in itertools.product(
            scores or (shape.score,), normalizers or (shape.normalizer,), dtypes, directions
        )
    ]
