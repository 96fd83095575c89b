"""Random inputs of a case, the same for every implementation."""

from typing import NamedTuple

import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
import numpy as np

from experiments.benchmark.cases import Case
from experiments.benchmark.slots import NORMALIZERS, SCORES, Arrays

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # index arrays into [B, T, N]


class Inputs(NamedTuple):
    """Arguments of what is timed.

    The seed is nothing forward, (cotangent,) for the gradient, and for the jvp one tangent for each
    of the operands.
    """

    operands: tuple[np.ndarray, ...]  # query [B, T, N, H], key [B, S, K, H], value [B, S, K, E]
    parameters: Arrays  # of score and normalizer
    seed: tuple[np.ndarray, ...]


def draw(case: Case) -> Inputs:
    """Return standard normal operands and seed, and the slots' arrays."""
    shape, rng = case.shape, np.random.default_rng(0)
    query = (shape.batch, shape.queries, shape.heads)
    key = (shape.batch, shape.keys, shape.key_heads)
    width, value_width = (shape.features,), (shape.value_features,)

    def normal(*sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        single = np.float64 if case.dtype == "float64" else np.float32
        return tuple(rng.standard_normal(size, single).astype(case.dtype) for size in sizes)

    operands = normal(query + width, key + width, key + value_width)
    seeds = {
        "forward": (),
        "gradient": (query + value_width,),
        "jvp": tuple(each.shape for each in operands),
    }
    drawn = SCORES[case.score].draw(shape, rng) | NORMALIZERS[case.normalizer].draw(shape, rng)
    parameters = {name: np.asarray(array).astype(case.dtype) for name, array in drawn.items()}
    return Inputs(operands, parameters, normal(*seeds[case.direction]))


def sample_rows(case: Case, most: int = 32) -> Rows:
    """Return a random sample of query rows, each an index (example, query, head)."""
    grid = (case.shape.batch, case.shape.queries, case.shape.heads)
    count = int(np.prod(grid))
    chosen = np.random.default_rng(1).choice(count, min(most, count), replace=False)
    return np.unravel_index(chosen, grid)


def seeded_at(case: Case, inputs: Inputs, rows: Rows) -> Inputs:
    """Return the inputs with a cotangent that is zero but in these rows.

    The gradient is then a sum over these rows alone, exact for every key and value.
    """
    if case.direction != "gradient":
        return inputs
    cotangent = np.zeros_like(inputs.seed[0])
    cotangent[rows] = inputs.seed[0][rows]
    return inputs._replace(seed=(cotangent,))
