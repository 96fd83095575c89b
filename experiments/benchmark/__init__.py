"""How fast and how large attention is: ours in every implementation, and the ones people use.

    python -m experiments benchmark                     models' shapes on this machine, minutes
    python -m experiments benchmark --smoke             one tiny shape of each kind, seconds
    python -m experiments benchmark --shapes growth     time and memory up to n = 65,536
    python -m experiments benchmark --shapes long-4k --normalizers softmax sparsemax entmax15
    python -m experiments benchmark open-models         GPT-2, Llama, Gemma 2 … beside transformers

Expected: no row of ours is "wrong" or "failed" (each implementation is compared with a float64
reference before it is timed; the exit code is 1 if one of ours is). Nothing else should run on the
machine meanwhile.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from experiments.harness.commands import Command, ResumableOptions, RunOptions
from experiments.harness.options import Positive, Range

Names = tuple[str, ...]
SomeNames = Annotated[Names, Range("a name at least", bool)]


@dataclass(frozen=True)
class Benchmark(ResumableOptions):
    """Time implementations of attention, ours and others', each checked first.

    Prints tables, and writes config.json, rows.jsonl, metrics.json and figures.
    """

    shapes: SomeNames = ("default",)
    """Names of shapes, or of families: default, all, models, long, growth, flash-attention-3."""
    implementations: Names = ()
    """Names of implementations. Default: all that are installed."""
    scores: Names = ()
    """Names of scores. Default: each shape's own."""
    normalizers: Names = ()
    """Names of normalizers. Default: each shape's own."""
    dtype: SomeNames = ("float32",)
    """float32, bfloat16, float16, float64."""
    direction: SomeNames = ("forward", "gradient", "jvp")
    """forward, gradient (in query, key and value), jvp."""
    baseline: str = "dense"
    """Ratios are this implementation's time over each one's; the dense one's where it has none."""
    device: Literal["cpu", "gpu", "tpu"] | None = None
    """Where to run. Default: JAX's own choice."""
    seconds: Positive[float] = 1.0
    """Time to spend on running each row, in 3 to 20 interleaved rounds."""

    def tiny(self) -> Self:
        shapes = ("smoke",) if self.shapes == Benchmark.shapes else self.shapes
        return replace(self, shapes=shapes, seconds=min(self.seconds, 0.02))


@dataclass(frozen=True)
class OpenModels(RunOptions):
    """Time small models of open families, with transformers' beside them where it is installed."""

    features: Positive[int] = 256
    """Features of a position."""
    heads: Positive[int] = 8
    """Heads of each attention."""
    layers: Positive[int] = 4
    """Blocks."""
    tokens: Positive[int] = 512
    """Tokens of the text."""
    vocabulary: Positive[int] = 1000
    """Tokens that there are."""
    seconds: Positive[float] = 1.0
    """Time to spend on running each row, in 3 to 20 interleaved rounds."""

    def tiny(self) -> Self:
        small = {"features": 16, "heads": 2, "layers": 2, "tokens": 8, "vocabulary": 13}
        return replace(super().tiny(), **small, seconds=0.01)


COMMANDS = {
    "run": Command(Benchmark, "benchmark.session.run"),
    "open-models": Command(OpenModels, "benchmark.models.open_models.run"),
}
