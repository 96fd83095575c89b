"""Scores: how well a query and a key agree. `(query [q, d], key [k, d]) -> scores [q, k]`.

Scores compare, they do not project: linear maps belong to modules and are applied once. A plain
function of the same signature is a score; `pairwise` lifts a function of one query and one key
vector. Half-precision inputs are compared in float32.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax import kernels
from attn_jax.checks import require, require_function, require_positive, require_scalar
from attn_jax.precision import accumulate, accumulation_dtype, comparable, difference
from attn_jax.slots import slot, static

FEW = 8  # features that are compared one by one

Score = Callable[[Num[Array, "q d"], Num[Array, "k c"]], Float[Array, "q k"]]


@slot
class Dot:
    """query · key. (Luong, Pham & Manning 2015, "dot".)

    >>> Dot()(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        query, key = accumulate(query, key)
        return jnp.einsum("qd,kd->qk", query, key)

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        _same_features(query, key)


@slot
class ScaledDot:
    """scale · query · key, scale = 1/√d by default. (Vaswani et al. 2017, eq. 1.)

    >>> ScaledDot()(jnp.array([[1.0, 2.0, 0.0, 0.0]]), jnp.array([[3.0, 4.0, 0.0, 0.0]])).tolist()
    [[5.5]]
    """

    scale: Float[ArrayLike, "..."] | int | None = None

    def __post_init__(self):
        if self.scale is not None:
            require_scalar(self.scale, "scale")

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        query, key = accumulate(query, key)
        scale = 1 / math.sqrt(max(query.shape[1], 1)) if self.scale is None else self.scale
        return jnp.einsum("qd,kd->qk", query * scale, key)

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        _same_features(query, key)


@slot
class Cosine:
    """scale · query · key / (‖query‖ ‖key‖); a zero vector scores 0. (Graves et al. 2014, eq. 6.)

    >>> Cosine()(jnp.array([[3.0, 4.0]]), jnp.array([[6.0, 8.0], [0.0, 0.0]])).round(6).tolist()
    [[1.0, 0.0]]
    """

    scale: Float[ArrayLike, "..."] | int = 1.0

    def __post_init__(self):
        require_scalar(self.scale, "scale")

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        query, key = accumulate(query, key)
        return self.scale * jnp.einsum("qd,kd->qk", _unit(query), _unit(key))

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        _same_features(query, key)


@slot
class Bilinear:
    """queryᵀ weight key, weight [d, d']. (Luong, Pham & Manning 2015, "general".)

    >>> Bilinear(jnp.array([[2.0], [1.0]]))(jnp.array([[1.0, 3.0]]), jnp.array([[10.0]])).tolist()
    [[50.0]]
    """

    weight: Float[ArrayLike, "... d c"]

    def __post_init__(self):
        require(jnp.ndim(self.weight) == 2, "weight", "have shape [d, d']", self.weight)

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k c"]
    ) -> Float[Array, "q k"]:
        query, key, weight = accumulate(query, key, self.weight)
        return jnp.einsum("qd,dc,kc->qk", query, weight, key)

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        require(
            self.weight.shape == (query.shape[1], key.shape[1]),
            "weight",
            "have shape [query features, key features]",
            f"weight {self.weight.shape}, query {query.shape}, key {key.shape}",
        )


@slot
class Additive:
    """weight · tanh(query + key) on already projected vectors. (Bahdanau et al. 2014, A.1.2.)

    In the paper's symbols weight is v_a, query W_a s and key U_a h.

    >>> Additive(jnp.array([1.0, 2.0]))(jnp.zeros((1, 2)), jnp.zeros((3, 2))).tolist()
    [[0.0, 0.0, 0.0]]
    """

    weight: Float[ArrayLike, "... d"]

    def __post_init__(self):
        require(jnp.ndim(self.weight) == 1, "weight", "have shape [d]", self.weight)

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        query, key, weight = accumulate(query, key, self.weight)
        return jnp.einsum("qkd,d->qk", jnp.tanh(query[:, None, :] + key[None, :, :]), weight)

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        _same_features(query, key)
        require(
            self.weight.shape == (query.shape[1],),
            "weight",
            "have one entry per feature",
            f"weight {self.weight.shape}, query {query.shape}",
        )


