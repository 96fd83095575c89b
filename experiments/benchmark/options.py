"""The benchmark's options."""

from dataclasses import dataclass, field
from typing import Literal

from experiments.harness.errors import UserError
from experiments.harness.runs import Output


@dataclass(frozen=True)
class Benchmark:
    """Time implementations of attention, ours and others', each checked first.

    Prints tables, and writes config.json, rows.jsonl, metrics.json and figures.
    """

    output: Output = field(default_factory=Output)
    shapes: tuple[str, ...] = ("default",)
    """Names of shapes, or of families: default, all, models, long, growth, flash-attention-3."""
    implementations: tuple[str, ...] = ()
    """Names of implementations. Default: all that are installed."""
    scores: tuple[str, ...] = ()
    """Names of scores. Default: each shape's own."""
    normalizers: tuple[str, ...] = ()
    """Names of normalizers. Default: each shape's own."""
    dtype: tuple[str, ...] = ("float32",)
    """float32, bfloat16, float16, float64."""
    direction: tuple[str, ...] = ("forward", "gradient", "jvp")
    """forward, gradient (in query, key and value), jvp."""
    baseline: str = "dense"
    """Ratios are this implementation's time over each one's; the dense one's where it has none."""
    device: Literal["cpu", "gpu", "tpu"] | None = None
    """Where to run. Default: JAX's own choice."""
    seconds: float = 1.0
    """Time to spend on running each row, in 3 to 20 interleaved rounds."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds: small shapes, JAX's implementations only."""

    def __post_init__(self):
        if not 0 < self.seconds < float("inf"):
            raise UserError(f"--seconds must be positive and finite. Got {self.seconds}.")
        for flag, names in (
            ("shapes", self.shapes),
            ("dtype", self.dtype),
            ("direction", self.direction),
        ):
            if not names:
                raise UserError(f"--{flag} needs a name at least.")
