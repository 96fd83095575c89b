"""Multi-head attention with any slots, and a cache of keys and values for decoding."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Num, PRNGKeyArray

from attn_jax import masks, regression
from attn_jax.attention_slots import require_slots
from attn_jax.checks import at_least, require
from attn_jax.meshes import alike
from attn_jax.nn.arguments import (
    lengths_of,
    positions_of,
    require_dtype,
    require_flags,
    require_rate,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.cache import AnyCache, Cache, KeyValue, RollingCache
from attn_jax.nn.parts import Bias, Norm, linear, norm_part, places_with_bias
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
      normalize_query_key: a norm of each head's queries and keys, "layer" or "rms" or a part (see
        `nn.parts`); True is "layer". (Henry et al. 2020.)
      bias: whether the projections have one; or the names of those that do, of "query", "key",
        "value", "out".
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
        normalize_query_key: bool | Norm = False,
        bias: Bias = True,
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
        if not isinstance(normalize_query_key, str) and not callable(normalize_query_key):
            require_flags(normalize_query_key=normalize_query_key)
        places = places_with_bias(bias)
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

        def projection(place: str, inputs: int, outputs: int) -> nnx.Linear:
            own = place in places
            return nnx.Linear(inputs, outputs, use_bias=own, param_dtype=float, rngs=rngs)

        self.query = projection("query", features, heads * head_features)
        self.key = projection("key", memory, key_value_heads * head_features)
        self.value = projection("value", memory, key_value_heads * value_features)
        self.out = projection("out", heads * value_features, out_features or features)
        self.query_norm = self.key_norm = nnx.data(None)
        if normalize_query_key:
            norm = "layer" if normalize_query_key in (True, "layer") else normalize_query_key
            norm = partial(nnx.LayerNorm, use_bias=False) if norm == "layer" else norm
            self.query_norm = norm_part("normalize_query_key", norm, head_features, dtype, rngs)
            self.key_norm = norm_part("normalize_query_key", norm, head_features, dtype, rngs)

    def __call__(
        self,
        inputs: Num[ArrayLike, "b q d"],
        memory: Num[ArrayLike, "b k c"] | KeyValue | None = None,
        *,
        mask: Bool[ArrayLike, "..."] | None = None,
        lengths: Int[ArrayLike, " b"] | None = None,
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b q"] | None = None,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b q o"]:
        """Attend to the inputs themselves, or to a memory.

        Args:
          inputs: the queries are made of them.
          memory: keys and values are made of it, or `project_memory` of it; None: the inputs.
          mask: True = may attend, beside the module's own; broadcasts to [b, heads, q, k].
          lengths: how many rows of the memory each example has.
          padding: how many rows of the inputs, or of the memory, come before those of each example.
          positions: of the inputs, for rotary ones; None: 0, 1, …, after the padding.
          rng: for dropout, in training.
        """
        projected = self._projected(inputs, memory, mask, lengths, padding, positions)
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
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b q"] | None = None,
    ) -> Float[Array, "b n q k"]:
        """Each head's weights."""
        where = mask, lengths, padding, positions
        return self._projected(inputs, memory, *where).weights(self.slots)

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
        padding: Int[ArrayLike, " b"] | None = None,
        positions: Int[ArrayLike, "*#b q"] | None = None,
    ) -> Any:
        """A function of each row of the weights, [b, n, r, k] -> arrays [b, n, r].

        It is called with the weights of 128 queries at a time: memory grows with q and with k.
        """
        where = mask, lengths, padding, positions
        return self._projected(inputs, memory, *where).reduced(self.slots, function)

    def project_memory(self, memory: Num[ArrayLike, "b k c"]) -> KeyValue:
        """The memory projected, for whatever attends to it again and again."""
        memory = rows_of("memory", memory, self.key.in_features)
        key, value = self._key_value(memory, jnp.arange(memory.shape[1]))
        return KeyValue(key.swapaxes(1, 2), value.swapaxes(1, 2))

    def cache(
        self,
        batch: int,
        length: int,
        dtype: Any = None,
        padding: Int[ArrayLike, " b"] | None = None,
    ) -> AnyCache:
        """An empty cache for so many positions, the first `padding` of each example not there.

        Where the mask is a window it holds those that a query looks back to, and never overflows.
        """
        for name, count in (("batch", batch), ("length", length)):  # symbolic in `jax.export`
            wrong = isinstance(count, int | float) and not at_least(count, 0)
            require(not wrong, name, "be an integer of at least 0", count)
        dtype = self.dtype if dtype is None else dtype
        dtype = self.key.kernel[...].dtype if dtype is None else dtype
        features = [p.out_features // self.key_value_heads for p in (self.key, self.value)]
        if padding is not None:
            padding = lengths_of("padding", padding, batch, length).astype(jnp.int32)
        back = masks.looks_back(self.slots["mask"])
        kind: type[Cache] | type[RollingCache] = Cache
        if back is not None and at_least(length, back + 1):
            length, kind = max(back, 1), RollingCache
        shapes = [(batch, self.key_value_heads, length, each) for each in features]
        empty = (jnp.zeros(shape, dtype) for shape in shapes)
        return kind(*empty, jnp.zeros(batch, jnp.int32), padding)

    def extend(
        self, inputs: Num[ArrayLike, "b t d"], cache: AnyCache
    ) -> tuple[Float[Array, "b t o"], AnyCache]:
        """Attend from the next t positions to all up to each one, and remember these. (Causal.)

        One token at a time or a whole prompt, of one length for all examples. What the cache has no
        room for is refused, or NaN where JAX traces: see `Cache.require_room`.
        """
        inward = not self.crosses
        require(inward, "memory_features", "be None where a cache is extended", "cross-attention")
        inputs = rows_of("inputs", inputs, self.query.in_features)
        cache.require_room(inputs)
        positions = cache.next_positions(inputs.shape[1])
        key, value = self._key_value(inputs, positions)
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
        # inside a mesh the cache is where what it remembers is
        cache = alike(cache, cache._replace(key=key, value=value))
        cache, seen = cache.extended(key, value)
        # over_heads transposes them once more: nothing is moved
        keys, values = seen.key.swapaxes(1, 2), seen.value.swapaxes(1, 2)
        where = {"slopes": self._slopes(), "padding": cache.padding}
        where |= {"start": seen.start, "first_key": seen.first_key}
        projected = Projected(self._query(inputs, positions), keys, values, **where)
        outputs = projected.attended(self.slots, implementation=self.implementation)
        return cache.where_it_fits(self._joined(outputs)), cache

    def _projected(
        self,
        inputs: ArrayLike,
        memory: Any,
        mask: ArrayLike | None,
        lengths: ArrayLike | None,
        padding: ArrayLike | None,
        positions: ArrayLike | None,
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
        if padding is not None:
            padding = lengths_of("padding", padding, b, width)
        positions = positions_of(positions, inputs, None if given else padding)
        if projected:
            key, value = (each.swapaxes(1, 2) for each in memory)
        elif given:
            rows = without_padding(memory, lengths, padding)
            key, value = self._key_value(rows, jnp.arange(rows.shape[1]))
        else:  # inputs are queries too, also on padding: there a `Stack` puts zeros
            key, value = self._key_value(memory, positions)
        query, slopes = self._query(inputs, positions), self._slopes()
        return Projected(query, key, value, mask, lengths, slopes, padding)

    def _slopes(self) -> Float[Array, " n"] | None:
        return alibi_slopes(self.heads) if self.positions == "alibi" else None

    def _query(self, inputs: Array, positions: Int[Array, "*#b q"]) -> Float[Array, "b q n d"]:
        query = self._in_heads(self.query, inputs, self.heads)
        query = query if self.query_norm is None else self.query_norm(query)
        return query if self.rotary is None else self.rotary(query, positions)

    def _key_value(self, memory: Array, positions: Int[Array, "*#b k"]) -> tuple[Array, Array]:
        key, value = (
            self._in_heads(layer, memory, self.key_value_heads) for layer in (self.key, self.value)
        )
        key = key if self.key_norm is None else self.key_norm(key)
        return key if self.rotary is None else self.rotary(key, positions), value

    def _in_heads(self, layer: nnx.Linear, rows: Array, heads: int) -> Float[Array, "b t n d"]:
        projected = linear(layer, rows, self.dtype)
        return projected.reshape(*rows.shape[:2], heads, layer.out_features // heads)

    def _joined(self, heads: Float[Array, "b q n e"]) -> Float[Array, "b q o"]:
        joined = heads.reshape(*heads.shape[:2], self.out.in_features)
        return linear(self.out, joined, self.dtype)
