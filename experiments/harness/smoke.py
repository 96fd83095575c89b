"""What an experiment's commands share: which run they are for, and whether it is a tiny one."""

import dataclasses
from dataclasses import dataclass, field
from typing import TypeVar

from experiments.harness.options import Options
from experiments.harness.runs import Output, compile_quickly


@dataclass(frozen=True)
class RunOptions(Options):
    """A run."""

    output: Output = field(default_factory=Output)
    smoke: bool = False
    """A tiny run that takes seconds: little data, a small model, few steps, a small beam."""


T = TypeVar("T", bound=RunOptions)


def tiny(options: T) -> T:
    """Return the options, with --smoke each part that has a method `tiny` as that returns it."""
    if not options.smoke:
        return options
    compile_quickly()
    parts = {each.name: getattr(options, each.name) for each in dataclasses.fields(options)}
    small = {name: part.tiny() for name, part in parts.items() if hasattr(part, "tiny")}
    return dataclasses.replace(options, **small)
