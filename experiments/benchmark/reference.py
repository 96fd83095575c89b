"""The float64 reference: a few query rows against all their keys, in NumPy, by closed forms.

    s_j = score(query, key_j),   w = g(s - τ),   output = Σ_j w_j value_j
    ṡ_j = ∂s_j/∂query · q̇ + ∂s_j/∂key_j · k̇_j,   ẇ = J ṡ,   J u = g' ∘ (u - Σ g'u / total)

J is symmetric, so the same product pulls a cotangent of the weights back to the scores. `total` is
Σ g' where the weights sum to one, 1 for softmax (g' = w, with a sink as without), and infinite for
sigmoid, whose threshold is constant.

Independent of attn_jax on purpose: one row at a time, masks as slices, sorts and bisection.
"""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.benchmark.cases import RESULTS, Arrays, Case, Inputs, Rows

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
ROUNDED_MATMULS = 2e-2  # GPUs and TPUs round float32 operands to TF32 or bfloat16 by default


def tolerance(dtype: str, platform: str) -> float:
    """Return the largest error of a right implementation."""
    return ROUNDED_MATMULS if dtype == "float32" and platform != "cpu" else TOLERANCE[dtype]


def error(case: Case, got: Mapping[str, np.ndarray], expected: Arrays, rows: Rows) -> float:
    """Return the largest max |got - expected| / max |expected|; NaN where a result holds NaN.

    Rounding in a sum is proportional to what is summed, not to what happens to remain of it. `got`
    has whole arrays, of which outputs and tangents are known in the rows only.
    """
    chosen = got if case.direction == "gradient" else {n: each[rows] for n, each in got.items()}
    return float(np.max([_distance(chosen[name], expected[name]) for name in expected]))


def _distance(got: np.ndarray, expected: np.ndarray) -> float:
    largest = np.max(np.abs(expected), initial=0)
    difference = np.max(np.abs(got.astype(np.float64) - expected), initial=0)
    return difference / largest if largest > 0 else difference


# Scores: query [d], key [k, d], parameters -> scores [k], ∂s_j/∂query [k, d], ∂s_j/∂key_j [k, d]


def _dot(query: np.ndarray, key: np.ndarray, _: Arrays, scale: float = 1.0) -> tuple:
    return scale * key @ query, scale * key, np.broadcast_to(scale * query, key.shape)


def _cosine(query: np.ndarray, key: np.ndarray, parameters: Arrays) -> tuple:
    query_norm, key_norm = np.linalg.norm(query), np.linalg.norm(key, axis=1, keepdims=True)
    query, key, scale = query / query_norm, key / key_norm, parameters["scale"]
    cosine = (key @ query)[:, None]
    by_query = scale * (key - cosine * query) / query_norm
    by_key = scale * (query - cosine * key) / key_norm
    return scale * cosine[:, 0], by_query, by_key


def _bilinear(query: np.ndarray, key: np.ndarray, parameters: Arrays) -> tuple:
    weight = parameters["weight"]
    return key @ (query @ weight), key @ weight.T, np.broadcast_to(query @ weight, key.shape)


def _additive(query: np.ndarray, key: np.ndarray, parameters: Arrays) -> tuple:
    weight, hidden = parameters["weight"], np.tanh(query + key)
    slope = weight * (1 - hidden**2)
    return hidden @ weight, slope, slope


def _gaussian(query: np.ndarray, key: np.ndarray, parameters: Arrays) -> tuple:
    bandwidth = parameters["bandwidth"]
    difference = (query - key) / bandwidth
    return -np.sum(difference**2, axis=1) / 2, -difference / bandwidth, difference / bandwidth


SCORES: Mapping[str, Callable[..., tuple]] = {
    "scaled-dot": lambda query, key, _: _dot(query, key, _, scale=1 / np.sqrt(len(query))),
    "dot": _dot,
    "cosine": _cosine,
    "bilinear": _bilinear,
    "additive": _additive,
    "gaussian": _gaussian,
}


# Normalizers: scores [k], parameters -> weights [k], g' [k], total


def _softmax(scores: np.ndarray, parameters: Arrays) -> tuple:
    sink = parameters.get("sink", -np.inf)
    top = max(scores.max(), sink)
    powers = np.exp(scores - top)
    weights = powers / (powers.sum() + np.exp(sink - top))
    return weights, weights, 1.0


