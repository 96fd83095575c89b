"""Cases: one shape, score, normalizer, dtype and direction; their inputs, and their operations.

The arrays of a score or a normalizer are arguments of what is timed, never constants in it: a
bandwidth, a bilinear weight or entmax's alpha costs what it costs when it is learned.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
import numpy as np

from experiments.benchmark.shapes import Shape

Arrays = dict[str, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # index arrays into [B, T, N]

DTYPES = ("float32", "bfloat16", "float16", "float64")
RESULTS = {
    "forward": ("output",),
    "gradient": ("query", "key", "value"),  # of Σ output · cotangent
    "jvp": ("output", "tangent"),
}
PASSES = {"forward": (1, 1), "gradient": (4, 3), "jvp": (3, 3)}  # of scores, of sums over values
PER_FEATURE = {"additive": 4, "gaussian": 3}  # operations, else 2; tanh counts as one

# the arrays of each: name → (shape, rng) -> array; the slots are those of `BY_NAME` in attn_jax
SCORES = {
    "scaled-dot": {},
    "dot": {},
    "cosine": {"scale": lambda shape, rng: 10.0},
    "bilinear": {
        "weight": lambda shape, rng: rng.normal(size=(shape.features,) * 2) / shape.features
    },
    "additive": {"weight": lambda shape, rng: rng.normal(size=shape.features)},
    "gaussian": {"bandwidth": lambda shape, rng: 0.5},
}
NORMALIZERS = {
    "softmax": {},
    "softmax-sink": {"sink": lambda shape, rng: 0.5},
    "off-by-one": {},
    "sparsemax": {},
    "entmax15": {},
    "entmax": {"alpha": lambda shape, rng: 1.7},
    "sigmoid": {"bias": lambda shape, rng: -math.log(shape.keys)},  # Ramapuram et al. 2025
}


@dataclass(frozen=True)
class Case:
    """What is computed."""

    shape: Shape
    score: str
    normalizer: str
    dtype: str
    direction: str

    @property
    def names(self) -> dict[str, str]:
        """The case as the names that a row of the results carries."""
        return vars(self) | {"shape": self.shape.name}

    def __str__(self) -> str:
        return " ".join(self.names.values())

    @property
    def flop(self) -> int:
        """The operations of the case, by one count for all implementations.

        Per pair that is not masked: the score (2 d for a dot product, 3 d for a squared distance,
        4 d for an additive one) and the weighted sum, 2 e; nothing for the normalizer. A gradient
        counts the forward pass and one recomputation of the scores, 3.5 × forward for dot products
        (FlashAttention's count: Dao 2023, sec. 4.1); a jvp its output and its tangent, 3 ×.
        """
        shape = self.shape
        score = PER_FEATURE.get(self.score, 2) * shape.features * shape.pairs
        score += 2 * shape.queries * shape.features**2 if self.score == "bilinear" else 0
        scores, sums = PASSES[self.direction]
        per_head = scores * score + sums * 2 * shape.value_features * shape.pairs
        return shape.batch * shape.heads * per_head

    @property
    def least_bytes(self) -> int:
        """The bytes that any implementation must move: every argument and result once."""
        *operands, output = (math.prod(sizes) for sizes in self.sizes)
        moved = {
            "forward": sum(operands) + output,
            "gradient": 2 * sum(operands) + output,
            "jvp": 2 * (sum(operands) + output),
        }
        return moved[self.direction] * np.dtype(self.dtype).itemsize

    @property
    def sizes(self) -> list[tuple[int, ...]]:
        """The shapes of query [B, T, N, H], key [B, S, K, H], value [B, S, K, E] and output."""
        shape = self.shape
        query = (shape.batch, shape.queries, shape.heads)
        key = (shape.batch, shape.keys, shape.key_heads)
        width, value_width = (shape.features,), (shape.value_features,)
        return [query + width, key + width, key + value_width, query + value_width]


class Inputs(NamedTuple):
    """Arguments of what is timed.

    The seed is nothing forward, (cotangent,) for the gradient, and for the jvp one tangent for each
    of the operands.
    """

    operands: tuple[np.ndarray, ...]  # query, key, value
    parameters: Arrays  # of score and normalizer
    seed: tuple[np.ndarray, ...]


def draw(case: Case) -> Inputs:
    """Return standard normal operands and seed, and the slots' arrays: the same at each call."""
    shape, rng = case.shape, np.random.default_rng(0)

    def normal(sizes: Iterable[tuple[int, ...]]) -> tuple[np.ndarray, ...]:
        single = np.float64 if case.dtype == "float64" else np.float32
        return tuple(rng.standard_normal(size, single).astype(case.dtype) for size in sizes)

    *operands, output = case.sizes
    seeds = {"forward": (), "gradient": (output,), "jvp": operands}
    drawn = normal(operands)
    arrays = SCORES[case.score] | NORMALIZERS[case.normalizer]
    parameters = {n: np.asarray(each(shape, rng)).astype(case.dtype) for n, each in arrays.items()}
    return Inputs(drawn, parameters, normal(seeds[case.direction]))


def sample_rows(case: Case, most: int = 32) -> Rows:
    """Return a random sample of query rows, each an index (example, query, head)."""
    grid = case.sizes[0][:3]
    count = math.prod(grid)
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
