"""The table of implementations: the library of each, and what it serves.

Its function is in `jax_programs.FUNCTIONS` or `torch_programs.FUNCTIONS`, under the same name. A
case that an implementation does not document is left out, or a row says why, where it is named.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from experiments.benchmark.cases import NORMALIZERS, RESULTS, SCORES, Case, Inputs
from experiments.benchmark.memory import Memory
from experiments.harness import implementations
from experiments.harness.errors import require_known
from experiments.harness.implementations import OURS


@dataclass(frozen=True)
class Implementation(implementations.Implementation):
    """One function, of a library: what of a case it serves."""

    framework: str = "jax"  # or "torch"
    scores: Iterable[str] = ("scaled-dot",)
    normalizers: Iterable[str] = ("softmax",)
    directions: Iterable[str] = tuple(RESULTS)
    platforms: Iterable[str] = ("cpu", "gpu", "tpu")
    masks: bool = True  # causal
    windows: bool = True
    any_width: bool = True  # values of another width than keys
    smoke: bool = False
    compiles_at_first_call: bool = False
    score_matrices: int = 0
    """Arrays of all scores at its peak, at most, where no plan of memory says it beforehand."""

    def refusal(self, case: Case, platform: str) -> str | None:
        """Return why it does not serve a case on a platform; None: it does."""
        shape = case.shape
        other_width = shape.features != shape.value_features
        reasons = {
            f"not on a {platform}": platform not in self.platforms,
            f"no {case.score} score": case.score not in self.scores,
            f"no {case.normalizer}": case.normalizer not in self.normalizers,
            f"no {case.direction}": case.direction not in self.directions,
            "no causal mask": shape.causal and not self.masks,
            "no window": shape.window is not None and not self.windows,
            "values have to be as wide as keys": other_width and not self.any_width,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


def _torch(name: str, library: str, **serves: Any) -> Implementation:
    eager = {"directions": ("forward", "gradient"), "platforms": ("cpu", "gpu")}
    return Implementation(name, library, "torch", **eager, **serves)


_ANY = {"scores": tuple(SCORES), "normalizers": tuple(NORMALIZERS)}
_ENTMAX = {"scores": ("scaled-dot", "dot"), "normalizers": ("sparsemax", "entmax15", "entmax")}
_KERNEL = {"scores": ("gaussian",), "masks": False, "windows": False}

IMPLEMENTATIONS = {
    each.name: each
    for each in (
        Implementation("dense", OURS, smoke=True, **_ANY),
        Implementation("streaming", OURS, smoke=True, **_ANY),
        Implementation("cudnn", OURS, smoke=True, platforms=("gpu",)),
        Implementation("jax.nn", "jax", smoke=True, any_width=False),
        Implementation("flax", "flax", smoke=True, any_width=False, windows=False),
        Implementation("tokamax", "tokamax"),
        _torch("torch-sdpa", "torch", windows=False),
        _torch("torch-flex", "torch", compiles_at_first_call=True),
        _torch("entmax", "entmax", score_matrices=8, **_ENTMAX),
        _torch("keops", "pykeops", compiles_at_first_call=True, **_KERNEL),
    )
}


def select(names: Iterable[str], *, smoke: bool = False) -> list[Implementation]:
    """Return the implementations of these names, or all; for a smoke run those that import fast."""
    require_known("implementation", names, IMPLEMENTATIONS)
    if names:
        return [IMPLEMENTATIONS[name] for name in dict.fromkeys(names)]
    return [each for each in IMPLEMENTATIONS.values() if each.smoke or not smoke]


@dataclass(frozen=True)
class Program:
    """One implementation of one case, ready to run, and what it took to make it.

    `call(arguments)` returns when the results are there; `memory(arguments)` comes after a first
    call. `needed` bytes have to be free before that. Seconds are None where there is no such stage.
    """

    call: Callable[[Any], Any]
    memory: Callable[[Any], Memory | None]
    needed: int
    lower_seconds: float | None = None
    compile_seconds: float | None = None


class Framework(Protocol):
    """What makes programs on one device: JAX or PyTorch."""

    def place(self, inputs: Inputs) -> Inputs:
        """Return the inputs on the device, in the framework's layout."""

    def program(self, implementation: Implementation, case: Case, arguments: Inputs) -> Program:
        """Return the program of a case."""

    def read(self, results: Any, case: Case) -> Mapping[str, np.ndarray]:
        """Return results by name, in the layout [B, T, N, E]."""

    def available(self) -> int | None:
        """Return the bytes that a program may take; None where that is not known."""
