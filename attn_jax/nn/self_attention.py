"""Multi-head attention with any slots, and a cache of keys and values for decoding."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Num, PRNGKeyArray

from attn_jax import masks, regression
from attn_jax.attention_slots import require_slots
from attn_jax.checks import at_least, require
from attn_jax.matmul import affine
from attn_jax.meshes import alike
from attn_jax.nn.arguments import (
    lengths_of,
    require_dtype,
    require_flags,
    require_rate,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.cache import Cache, KeyValue
from attn_jax.nn.projected import Projected
from attn_jax.nn.slots import Slots
from attn_jax.normalizers import Softmax
from attn_jax.position_encodings import Rotary, alibi_slopes
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score

Positions = Literal["rotary", "alibi"] | Rotary


class MultiHeadAttention(nnx.Module):
    """Project to heads, attend, project back. (Vaswani et al. 2017, §3.2.2.)

    With the defaults it is `flax.nnx.MultiHeadAttention`: with the same weights, the same numbers.

    Args:
      features: of the inputs, and of the outputs if `out_features` is None.
      heads: N. key_value_heads: K, which divides N; None: N. (Grouped heads: Ainslie et al. 2023.)
      memory_features: of what is attended to, in cross-attention; None: of the inputs, or of
        another memory of `features`.
      head_features: of a head's queries and keys; None: features / heads.
      value_features: of a head's values; None: `head_features`.
      out_features: of the outputs.
      score, normalizer, score_mod, mask: slots, the same for all heads. Arrays in them are
        parameters (see `Slots`); Python numbers are constants.
      positions: "rotary", or a `Rotary`, rotates queries and keys by their positions, "alibi"
        subtracts each head's slope times the distance from its scores.
      normalize_query_key: layer norm of each head's queries and keys. (Henry et al. 2020.)
      bias: whether the projections have one.
      dropout: rate on weights, in training.
      implementation: as in `attn_jax.attention`.
      sequence_axis: of the mesh that `jax.set_mesh` has set, over which the positions are divided
        (`attn_jax.sharded.attention`, contiguous); not in a cache.
      dtype: of the computation; None: what inputs and parameters promote to, as in Flax.
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
        sequence_axis: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        features, heads, key_value_heads, memory_features = sizes_of(
            features=features,
            heads=heads,
            key_value_heads=key_value_heads,
            memory_features=memory_features,
        )
        head_features, value_features, out_features = sizes_of(
            head_features=head_features, value_features=value_features, out_features=out_features
        )
        require_flags(normalize_query_key=normalize_query_key, bias=bias)
        require_rngs(rngs)
        require_slots(score=score, normalizer=normalizer, score_mod=score_mod, mask=mask)
        require_dtype(dtype)
        require_rate(dropout)
        self.rotary = Rotary() if positions == "rotary" else positions
        self.rotary = self.rotary if isinstance(self.rotary, Rotary) else None
        known = self.rotary is not None or positions in (None, "alibi")
        require(known, "positions", "be 'rotary', a Rotary, 'alibi' or None", repr(positions))
        divides = head_features is not None or features % heads == 0
        require(divides, "heads", f"divide features, {features}, without head_features", heads)
        key_value_heads = key_value_heads or heads
        require(heads % key_value_heads == 0, "key_value_heads", f"divide {heads}", key_value_heads)
        head_features = head_features or features // heads
        value_features = value_features or head_features
        if self.rotary is not None:
            self.rotary.check(head_features)
        self.heads, self.key_value_heads = heads, key_value_heads
        self.positions, self.dropout, self.implementation = positions, dropout, implementation
        self.crosses, self.dtype = memory_features is not None, dtype
        self.sequence_axis = sequence_axis
        alone = sequence_axis is None or implementation == "auto"
        require(alone, "implementation", "be 'auto' with a sequence_axis", repr(implementation))
        self.slots = Slots(score=score, normalizer=normalizer, score_mod=score_mod, mask=mask)
        memory = memory_features or features

        def projection(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=bias, param_dtype=float, rngs=rngs)

        self.query = projection(features, heads * head_features)
        self.key = projection(memory, key_value_heads * head_features)
        self.value = projection(memory, key_value_heads * value_features)
        self.out = projection(heads * value_features, out_features or features)
        self.query_norm = self.key_norm = nnx.data(None)
        if normalize_query_key:
            norm = {"use_bias": False, "param_dtype": float, "dtype": dtype, "rngs": rngs}
            self.query_norm = nnx.LayerNorm(head_features, **norm)
            self.key_norm = nnx.LayerNorm(head_features, **norm)

    def __call__(
        self,
        inputs: Num[ArrayLike, "b q d"],
        memory: Num[ArrayLike, "b k c"] | KeyValue | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b q o"]:
        """Attend to the inputs themselves, or to a memory.

        Args:
          inputs: the queries are made of them.
          memory: keys and values are made of it, or `project_memory` of it; None: the inputs.
          mask: True = may attend, beside the module's own; broadcasts to [b, heads, q, k].
          lengths: how many rows of the memory each example has.
          rng: for dropout, in training.
        """
        projected = self._projected(inputs, memory, mask, lengths)
        how = {"dropout": self.dropout, "rng": rng}
        if self.sequence_axis is not None:
            return self._joined(projected.spread(self.slots, self.sequence_axis, **how))
        how |= {"implementation": self.implementation}
        return self._joined(projected.attended(self.slots, **how))

    def weights(
        self,
        inputs: Num[ArrayLike, "b q d"],
        memory: Num[ArrayLike, "b k c"] | KeyValue | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
    ) -> Float[Array, "b n q k"]:
        """Each head's weights."""
        return self._projected(inputs, memory, mask, lengths).weights(self.slots)

    def entropy(
        self,
        inputs: Num[ArrayLike, "b q d"],
        memory: Num[ArrayLike, "b k c"] | KeyValue | None = None,
        **options: Any,
    ) -> Float[Array, "b n q"]:
        """The entropy of each head's weights, in nats; options as for `weights`."""
        per_row = jax.vmap(jax.vmap(regression.entropy))
        return self.reduced(per_row, inputs, memory, **options)

    def reduced(
        self,
        function: Callable[[Float[Array, "b n r k"]], Any],
        inputs: Num[ArrayLike, "b q d"],
        memory: Num[ArrayLike, "b k c"] | KeyValue | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
    ) -> Any:
        """A function of each row of the weights, [b, n, r, k] -> arrays [b, n, r].

        It is called with the weights of 128 queries at a time: memory grows with q and with k.
        """
        return self._projected(inputs, memory, mask, lengths).reduced(self.slots, function)

    def project_memory(self, memory: Num[ArrayLike, "b k c"]) -> KeyValue:
        """The memory projected, for whatever attends to it again and again."""
        key, value = self._key_value(rows_of("memory", memory, self.key.in_features))
        return KeyValue(key.swapaxes(1, 2), value.swapaxes(1, 2))

    def cache(self, batch: int, length: int, dtype: Any = None) -> Cache:
        """An empty cache for so many positions."""
        for name, count in (("batch", batch), ("length", length)):  # symbolic in `jax.export`
            wrong = isinstance(count, int | float) and not at_least(count, 0)
            require(not wrong, name, "be an integer of at least 0", count)
        dtype = self.dtype if dtype is None else dtype
        dtype = self.key.kernel[...].dtype if dtype is None else dtype
        features = [p.out_features // self.key_value_heads for p in (self.key, self.value)]
        shapes = [(batch, self.key_value_heads, length, each) for each in features]
        return Cache(*(jnp.zeros(shape, dtype) for shape in shapes), jnp.zeros(batch, jnp.int32))

    def extend(
        self, inputs: Num[ArrayLike, "b t d"], cache: Cache
    ) -> tuple[Float[Array, "b t o"], Cache]:
        """Attend from the next t positions to all up to each one, and remember these. (Causal.)

        One token at a time or a whole prompt, of one length for all examples. What the cache has no
        room for is refused, or NaN where JAX traces: see `Cache.require_room`.
        """
        inward = not self.crosses
        require(inward, "memory_features", "be None where a cache is extended", "cross-attention")
        inputs = rows_of("inputs", inputs, self.query.in_features)
        cache.require_room(inputs)
        start = cache.position
        key, value = self._key_value(inputs, start)
        # inside a mesh the cache is where what it remembers is
        cache = alike(cache, Cache(key.swapaxes(1, 2), value.swapaxes(1, 2), cache.used))
        cache = cache.extended(key, value)
        # over_heads transposes them once more: nothing is moved
        keys, values = cache.key.swapaxes(1, 2), cache.value.swapaxes(1, 2)
        where = {"slopes": self._slopes(), "start": start}
        projected = Projected(self._query(inputs, start), keys, values, **where)
        outputs = projected.attended(self.slots, implementation=self.implementation)
        return cache.where_it_fits(self._joined(outputs)), cache

    def _projected(
        self, inputs: ArrayLike, memory: Any, mask: ArrayLike | None, lengths: ArrayLike | None
    ) -> Projected:
        inputs = rows_of("inputs", inputs, self.query.in_features)
        given, projected = memory is not None, isinstance(memory, KeyValue)
        rule = "be given to a module with memory_features"
        require(given or not self.crosses, "memory", rule, "None")
        if not projected:
            memory = rows_of("memory", memory, self.key.in_features) if given else inputs
        (count, *_, width, _), b = jax.tree.leaves(memory)[0].shape, inputs.shape[0]
        require(count == b, "memory", f"be of {b} examples, as the inputs", count)
        if lengths is not None:
            lengths = lengths_of("lengths", lengths, b, width)
        if projected:
            key, value = (each.swapaxes(1, 2) for each in memory)
        else:  # inputs are queries too, also on padding: there a `Stack` puts zeros
            key, value = self._key_value(without_padding(memory, lengths) if given else memory)
        return Projected(self._query(inputs), key, value, mask, lengths, self._slopes())

    def _slopes(self) -> Float[Array, " n"] | None:
        return alibi_slopes(self.heads) if self.positions == "alibi" else None

    def _query(self, inputs: Array, start: Int[Array, ""] | int = 0) -> Float[Array, "b q n d"]:
        query = self._in_heads(self.query, inputs, self.heads)
        query = query if self.query_norm is None else self.query_norm(query)
        return self._rotated(query, start)

    def _key_value(self, memory: Array, start: Int[Array, ""] | int = 0) -> tuple[Array, Array]:
        key, value = (
            self._in_heads(layer, memory, self.key_value_heads) for layer in (self.key, self.value)
        )
        key = key if self.key_norm is None else self.key_norm(key)
        return self._rotated(key, start), value

    def _in_heads(self, layer: nnx.Linear, rows: Array, heads: int) -> Float[Array, "b t n d"]:
        projected = linear(layer, rows, self.dtype)
        return projected.reshape(*rows.shape[:2], heads, layer.out_features // heads)

    def _rotated(self, vectors: Array, start: Int[Array, ""] | int) -> Array:
        if self.rotary is None:
            return vectors
        return self.rotary(vectors, start + jnp.arange(vectors.shape[1]))

    def _joined(self, heads: Float[Array, "b q n e"]) -> Float[Array, "b q o"]:
        joined = heads.reshape(*heads.shape[:2], self.out.in_features)
        return linear(self.out, joined, self.dtype)


def linear(
    layer: nnx.Linear, inputs: Num[Array, "*n d"], dtype: Any = None
) -> Float[Array, "*n g"]:
    """A linear layer as one product of matrices, in `dtype`; None: what its arrays promote to."""
    kernel = layer.kernel[...]
    dtype = jnp.result_type(inputs, kernel) if dtype is None else dtype
    bias = None if layer.bias is None else layer.bias[...].astype(dtype)
    return affine(inputs.astype(dtype), kernel.astype(dtype), bias)
