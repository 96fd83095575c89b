"""Compile attention for TPUs and NVIDIA GPUs that are not here: time, code, memory, collectives.

    python -m experiments compile --install                         TPU v5e and H100, each slot
    python -m experiments compile --targets v6e --programs softmax relative-bias
    python -m experiments compile --smoke                           two programs, small

XLA compiles for hardware that a description stands for; compiling is not running: nothing here says
how fast a program is, or that its results are right. It says that the compiler takes the program,
how long it needs, which temporaries the program holds, and whether an array of all pairs of queries
and keys is among them.

The compilers (libtpu, and JAX's plugin for CUDA with NVIDIA's compiler, 470 MB) are installed by
`--install`, once, into the cache folder; a target that lacks its compiler is left out.
Each slot's members are compiled, streaming and with `--implementations dense` dense, and with
`--modules` training steps of modules.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

from experiments.harness.commands import Command, RunOptions
from experiments.harness.errors import UserError, require_known
from experiments.harness.options import Positive

NAME = "compile"
TargetName = Literal["v5e", "v5p", "v6e", "tpu7x", "h100"]
Direction = Literal["value", "gradient", "second"]
Implementation = Literal["streaming", "dense"]


@dataclass(frozen=True)
class Compile(RunOptions):
    """Compile programs for other machines."""

    targets: tuple[TargetName, ...] = ("v5e", "h100")
    """What is compiled for."""
    programs: tuple[str, ...] = ()
    """Members of slots, and modules, by name. Default: all members, and with --modules those."""
    directions: tuple[Direction, ...] = ("value", "gradient")
    """The output; the gradient of the sum of its squares; the gradient of that one's sum."""
    implementations: tuple[Implementation, ...] = ("streaming",)
    """How attention is evaluated."""
    modules: bool = False
    """Training steps of a language model, a Transformer and a recurrent encoder-decoder too."""
    length: Positive[int] = 2048
    """Queries, and keys, of one head."""
    features: Positive[int] = 64
    """Features of queries, keys and values."""
    install: bool = False
    """Install the compilers first."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of queries, keys and values."""

    def __post_init__(self):
        super().__post_init__()
        from experiments.compile.names import MEMBERS, MODULES

        require_known("program", self.programs, [*MEMBERS, *MODULES])
        for name in ("targets", "directions", "implementations"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise UserError(f"--{name} needs one or several, each once. Got {given}.")

    def tiny(self) -> Self:
        programs = self.programs or ("softmax", "sparsemax")
        return dataclasses.replace(self, programs=programs, length=256, features=8)


COMMANDS = {"compile": Command(Compile, "compile.report.compile_all")}
