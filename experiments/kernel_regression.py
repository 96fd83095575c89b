"""Placeholder: kernel regression as attention."""

from dataclasses import dataclass, field

from experiments.curves import CurveOptions, load
from experiments.runs import Output, start


@dataclass(frozen=True)
class KernelRegression:
    """Fit a curve by attention: a fixed kernel bandwidth against a learned one."""

    curve: CurveOptions = field(default_factory=CurveOptions)
    output: Output = field(default_factory=Output)
    bandwidth: float = 1.0
    """Bandwidth at the start."""
    seed: int = 0
    """Seed of everything random."""
    smoke: bool = False
    """A tiny run that takes seconds."""


def run(options: KernelRegression) -> None:
    """Load the data and write an empty result."""
    run = start("kernel_regression", options, options.output)
    curve = load(options.curve, seed=options.seed)
    for note in curve.notes:
        print(note)
    run.write_metrics({"rows": len(curve.x)})
