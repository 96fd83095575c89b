"""Multi-head attention with any slots, and a cache of keys and values for decoding."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from attn_jax import masks, regression
from attn_jax.attention import attention, attention_weights
from attn_jax.checks import require
from attn_jax.heads import loops, over_heads
from attn_jax.nn.attention import held
from attn_jax.nn.recurrent import require_rate
from attn_jax.normalizers import Softmax
from attn_jax.position_encodings import alibi_slopes, rotated
from attn_jax.recurrence import affine
from attn_jax.score_mods import Alibi, ScoreMod, chain
from attn_jax.scores import ScaledDot, Score
from attn_jax.streaming import size_for_heads

Positions = Literal["rotary", "alibi"]


class Cache(NamedTuple):
    """Keys and values of the positions so far; those from `used` on are free."""

    key: Float[Array, "b s k d"]
    value: Float[Array, "b s k e"]
    used: Int[Array, ""]


class MultiHeadAttention(nnx.Module):
    """Project to heads, attend, project back. (Vaswani et al. 2017, §3.2.2.)

    With the defaults it is `flax.nnx.MultiHeadAttention`: with the same weights, the same numbers.

    Args:
      features: of the inputs, and of the outputs if `out_features` is None.
      heads: N. key_value_heads: K, which divides N; None: N. (Grouped heads: Ainslie et al. 2023.)
      memory_features: of what is attended to, in cross-attention; None: `features`.
      head_features: of a head's queries and keys; None: features / heads.
      value_features: of a head's values; None: `head_features`.
      out_features: of the outputs.
      score, normalizer, score_mod, mask: slots, the same for all heads.
      positions: "rotary" turns queries and keys by their positions, "alibi" lowers scores with the
        distance, each head by its own slope.
      normalize_query_key: layer norm of each head's queries and keys. (Henry et al. 2020.)
      bias: whether the projections have one.
      dropout: rate on weights, in training.
      implementation: as in `attn_jax.attention`.
      dtype: of the computation; None: of inputs and parameters.
      rngs: a seed for the parameters.

    >>> layer = MultiHeadAttention(8, 2, mask=masks.Causal(), rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 5, 8))).shape, layer.weights(jnp.ones((1, 5, 8))).shape
    ((1, 5, 8), (1, 2, 5, 5))
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        key_value_heads: int | None = None,
        memory_features: int | None = None,
        head_features: int | None = None,
        value_features: int | None = None,
        out_features: int | None = None,
        score: Score = ScaledDot(),
        normalizer: Any = Softmax(),
        score_mod: ScoreMod | None = None,
        mask: masks.MaskFunction | None = None,
        positions: Positions | None = None,
        normalize_query_key: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        implementation: str = "auto",
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        key_value_heads = key_value_heads or heads
        require(heads % key_value_heads == 0, "key_value_heads", f"divide {heads}", key_value_heads)
        divides = head_features is not None or features % heads == 0
        require(divides, "heads", f"divide features, {features}, without head_features", heads)
        known = positions in (None, "rotary", "alibi")
        require(known, "positions", "be 'rotary', 'alibi' or None", repr(positions))
        require_rate(dropout)
        head_features = head_features or features // heads
        value_features = value_features or head_features
        even = positions != "rotary" or head_features % 2 == 0
        require(even, "head_features", "be even for rotary positions", head_features)
        self.heads, self.key_value_heads = heads, key_value_heads
        self.positions, self.dropout, self.implementation = positions, dropout, implementation
        self.dtype = dtype
        self._score, self._normalizer = held(score), held(normalizer)
        self._score_mod, self._mask = held(score_mod), held(mask)
        memory = memory_features or features

        def projection(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=bias, param_dtype=float, rngs=rngs)

        self.query = projection(features, heads * head_features)
        self.key = projection(memory, key_value_heads * head_features)
        self.value = projection(memory, key_value_heads * value_features)
        self.out = projection(heads * value_features, out_features or features)
        self.query_norm = self.key_norm = nnx.data(None)
        if normalize_query_key:
            norm = {"use_bias": False, "param_dtype": float, "rngs": rngs}
            self.query_norm = nnx.LayerNorm(head_features, **norm)
            self.key_norm = nnx.LayerNorm(head_features, **norm)

    def __call__(
        self,
        inputs: Float[ArrayLike, "b q d"],
        memory: Float[ArrayLike, "b k c"] | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b q o"]:
        """Attend to the inputs themselves, or to a memory.

        Args:
          inputs: what asks.
          memory: what is attended to; None: the inputs.
          mask: True = may attend, beside the module's own; broadcasts to [b, heads, q, k].
          lengths: how many rows of the memory each example has.
          rng: for dropout, in training.
        """
        query, key, value = self._projected(inputs, memory)
        return self._joined(self._attend(query, key, value, mask, lengths, rng=rng))

    def weights(
        self,
        inputs: Float[ArrayLike, "b q d"],
        memory: Float[ArrayLike, "b k c"] | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
    ) -> Float[Array, "b n q k"]:
        """Each head's weights."""
        query, key, value = self._projected(inputs, memory)
        weights = self._attend(query, key, value, mask, lengths, function=attention_weights)
        return jnp.swapaxes(weights, 1, 2)

    def entropy(
        self,
        inputs: Float[ArrayLike, "b q d"],
        memory: Float[ArrayLike, "b k c"] | None = None,
        **options: Any,
    ) -> Float[Array, "b n q"]:
        """The entropy of each head's weights, in nats."""
        weights = self.weights(inputs, memory, **options)
        return jax.vmap(jax.vmap(regression.entropy))(weights)

    def cache(self, batch: int, length: int, dtype: Any = None) -> Cache:
        """An empty cache for so many positions."""
        dtype = dtype or self.dtype or self.key.kernel[...].dtype
        features = [p.out_features // self.key_value_heads for p in (self.key, self.value)]
        key, value = (
            jnp.zeros((batch, length, self.key_value_heads, each), dtype) for each in features
        )
        return Cache(key, value, jnp.zeros((), jnp.int32))

    def extend(
        self, inputs: Float[ArrayLike, "b t d"], cache: Cache
    ) -> tuple[Float[Array, "b t o"], Cache]:
        """Attend from the next t positions to all up to each one, and remember these. (Causal.)

        One token at a time or a whole prompt; the cache has to have room for them.
        """
        query, key, value = self._projected(inputs, None, start=cache.used)
        zero = jnp.zeros_like(cache.used)
        at = (zero, cache.used, zero, zero)
        key = jax.lax.dynamic_update_slice(cache.key, key.astype(cache.key.dtype), at)
        value = jax.lax.dynamic_update_slice(cache.value, value.astype(cache.value.dtype), at)
        output = self._attend(query, key, value, None, None, start=cache.used)
        return self._joined(output), Cache(key, value, cache.used + query.shape[1])

    def _projected(
        self, inputs: ArrayLike, memory: ArrayLike | None, *, start: Int[Array, ""] | int = 0
    ) -> tuple[Array, Array, Array]:
        """Queries [b, q, N, d], keys and values [b, k, K, d], normalized and turned."""
        inputs = jnp.asarray(inputs, self.dtype)
        memory = inputs if memory is None else jnp.asarray(memory, self.dtype)
        pairs = ((self.query, inputs), (self.key, memory), (self.value, memory))
        counts = (self.heads, self.key_value_heads, self.key_value_heads)
        query, key, value = (
            linear(layer, x).reshape(*x.shape[:2], count, -1)
            for (layer, x), count in zip(pairs, counts, strict=True)
        )
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.positions == "rotary":
            query = rotated(query, start + jnp.arange(query.shape[1]))
            key = rotated(key, start + jnp.arange(key.shape[1]))
        return query, key, value

    def _attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: ArrayLike | None,
        lengths: ArrayLike | None,
        *,
        rng: PRNGKeyArray | None = None,
        function: Any = attention,
        start: Int[Array, ""] | None = None,
    ) -> Array:
        """A function of one head over all heads; in a cache queries stand from `start` on."""
        structure = [] if self._mask is None else [moved(self._mask, start)]
        if start is not None:
            structure.append(masks.Causal(start))
        how = {} if function is attention_weights else {"implementation": self.implementation}
        one_by_one = not how or loops(self.implementation, self._normalizer, query, key)
        if how and not one_by_one:
            how["block_size"] = size_for_heads(query.shape[0] * self.heads)

        slots = {"score": self._score, "normalizer": self._normalizer}

        def head(query, key, value, *, own=None, score_mod=None, **rest):
            mods = [each for each in (self._score_mod, own and Alibi(own[0])) if each is not None]
            score_mod = chain(*(_moved_mod(each, start) for each in mods)) if mods else None
            if function is attention_weights:
                return function(query, key, score_mod=score_mod, **slots, **rest)
            return function(query, key, value, score_mod=score_mod, **slots, **rest, **how)

        drops = rng is not None and self.dropout > 0 and function is attention
        rngs = jax.random.split(rng, (query.shape[0], self.heads)) if drops else None
        own = (alibi_slopes(self.heads),) if self.positions == "alibi" else None
        return over_heads(
            head,
            query,
            key,
            value,
            None,
            mask,
            (None, lengths),
            structure,
            dropout_rate=self.dropout,
            rngs=rngs,
            own_slots=own,
            one_by_one=one_by_one and function is attention,
        )

    def _joined(self, heads: Float[Array, "b q n e"]) -> Float[Array, "b q o"]:
        return linear(self.out, heads.reshape(*heads.shape[:2], -1))


def linear(layer: nnx.Linear, inputs: Float[Array, "*n d"]) -> Float[Array, "*n g"]:
    """A linear layer as one product of matrices, in the dtype of its inputs."""
    kernel = layer.kernel[...].astype(inputs.dtype)
    bias = None if layer.bias is None else layer.bias[...].astype(inputs.dtype)
    return affine(inputs, kernel, bias)


def moved(mask: masks.MaskFunction, start: Int[Array, ""] | None) -> masks.MaskFunction:
    """The mask of queries that stand from `start` on."""
    return mask if start is None else lambda i, j: mask(i + start, j)


def _moved_mod(mod: ScoreMod, start: Int[Array, ""] | None) -> ScoreMod:
    return mod if start is None else lambda scores, i, j: mod(scores, i + start, j)
