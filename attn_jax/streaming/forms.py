"""Normalizers as the streaming implementation needs them: one weight at a time.

Every normalizer here is w_ij = g(s_ij - r_i, u_i): `reference` r is a score of the row, `level` u
what the row has in common.

| normalizer | r | u | g(z, u) |
|---|---|---|---|
| Softmax | largest score, sink | Σ exp(s - r) | exp(z) / u |
| Entmax α ≤ 2, Sparsemax | largest score | its weight | [u^(α - 1) + (α - 1) z]₊^(1/(α - 1)) |
| Entmax α > 2 or traced | score of a supported key | its weight | the same |
| Sigmoid | 0 | - | 1 / (1 + exp(-z - bias)) |

The weights of a row and `rest`, the weight that no key gets (a sink's), sum to one: that defines u,
and its derivative. Softmax and Sigmoid take the blocks of keys one after the other; Entmax seeks
its root in the scores of some queries and all keys, which `rows` gets at once. `offsets` are
parameters that are added to scores, and widen their dtype as they do when dense.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from attn_jax import normalizers
from attn_jax.checks import require
from attn_jax.thresholds import entmax_rows, entmax_weight


class RowState(NamedTuple):
    """What a row's weights have in common.

    The pivot says whose score the reference is, which in another program may round otherwise: the
    index of that key where the reference moves with it, else the index at which the block of keys
    with the largest score starts. -1: no key's.
    """

    reference: Float[Array, " q"]
    level: Float[Array, " q"]
    pivot: Int[Array, " q"] | None = None


Scores = Float[Array, "q k"]


class SoftmaxForm:
    """Online softmax: (largest so far, its block, sum so far). (Milakov & Gimelshein 2018.)"""

    online = True
    has_level = True
    moves = False

    def __init__(self, normalizer: normalizers.Softmax):
        self.sink = normalizer.sink
        self.offsets = [] if self.sink is None else [self.sink]

    def start(self, rows: int, dtype: Any) -> tuple[Array, Array, Array]:
        """Before the first block: the sink, or nothing."""
        nowhere = jnp.full(rows, -1)
        if self.sink is None:
            return jnp.full(rows, -jnp.inf, dtype), nowhere, jnp.zeros(rows, dtype)
        sink = jnp.full(rows, jax.lax.stop_gradient(self.sink), dtype)
        return sink, nowhere, (sink != -jnp.inf).astype(dtype)

    def step(
        self, state: Any, scores: Scores, first_key: Int[ArrayLike, ""]
    ) -> tuple[Any, Scores, Float[Array, " q"]]:
        """The next state, the block's weights up to a factor, and the factor for earlier ones."""
        top, pivot, total = state
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        pivot = jnp.where(new_top > top, first_key, pivot)
        shift = jnp.where(new_top == -jnp.inf, 0.0, new_top)
        weights = jnp.exp(scores - shift[:, None])
        # what an infinite sink has taken stays its own: ∞ - ∞ is 0 here
        factor = jnp.exp(jnp.where(top == shift, 0.0, top - shift))
        return (new_top, pivot, total * factor + jnp.sum(weights, axis=1)), weights, factor

    def finish(self, state: Any) -> tuple[RowState, Float[Array, " q"]]:
        """The row state, and the factor that makes the weights sum to one."""
        top, pivot, total = state
        return RowState(jnp.where(top == -jnp.inf, 0.0, top), total, pivot), 1 / _positive(total)

    def weight(self, z: Scores, level: Float[Array, "q 1"]) -> Scores:
        """exp(z) / level."""
        return jnp.exp(z) * (1 / _positive(level))

    def rest(self, row: RowState) -> Float[Array, "..."] | None:
        """The sink's weight."""
        if self.sink is None:
            return None
        infinite = jnp.isinf(self.sink)
        z = jnp.where(infinite, 0.0, jnp.where(infinite, 0.0, self.sink) - row.reference)
        share = jnp.where(infinite, jnp.where(self.sink > 0, 1.0, 0.0), jnp.exp(z))
        return share / _positive(row.level)

    def level_slopes(self, row: RowState, output: Array) -> tuple[Array, Array]:
        """d/d level of the output and of the sum of all weights: no pass over the keys needed."""
        inverse = 1 / _positive(row.level)
        return -output * inverse[..., None], -inverse

    def logsumexp(self, row: RowState) -> Float[Array, "..."]:
        """Log of the softmax denominator, the sink included."""
        empty = row.level == 0
        value = row.reference + jnp.log(jnp.where(empty, 1.0, row.level))
        value = jnp.where(row.reference == jnp.inf, jnp.inf, value)
        return jnp.where(empty, -jnp.inf, value)


