"""A program: one implementation of one case, ready to run, and what it took to make it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from experiments.benchmark.cases import Case
from experiments.benchmark.inputs import Inputs
from experiments.benchmark.memory import Memory

Attend = Callable[..., Any]  # (query, key, value, parameters) -> output, in its framework's layout


@dataclass(frozen=True)
class Program:
    """`call(arguments)` returns when the results are there.

    `needed` bytes have to be free before the first call. Seconds are None where there is no such
    stage. `memory(arguments)` is asked after the first call.
    """

    call: Callable[[Any], Any]
    memory: Callable[[Any], Memory | None]
    needed: int
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    compiles_at_first_call: bool = False


class Framework(Protocol):
    """Where programs come from: JAX or PyTorch, on one device."""

    def place(self, inputs: Inputs) -> Any:
        """Return the inputs on the device, in the framework's layout."""

    def program(self, attend: Attend, case: Case, arguments: Any, **options: Any) -> Program:
        """Return the program of a case; options are those of `Implementation`."""

    def read(self, results: Any, case: Case) -> Mapping[str, np.ndarray]:
        """Return results by name, in the layout [B, T, N, E]."""

    def available(self) -> int | None:
        """Return the bytes that a program may take; None where that is not known."""