@slot
class Kernel:
    """log K(‖(query - key) / bandwidth‖). (Nadaraya 1964; Watson 1964.)

    Softmax of it is the Nadaraya-Watson weight K / ΣK. `kernel` comes from `attn_jax.kernels` or
    is a function u ↦ log K(u). The bandwidth is positive: one number, or one for each feature [d].
    Differences are taken before they are squared, those of integers as integers, so data far from
    the origin keep their distances.

    >>> Kernel(bandwidth=2.0)(jnp.array([[0.0]]), jnp.array([[1.0], [4.0]])).tolist()
    [[-0.125, -2.0]]
    """

    kernel: Callable = static(default=kernels.gaussian)
    bandwidth: Float[ArrayLike, "..."] | Float[ArrayLike, "... d"] | int = 1.0

    def __post_init__(self):
        require_function(self.kernel, "kernel", "a function u -> log K(u)")
        require(
            jnp.ndim(self.bandwidth) <= 1,
            "bandwidth",
            "be one number or one for each feature",
            self.bandwidth,
        )
        require_positive(self.bandwidth, "bandwidth")

    def __call__(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        return kernels.of_squared_distance(self.kernel, self.squared_distance(query, key))

    def squared_distance(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, "q k"]:
        """‖(query - key) / bandwidth‖² of every pair."""
        dtype = accumulation_dtype(query, key, self.bandwidth)
        query, key = comparable(jnp.asarray(query), jnp.asarray(key), self.bandwidth)
        bandwidth = jnp.broadcast_to(jnp.asarray(self.bandwidth, dtype), query.shape[1:])
        if query.shape[1] > FEW:
            far, squares = _squares(query[:, None, :], key[None, :, :], bandwidth[None, None, :])
            return jnp.where(jnp.any(far, axis=-1), jnp.inf, jnp.sum(squares, axis=-1))
        # one feature after the other never holds [q, k, d], and is several times as fast
        near, any_far = jnp.zeros((), dtype), False
        for feature in range(query.shape[1]):
            columns = query[:, None, feature], key[None, :, feature]
            far, square = _squares(*columns, bandwidth[feature])
            near, any_far = near + square, far | any_far
        return jnp.broadcast_to(jnp.where(any_far, jnp.inf, near), (query.shape[0], key.shape[0]))

    def check(self, query: Array, key: Array) -> None:
        """Raise ValueError where the slot does not fit the arrays."""
        _same_features(query, key)
        shape = jnp.shape(self.bandwidth)
        require(
            shape in ((), (query.shape[1],)),
            "bandwidth",
            "be one number or one for each feature",
            f"bandwidth {shape}, query {query.shape}",
        )


PRODUCTS = (Dot, ScaledDot, Cosine, Bilinear)  # of matrices: one number of a pair is all they hold

# from a name to what makes the score of its arrays; other kernels are in `kernels.BY_NAME`
BY_NAME: dict[str, Callable[..., Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "bilinear": Bilinear,
    "additive": Additive,
    "gaussian": functools.partial(Kernel, kernels.gaussian),
}


def pairwise(f: Callable[[Num[Array, " d"], Num[Array, " c"]], Float[Array, ""]]) -> Score:
    """Lift a function of one query vector and one key vector to a score.

    >>> manhattan = pairwise(lambda query, key: -jnp.abs(query - key).sum())
    >>> manhattan(jnp.array([[0.0, 0.0]]), jnp.array([[1.0, 2.0]])).tolist()
    [[-3.0]]
    """
    require_function(f, "f", "a function of one query and one key vector")
    return jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None))


def compared(
    score: Score, query: Num[Array, "q d"], key: Num[Array, "k c"]
) -> tuple[Num[Array, "q d"], Num[Array, "k c"]]:
    """Query and key as the score gets them: accumulated, for a `Kernel` integers as they are."""
    return comparable(query, key) if isinstance(score, Kernel) else accumulate(query, key)


def _squares(
    query: Num[Array, "..."], key: Num[Array, "..."], bandwidth: Float[Array, "..."]
) -> tuple[Array, Array]:
    """((query - key) / bandwidth)², and whether that overflows (then 0 stands for it).

    Such a pair is infinitely far, and must not put ∞ · 0 into the derivative of a score that a mask
    deletes.
    """
    apart = difference(query, key).astype(bandwidth.dtype)
    limit = math.sqrt(float(jnp.finfo(apart.dtype).max)) / 4
    far = jnp.abs(apart) > limit * bandwidth
    return far, jnp.square(jnp.where(far, 0.0, apart) / bandwidth)


def _unit(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """x / ‖x‖ per row, 0 with derivative 0 for a zero row; huge and tiny rows do not overflow."""
    # Dividing by a constant first does not change the direction, so its derivative is not needed.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=1, keepdims=True, initial=0.0))
    zero = largest == 0
    _, exponent = jnp.frexp(jnp.where(zero, 1.0, largest))
    halves = (exponent // 2, exponent - exponent // 2)  # 1 / largest itself may be flushed to 0
    for half in halves:
        x = x * jnp.ldexp(jnp.ones_like(largest), -half)
    x = jnp.where(zero, 0.0, x)
    square = jnp.sum(jnp.square(x), axis=1, keepdims=True)
    return x / jnp.sqrt(jnp.where(zero, 1.0, square))


def _same_features(query: Array, key: Array) -> None:
    require(
        query.shape[1] == key.shape[1],
        "query and key",
        "have the same number of features",
        f"query {query.shape}, key {key.shape}",
    )