def _sparsemax(scores: np.ndarray, _: Arrays) -> tuple:
    """Martins & Astudillo 2016, algorithm 1."""
    ordered = np.sort(scores)[::-1]
    sums = np.cumsum(ordered) - 1
    rank = np.flatnonzero(ordered * np.arange(1, len(scores) + 1) > sums)[-1]
    weights = np.maximum(scores - sums[rank] / (rank + 1), 0)
    support = (weights > 0).astype(np.float64)
    return weights, support, support.sum()


def _entmax(scores: np.ndarray, parameters: Arrays) -> tuple:
    """Bisection on τ; g' = w^(2 - α) on the support. (Peters et al. 2019, eq. 10 and 14.)"""
    alpha = float(parameters.get("alpha", 1.5))
    scaled, power = (alpha - 1) * (scores - scores.max()), 1 / (alpha - 1)
    low, high = -1.0, 0.0
    for _ in range(100):
        middle = (low + high) / 2
        heavy = np.sum(np.maximum(scaled - middle, 0) ** power) > 1
        low, high = (middle, high) if heavy else (low, middle)
    weights = np.maximum(scaled - low, 0) ** power
    slope = np.where(weights > 0, np.where(weights > 0, weights, 1) ** (2 - alpha), 0)
    return weights, slope, slope.sum()


def _sigmoid(scores: np.ndarray, parameters: Arrays) -> tuple:
    weights = 1 / (1 + np.exp(-(scores + parameters["bias"])))
    return weights, weights * (1 - weights), np.inf


NORMALIZERS: Mapping[str, Callable[..., tuple]] = {
    "softmax": _softmax,
    "softmax-sink": _softmax,
    "off-by-one": lambda scores, _: _softmax(scores, {"sink": 0.0}),
    "sparsemax": _sparsemax,
    "entmax15": _entmax,
    "entmax": _entmax,
    "sigmoid": _sigmoid,
}


def expected(case: Case, inputs: Inputs, rows: Rows) -> Arrays:
    """Return the case's results in float64.

    Outputs and tangents are those of the rows [r, e]. Gradients have the operands' shapes; the
    cotangent has to be zero outside these rows (`cases.seeded_at`).
    """
    gradient = case.direction == "gradient"
    names = RESULTS[case.direction]
    sizes = [(len(rows[0]), case.shape.value_features)] * len(names)
    results = [np.zeros(size) for size in (case.sizes[:3] if gradient else sizes)]
    group = case.shape.heads // case.shape.key_heads
    for number, (example, query, head) in enumerate(zip(*rows, strict=True)):
        keys = slice(*case.shape.span(query))
        if keys.start == keys.stop:
            continue  # an empty row: zero, and so are its derivatives
        places = [(example, query, head)] + [(example, keys, head // group)] * 2
        into = places if gradient else [number] * len(names)
        for result, place, each in zip(results, into, _row(case, inputs, places), strict=True):
            result[place] += each
    return dict(zip(names, results, strict=True))


def _row(case: Case, inputs: Inputs, places: list) -> tuple:
    """Return the results of one query and its keys."""
    parameters = {name: each.astype(np.float64) for name, each in inputs.parameters.items()}
    query, key, value = _at(inputs.operands, places)
    scores, by_query, by_key = SCORES[case.score](query, key, parameters)
    weights, slope, total = NORMALIZERS[case.normalizer](scores, parameters)

    def through(u: np.ndarray) -> np.ndarray:
        """J u."""
        return slope * (u - slope @ u / total)

    if case.direction == "forward":
        return (weights @ value,)
    if case.direction == "jvp":
        query_dot, key_dot, value_dot = _at(inputs.seed, places)
        weights_dot = through(by_query @ query_dot + np.sum(by_key * key_dot, axis=1))
        return weights @ value, weights_dot @ value + weights @ value_dot
    (cotangent,) = _at(inputs.seed, places[:1])
    scores_bar = through(value @ cotangent)
    return scores_bar @ by_query, scores_bar[:, None] * by_key, np.outer(weights, cotangent)


def _at(arrays: tuple[np.ndarray, ...], places: list) -> list[np.ndarray]:
    return [array[at].astype(np.float64) for array, at in zip(arrays, places, strict=True)]
