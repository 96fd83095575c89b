"""The table of implementations: whose each is, what it serves, and how it is made.

A case that an implementation does not document is left out, with the reason for who asks by name.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.benchmark.cases import DIRECTIONS, Case
from experiments.benchmark.programs import Attend
from experiments.benchmark.slots import NORMALIZERS, SCORES
from experiments.harness.errors import unknown


@dataclass(frozen=True)
class Implementation:
    """One competitor.

    `options` are its framework's: in PyTorch `score_matrices`, how many arrays of all scores it
    holds at its peak (an upper bound, where nothing says it beforehand), and
    `compiles_at_first_call`.
    """

    name: str
    library: str
    framework: str  # "jax" or "torch"
    make: Callable[[Case], Attend]
    scores: Iterable[str] = ("scaled-dot",)
    normalizers: Iterable[str] = ("softmax",)
    directions: Iterable[str] = DIRECTIONS
    platforms: Iterable[str] = ("cpu", "gpu", "tpu")
    masks: bool = True  # causal
    windows: bool = True
    any_width: bool = True  # values of another width than keys
    smoke: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether the library is not installed."""
        return importlib.util.find_spec(self.library) is None

    def refusal(self, case: Case, platform: str) -> str | None:
        """Return why it does not serve a case on a platform; None: it does."""
        shape = case.shape
        reasons = {
            f"not on a {platform}": platform not in self.platforms,
            f"no {case.score} score": case.score not in self.scores,
            f"no {case.normalizer}": case.normalizer not in self.normalizers,
            f"no {case.direction}": case.direction not in self.directions,
            "no causal mask": shape.causal and not self.masks,
            "no window": shape.window is not None and not self.windows,
            "values have to be as wide as keys": (
                shape.features != shape.value_features and not self.any_width
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


def _from(module: str, function: str, *arguments: str) -> Callable[[Case], Attend]:
    """Return a maker that imports its module when it is called: importing takes seconds."""

    def make(case: Case) -> Attend:
        there = importlib.import_module(f"experiments.benchmark.{module}")
        return getattr(there, function)(case, *arguments)

    return make


_in_jax = functools.partial(_from, "jax_implementations")
_in_torch = functools.partial(_from, "torch_implementations")
_any_slots = {"scores": tuple(SCORES), "normalizers": tuple(NORMALIZERS)}
_eager_torch = {"directions": ("forward", "gradient"), "platforms": ("cpu", "gpu")}

IMPLEMENTATIONS = {
    each.name: each
    for each in (
        Implementation(
            "dense", "attn_jax", "jax", _in_jax("ours", "dense"), smoke=True, **_any_slots
        ),
        Implementation(
            "streaming", "attn_jax", "jax", _in_jax("ours", "streaming"), smoke=True, **_any_slots
        ),
        Implementation(
            "cudnn", "attn_jax", "jax", _in_jax("ours", "cudnn"), platforms=("gpu",), smoke=True
        ),
        Implementation("jax.nn", "jax", "jax", _in_jax("jax_nn"), any_width=False, smoke=True),
        Implementation(
            "flax", "flax", "jax", _in_jax("flax"), windows=False, any_width=False, smoke=True
        ),
        Implementation("tokamax", "tokamax", "jax", _in_jax("tokamax")),
        Implementation(
            "torch-sdpa", "torch", "torch", _in_torch("sdpa"), windows=False, **_eager_torch
        ),
        Implementation(
            "torch-flex",
            "torch",
            "torch",
            _in_torch("flex"),
            options={"compiles_at_first_call": True},
            **_eager_torch,
        ),
        Implementation(
            "entmax",
            "entmax",
            "torch",
            _in_torch("entmax"),
            scores=("scaled-dot", "dot"),
            normalizers=("sparsemax", "entmax15", "entmax"),
            options={"score_matrices": 8},
            **_eager_torch,
        ),
        Implementation(
            "keops",
            "pykeops",
            "torch",
            _in_torch("keops"),
            scores=("gaussian",),
            masks=False,
            windows=False,
            options={"compiles_at_first_call": True},
            **_eager_torch,
        ),
    )
}


def select(names: Iterable[str], *, smoke: bool = False) -> list[Implementation]:
    """Return the implementations of these names, or all; for a smoke run those that import fast."""
    for name in names:
        if name not in IMPLEMENTATIONS:
            raise unknown("implementation", name, IMPLEMENTATIONS)
    if names:
        return [IMPLEMENTATIONS[name] for name in dict.fromkeys(names)]
    return [each for each in IMPLEMENTATIONS.values() if each.smoke or not smoke]