class SigmoidForm:
    """Each weight by itself."""

    online = True
    has_level = False
    moves = False

    def __init__(self, normalizer: normalizers.Sigmoid):
        self.bias = normalizer.bias
        self.offsets = [self.bias]

    def start(self, rows: int, dtype: Any) -> Float[Array, " q"]:
        """Rows have nothing in common."""
        return jnp.zeros(rows, dtype)

    def step(
        self, state: Any, scores: Scores, first_key: Int[ArrayLike, ""]
    ) -> tuple[Any, Scores, None]:
        """The block's weights."""
        del first_key
        masked = scores == -jnp.inf
        weights = self.weight(jnp.where(masked, 0.0, scores), None)
        return state, jnp.where(masked, 0.0, weights), None

    def finish(self, state: Any) -> tuple[RowState, None]:
        """A reference of 0."""
        return RowState(state, jnp.ones_like(state)), None

    def weight(self, z: Scores, level: Any) -> Scores:
        """1 / (1 + exp(-z - bias))."""
        return jax.nn.sigmoid(z + self.bias)


class EntmaxForm:
    """Entmax of rows whose scores are there at once; their weights one by one afterwards."""

    online = False
    has_level = True
    offsets = ()

    def __init__(self, alpha: Any):
        self.alpha = alpha
        self.known = float(alpha) - 1 if isinstance(alpha, (int, float)) else None
        self.moves = self.known is None or self.known > 1

    def rows(self, scores: Scores, block: int) -> tuple[RowState, Scores]:
        """The row state and the weights of whole rows, in blocks of so many keys."""
        weights = jnp.where(scores == -jnp.inf, 0.0, entmax_rows(scores, self.alpha))
        empty = jnp.all(scores == -jnp.inf, axis=1)
        if not self.moves:
            tops = jnp.max(scores.reshape(scores.shape[0], -1, block), axis=2)
            top, pivot = jnp.max(tops, axis=1), jnp.argmax(tops, axis=1) * block
            reference = jnp.where(empty, 0.0, top)
            level = jnp.where(empty, 1.0, jnp.max(weights, axis=1))
            return RowState(reference, level, jnp.where(empty, -1, pivot)), weights
        smallest = jnp.where(weights > 0, weights, jnp.inf)
        steep = self.alpha > 2
        pivot = jnp.where(steep, jnp.argmin(smallest, axis=1), jnp.argmax(weights, axis=1))
        at = (jnp.arange(scores.shape[0]), pivot)
        reference, level = (jnp.where(empty, n, x[at]) for n, x in ((0.0, scores), (1.0, weights)))
        return RowState(reference, level, jnp.where(empty, -1, pivot)), weights

    def weight(self, z: Scores, level: Float[Array, "q 1"]) -> Scores:
        """[level^a + a z]₊^(1/a), a = alpha - 1."""
        a = jnp.asarray(self.known if self.known is not None else self.alpha - 1, z.dtype)
        return entmax_weight(self.known, z, jnp.broadcast_to(level, z.shape), a)

    def rest(self, row: RowState) -> None:
        """Nothing: the keys get all."""


def _positive(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x, and 1 for an empty row, whose weights are 0 whatever they are divided by."""
    return jnp.where(x == 0, 1.0, x)


Form = SoftmaxForm | SigmoidForm | EntmaxForm

FORMS = {
    normalizers.Softmax: SoftmaxForm,
    normalizers.Sigmoid: SigmoidForm,
    normalizers.Sparsemax: lambda normalizer: EntmaxForm(2),
    normalizers.Entmax: lambda normalizer: EntmaxForm(normalizer.alpha),
}

# the plain functions that are slots in other words
SLOTS = {
    normalizers.softmax: normalizers.Softmax(),
    normalizers.sigmoid: normalizers.Sigmoid(),
    normalizers.sparsemax: normalizers.Sparsemax(),
    normalizers.entmax15: normalizers.Entmax(1.5),
    normalizers.entmax: normalizers.Entmax(),
}


def has_form(normalizer: normalizers.Normalizer) -> bool:
    """Whether a normalizer streams."""
    return type(normalizer) in FORMS or normalizer in tuple(SLOTS)


def is_online(normalizer: normalizers.Normalizer) -> bool:
    """Whether a normalizer streams, and takes the blocks of keys one after the other."""
    online = (normalizers.Softmax, normalizers.Sigmoid)
    return has_form(normalizer) and isinstance(as_slot(normalizer), online)


def as_slot(normalizer: normalizers.Normalizer) -> normalizers.Normalizer:
    """The normalizer as a slot that streams.

    Raises:
      ValueError: it has no streaming form; the message names the two ways out.
    """
    if type(normalizer) in FORMS:
        return normalizer
    names = ", ".join(each.__name__ for each in FORMS)
    ways = f"be one of {names} to stream, or come with implementation='dense'"
    require(has_form(normalizer), "normalizer", ways, normalizer)
    return SLOTS[normalizer]


def form(slot: normalizers.Normalizer) -> Form:
    """The streaming form of a slot."""
    return FORMS[type(slot)](slot)
