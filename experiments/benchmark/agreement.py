"""How far an implementation is from the float64 reference, and how far it may be.

The error of an array is max |got - expected| / max |expected|: rounding in a sum is proportional to
what is summed, not to what happens to remain of it.
"""

from collections.abc import Mapping

import numpy as np

from experiments.benchmark.cases import Case
from experiments.benchmark.inputs import Rows

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
ROUNDED_MATMULS = 2e-2  # GPUs and TPUs round float32 operands to TF32 or bfloat16 by default


def tolerance(dtype: str, platform: str) -> float:
    """Return the largest error of a right implementation."""
    return ROUNDED_MATMULS if (dtype, platform != "cpu") == ("float32", True) else TOLERANCE[dtype]


def error(
    case: Case, got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], rows: Rows
) -> float:
    """Return the largest error of the case's results; NaN where one of them holds NaN.

    `got` has whole arrays, of which outputs and tangents are known in the rows only.
    """
    chosen = got if case.direction == "gradient" else {n: each[rows] for n, each in got.items()}
    return float(np.max([_distance(chosen[name], expected[name]) for name in expected]))


def _distance(got: np.ndarray, expected: np.ndarray) -> float:
    largest = np.max(np.abs(expected), initial=0)
    difference = np.max(np.abs(got.astype(np.float64) - expected), initial=0)
    return difference / largest if largest > 0 else difference
