"""Scores and normalizers by name: the arrays that they hold, and the slot made from them.

The arrays are arguments of what is timed, never constants in it: a bandwidth, a bilinear weight or
entmax's alpha costs what it costs when it is learned.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from experiments.benchmark.shapes import Shape

Arrays = dict[str, np.ndarray]


def no_arrays(shape: Shape, rng: np.random.Generator) -> Arrays:
    """Draw nothing."""
    del shape, rng
    return {}


@dataclass(frozen=True)
class Slot:
    """`make(attn_jax, arrays)` gives the slot, `draw(shape, rng)` its arrays."""

    make: Callable[[ModuleType, Mapping[str, Any]], Any]
    draw: Callable[[Shape, np.random.Generator], Arrays] = no_arrays


SCORES = {
    "scaled-dot": Slot(lambda library, _: library.ScaledDot()),
    "dot": Slot(lambda library, _: library.Dot()),
    "cosine": Slot(
        lambda library, arrays: library.Cosine(arrays["scale"]),
        lambda shape, rng: {"scale": np.float64(10.0)},
    ),
    "bilinear": Slot(
        lambda library, arrays: library.Bilinear(arrays["weight"]),
        lambda shape, rng: {"weight": rng.normal(size=(shape.features,) * 2) / shape.features},
    ),
    "additive": Slot(
        lambda library, arrays: library.Additive(arrays["weight"]),
        lambda shape, rng: {"weight": rng.normal(size=shape.features)},
    ),
    "gaussian": Slot(
        lambda library, arrays: library.Kernel(bandwidth=arrays["bandwidth"]),
        lambda shape, rng: {"bandwidth": np.float64(0.5)},
    ),
}

NORMALIZERS = {
    "softmax": Slot(lambda library, _: library.Softmax()),
    "softmax-sink": Slot(
        lambda library, arrays: library.Softmax(sink=arrays["sink"]),
        lambda shape, rng: {"sink": np.float64(0.5)},
    ),
    "sparsemax": Slot(lambda library, _: library.Sparsemax()),
    "entmax15": Slot(lambda library, _: library.Entmax(1.5)),
    "entmax": Slot(
        lambda library, arrays: library.Entmax(arrays["alpha"]),
        lambda shape, rng: {"alpha": np.float64(1.7)},
    ),
    "sigmoid": Slot(
        lambda library, arrays: library.Sigmoid(arrays["bias"]),
        lambda shape, rng: {"bias": np.float64(-math.log(shape.keys))},  # Ramapuram et al. 2025
    ),
}
