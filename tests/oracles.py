"""The equation in float64 loops: one query and one key at a time, masked keys left out.

Names and arguments are attn_jax's. What is an array operation there is a function of one pair here:
a score takes two vectors, a score_mod (score, i, j), a mask (i, j), a normalizer one row of scores.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import numpy as np

INF = math.inf


# Kernels: u = ‖(q - k) / bandwidth‖ -> log K(u)


def _compact(log_kernel):
    return lambda u: log_kernel(u) if u < 1 else -INF


kernels = SimpleNamespace(
    gaussian=lambda u: -u * u / 2,
    boxcar=lambda u: 0.0 if u <= 1 else -INF,
    triangular=_compact(lambda u: math.log1p(-u)),
    epanechnikov=_compact(lambda u: math.log1p(-(u**2))),
    biweight=_compact(lambda u: 2 * math.log1p(-(u**2))),
    triweight=_compact(lambda u: 3 * math.log1p(-(u**2))),
    tricube=_compact(lambda u: 3 * math.log1p(-(u**3))),
    cosine=_compact(lambda u: math.log(math.cos(math.pi * u / 2))),
    logistic=lambda u: math.log(4) - u - 2 * math.log1p(math.exp(-u)),
    laplace=lambda u: -u,
)


# Scores: (query vector, key vector) -> float


class Dot:
    def __call__(self, query, key):
        return sum(query * key)


@dataclass
class ScaledDot:
    scale: float | None = None

    def __call__(self, query, key):
        return sum(query * key) * (len(query) ** -0.5 if self.scale is None else self.scale)


@dataclass
class Cosine:
    scale: float = 1.0

    def __call__(self, query, key):
        return self.scale * sum(query * key) / math.sqrt(sum(query**2) * sum(key**2))


@dataclass
class Bilinear:
    weight: np.ndarray

    def __call__(self, query, key):
        rows, columns = self.weight.shape
        return sum(
            query[a] * self.weight[a, b] * key[b] for a in range(rows) for b in range(columns)
        )


@dataclass
class Additive:
    weight: np.ndarray

    def __call__(self, query, key):
        return sum(self.weight * np.tanh(query + key))


@dataclass
class Kernel:
    kernel: Callable = kernels.gaussian
    bandwidth: np.ndarray | float = 1.0

    def __call__(self, query, key):
        return self.kernel(math.sqrt(sum(((query - key) / self.bandwidth) ** 2)))


# Score mods: (score, i, j) -> score


@dataclass
class Bias:
    bias: np.ndarray

    def __call__(self, score, i, j):
        return score + self.bias[i, j]


@dataclass
class RelativeBias:
    """T5 (Raffel et al. 2020): half the buckets exact distances, the rest logarithmic."""

    table: np.ndarray
    bidirectional: bool = True
    max_distance: int = 128
    offset: int = 0

    def bucket(self, distance):
        buckets, first = len(self.table), 0
        if self.bidirectional:
            buckets //= 2
            first = buckets if distance > 0 else 0
            distance = abs(distance)
        else:
            distance = max(-distance, 0)
        exact = buckets // 2
        if distance < exact:
            return first + distance
        # floor(log(distance/exact) / log(max_distance/exact) · wide), in exact arithmetic
        wide = buckets - exact
        steps = 0
        while steps < wide - 1 and Fraction(distance, exact) ** wide >= Fraction(
            self.max_distance, exact
        ) ** (steps + 1):
            steps += 1
        return first + exact + steps

    def __call__(self, score, i, j):
        return score + self.table[self.bucket(j - i - self.offset)]


@dataclass
class Alibi:
    slope: float
    offset: int = 0

    def __call__(self, score, i, j):
        return score - self.slope * abs(i + self.offset - j)


@dataclass
class SoftCap:
    cap: float

    def __call__(self, score, i, j):
        return self.cap * math.tanh(score / self.cap)


def chain(*score_mods):
    return lambda score, i, j: functools.reduce(lambda s, mod: mod(s, i, j), score_mods, score)


# Masks: (i, j) -> bool, True = may attend


class Mask:
    def __and__(self, other):
        return Where(lambda i, j: self(i, j) and other(i, j))

    def __or__(self, other):
        return Where(lambda i, j: self(i, j) or other(i, j))

    def __invert__(self):
        return Where(lambda i, j: not self(i, j))

    def dense(self, q, k):
        return np.array([[self(i, j) for j in range(k)] for i in range(q)], bool).reshape(q, k)


@dataclass
class Where(Mask):
    rule: Callable

    def __call__(self, i, j):
        return self.rule(i, j)


@dataclass
class Causal(Mask):
    offset: int = 0

    def __call__(self, i, j):
        return j <= i + self.offset


@dataclass
class Window(Mask):
    left: int | None
    right: int | None
    offset: int = 0

    def __call__(self, i, j):
        i = i + self.offset
        far_left = self.left is not None and j < i - self.left
        far_right = self.right is not None and j > i + self.right
        return not far_left and not far_right


@dataclass
class Padding(Mask):
    key_length: int
    query_length: int | None = None

    def __call__(self, i, j):
        return j < self.key_length and (self.query_length is None or i < self.query_length)


@dataclass
class Segments(Mask):
    query_ids: np.ndarray
    key_ids: np.ndarray

    def __call__(self, i, j):
        return bool(self.query_ids[i] == self.key_ids[j])


@dataclass
class Prefix(Mask):
    length: int

    def __call__(self, i, j):
        return j < self.length


@dataclass
class Dense(Mask):
    array: np.ndarray

    def __call__(self, i, j):
        return bool(self.array[i, j])


# Normalizers: one row of allowed, finite scores (at least one) -> weights


@dataclass
class Softmax:
    sink: float | None = None

    def __call__(self, scores):
        terms = [*scores] if self.sink is None else [*scores, float(self.sink)]
        powers = [math.exp(s - max(terms)) for s in terms]
        return [power / math.fsum(powers) for power in powers[: len(scores)]]

    def logsumexp(self, scores):
        terms = [*scores] if self.sink is None else [*scores, float(self.sink)]
        top = max(terms, default=-INF)
        return top if top == -INF else top + math.log(math.fsum(math.exp(s - top) for s in terms))


class Sparsemax:
    """Martins & Astudillo 2016, algorithm 1."""

    def __call__(self, scores):
        shifted = [s - max(scores) for s in scores]
        total = 0.0
        for rank, s in enumerate(sorted(shifted, reverse=True), 1):
            total += s
            if 1 + rank * s > total:
                threshold = (total - 1) / rank
        return [max(s - threshold, 0.0) for s in shifted]


@functools.lru_cache(maxsize=4096)
def exact_entmax(scores, alpha, digits):
    """Bisection on τ of Σ [(α-1)s - τ]₊^{1/(α-1)} = 1 (Peters et al. 2019, eq. 10) in mpmath.

    An entry at distance ε from the threshold weighs ε^{1/(α-1)}: sixteen right digits of the weight
    need (α-1) times as many of τ, which float64 does not have for a large α.
    """
    with mpmath.workdps(digits):
        power = 1 / (mpmath.mpf(alpha) - 1)
        scaled = [(mpmath.mpf(s) - max(scores)) / power for s in scores]
        low, high = mpmath.mpf(-1), mpmath.mpf(0)
        for _ in range(int(digits * 3.33) + 2):
            middle = (low + high) / 2
            excess = sum((z - middle) ** power for z in scaled if z > middle) > 1
            low, high = (middle, high) if excess else (low, middle)
        return [(z - low) ** power if z > low else mpmath.mpf(0) for z in scaled]


@dataclass
class Entmax:
    alpha: float

    def __call__(self, scores):
        alpha = float(self.alpha)
        digits = 20 + math.ceil(20 * max(alpha - 1, 1))
        return [float(w) for w in exact_entmax(tuple(map(float, scores)), alpha, digits)]


@dataclass
class Sigmoid:
    bias: float = 0.0

    def __call__(self, scores):
        scores = [float(s + self.bias) for s in scores]
        return [
            1 / (1 + math.exp(-s)) if s > 0 else math.exp(s) / (1 + math.exp(s)) for s in scores
        ]


def normalize(normalizer, scores, where=None):
    """Weights of rows [..., k]: only entries that are allowed and above -inf take part."""
    scores = np.asarray(scores, np.float64)
    where = np.broadcast_to(True if where is None else where, scores.shape)
    weights = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        allowed = where[row] & (scores[row] != -INF)
        if np.isnan(scores[row][allowed]).any():
            weights[row][allowed] = np.nan
        elif allowed.any():
            weights[row][allowed] = normalizer(scores[row][allowed])
    return weights


# Functions: as in attn_jax

SCALED_DOT, SOFTMAX = ScaledDot(), Softmax()


def masked_scores(query, key, score, score_mod, mask):
    """Scores [q, k] where the mask allows, -inf elsewhere; a masked pair is never even scored."""
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    scores = np.full((len(query), len(key)), -INF)
    for i, j in np.ndindex(scores.shape):
        if mask is None or mask(i, j):
            scores[i, j] = score(query[i], key[j])
            if score_mod is not None:
                scores[i, j] = score_mod(scores[i, j], i, j)
    return scores


def attention_weights(
    query, key, *, score=SCALED_DOT, normalizer=SOFTMAX, score_mod=None, mask=None
):
    return normalize(normalizer, masked_scores(query, key, score, score_mod, mask))


def attention(query, key, value, **slots):
    weights, value = attention_weights(query, key, **slots), np.asarray(value, np.float64)
    output = np.zeros((len(query), value.shape[1]))
    for i, j in zip(*np.nonzero(weights), strict=True):
        output[i] += weights[i, j] * value[j]
    return output


def attention_and_logsumexp(query, key, value, *, normalizer=SOFTMAX, **slots):
    options = {"score": SCALED_DOT, "score_mod": None, "mask": None} | slots
    rows = masked_scores(query, key, **options)
    output = attention(query, key, value, normalizer=normalizer, **slots)
    return output, np.array([normalizer.logsumexp(row) for row in rows])


def merge(outputs, logsumexps):
    output, logsumexp = np.zeros(outputs.shape[1:]), np.full(outputs.shape[1], -INF)
    for i in range(len(logsumexp)):
        parts = [p for p in range(len(outputs)) if logsumexps[p, i] > -INF]
        if parts:
            logsumexp[i] = np.logaddexp.reduce(logsumexps[parts, i])
            output[i] = sum(
                math.exp(logsumexps[p, i] - logsumexp[i]) * outputs[p, i] for p in parts
            )
    return output, logsumexp
