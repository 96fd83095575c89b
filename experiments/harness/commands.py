"""What an experiment's commands are: a class of options, and the function that takes them."""

import dataclasses
import importlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from experiments.harness import processes
from experiments.harness.options import Options
from experiments.harness.runs import Output, compile_quickly


@dataclass(frozen=True)
class RunOptions(Options):
    """A run."""

    output: Output = field(default_factory=Output)
    smoke: bool = False
    """A tiny run that takes seconds: little data, a small model, few steps, a small beam."""

    def tiny(self) -> Self:
        """Return the options of a tiny run: each part that has a method `tiny` as that returns."""
        parts = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        small = {name: part.tiny() for name, part in parts.items() if hasattr(part, "tiny")}
        return dataclasses.replace(self, **small)


@dataclass(frozen=True)
class ResumableOptions(RunOptions):
    """A run that can be interrupted."""

    resume: bool = False
    """Go on with an interrupted run of this name and these options."""


class Command(NamedTuple):
    """One row of an experiment's `COMMANDS`.

    Attributes:
        options: A subclass of `RunOptions`; its docstring says what the command does.
        function: "folder.module.name" in `experiments`, imported when it is run: --help answers at
            once.
    """

    options: type[RunOptions]
    function: str

    def run(self, options: RunOptions) -> None:
        """Call the function, with the options of a tiny run where they say --smoke."""
        if options.smoke:
            compile_quickly()
            options = options.tiny()
        if hasattr(options, "processes"):
            processes.run(self.function, options)
        else:
            found(self.function)(options)


def found(function: str) -> Any:
    """Return a command's function by its name."""
    module, name = function.rsplit(".", 1)
    return getattr(importlib.import_module(f"experiments.{module}"), name)
