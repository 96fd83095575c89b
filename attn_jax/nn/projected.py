"""Attention over heads that are projected already, with a module's slots."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax import masks, sharded
from attn_jax.attention import weigh
from attn_jax.attention_slots import AttentionSlots
from attn_jax.dropout import Dropout
from attn_jax.heads import choose_for_heads, over_heads
from attn_jax.nn.slots import Slots
from attn_jax.score_mods import Alibi, Hiding, ScoreMod, Shifted, chain
from attn_jax.slots import has_heads, is_pure

ROWS = 128  # queries whose weights exist at a time where they are reduced


class Projected(NamedTuple):
    """Queries, keys and values of all heads, and which of the pairs are allowed.

    In a cache the queries stand from the `start`-th key on, and the keys from `first_key` on.
    """

    query: Float[Array, "b q n d"]
    key: Float[Array, "b k g d"]
    value: Float[Array, "b k g e"]
    mask: ArrayLike | None = None  # beside the module's own
    lengths: Int[Array, " b"] | None = None  # of the keys
    slopes: Float[Array, " n"] | None = None  # of ALiBi's biases
    padding: Int[Array, " b"] | None = None  # keys before those of each example
    start: Int[Array, ""] | int | None = None
    first_key: Int[Array, ""] | int = 0

    def attended(
        self,
        slots: Slots,
        *,
        implementation: str,
        dropout: float = 0.0,
        rng: PRNGKeyArray | None = None,
    ) -> Float[Array, "b q n e"]:
        """Each head's output. In a cache no query attends to keys after it."""
        (b, _, n, _), normalizer = self.query.shape, slots["normalizer"]
        chosen = choose_for_heads(implementation, normalizer, self.query, self.key, slots["score"])
        drops = rng is not None and dropout > 0
        options = {"rngs": jax.random.split(rng, (b, n)) if drops else None}
        options |= {"dropout_rate": dropout} | (chosen.turns if b else {})
        allowed, hidden = self._allowed(slots), []
        if self.start is not None:
            allowed.append(masks.Causal(self.start))
            # What is masked is cut out of the cache first, a copy of all of it; scores of -inf are
            # the same to our normalizers, where the cache holds no inf or NaN.
            alike = not has_heads(tuple(allowed))
            if chosen.implementation == "dense" and is_pure(normalizer) and alike:
                allowed, hidden = [], allowed
        return self._over_heads(slots, chosen.head(), allowed, hidden, **options)

    def spread(
        self, slots: Slots, axis: str, *, dropout: float = 0.0, rng: PRNGKeyArray | None = None
    ) -> Float[Array, "b q n e"]:
        """Each head's output, the positions being divided over a mesh axis."""
        (b, q, n, _), k = self.query.shape, self.key.shape[1]
        mods = [slots["score_mod"], None if self.slopes is None else Alibi(self.slopes)]
        mods = [each for each in mods if each is not None]
        allowed = self._allowed(slots)
        if self.lengths is not None:
            allowed.append(masks.Padding(self.lengths[:, None]))
        if self.mask is not None:
            mask = jnp.asarray(self.mask)
            mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
            allowed.append(masks.Dense(jnp.broadcast_to(mask, (*mask.shape[:2], q, k))))
        drops = rng is not None and dropout > 0
        return sharded.attention(
            self.query,
            self.key,
            self.value,
            axis=axis,
            score=slots["score"],
            normalizer=slots["normalizer"],
            score_mod=chain(*mods) if mods else None,
            mask=masks.combined(allowed),
            dropout=Dropout(dropout, jax.random.split(rng, (b, n))) if drops else None,
        )

    def weights(self, slots: Slots) -> Float[Array, "b n q k"]:
        """Each head's weights."""

        def head(query, key, value, slots):
            return weigh(query, key, slots)

        return self._over_heads(slots, head, self._allowed(slots)).swapaxes(1, 2)

    def reduced(self, slots: Slots, function: Callable[[Float[Array, "b n r k"]], Any]) -> Any:
        """function(weights) -> arrays [b, n, q], of the weights of some queries at a time."""
        b, count, n, _ = self.query.shape
        if count <= ROWS:
            return function(self.weights(slots))
        # a block of rows could not tell that a mask, or a slot, is of another size
        jax.eval_shape(lambda: self.weights(slots))
        blocks = -(-count // ROWS)
        beyond = blocks * ROWS - count
        query = jnp.pad(self.query, [(0, 0), (0, beyond), (0, 0), (0, 0)])
        mask = self.mask
        shared = mask is None or jnp.ndim(mask) < 2 or jnp.shape(mask)[-2] == 1
        if not shared:
            mask = jnp.asarray(mask)
            mask = jnp.pad(mask, [(0, 0)] * (mask.ndim - 2) + [(0, beyond), (0, 0)])

        def of_block(number):
            start = number * ROWS
            rows = jax.lax.dynamic_slice_in_dim(query, start, ROWS, 1)
            allowed = mask if shared else jax.lax.dynamic_slice_in_dim(mask, start, ROWS, -2)
            block = self._replace(query=rows, mask=allowed, start=start)
            return function(block.weights(slots))

        def joined(parts):
            return jnp.moveaxis(parts, 0, 2).reshape(b, n, blocks * ROWS)[:, :, :count]

        return jax.tree.map(joined, jax.lax.map(of_block, jnp.arange(blocks)))

    def _over_heads(
        self,
        slots: Slots,
        head: Callable[..., Array],
        allowed: Sequence[masks.MaskFunction],
        hidden: Sequence[masks.MaskFunction] = (),
        **options: Any,
    ) -> Array:
        """A function of one head, over all heads with the slots of each."""
        names = ("score", "normalizer", "score_mod")
        every = AttentionSlots(*(slots[name] for name in names), masks.combined(allowed))

        def one(query, key, value, slots, *, own=None):
            mods = [each for each in (slots.score_mod, own and Alibi(own[0])) if each is not None]
            mods = [*map(self._shifted, mods), *map(Hiding, hidden)]
            slots = dataclasses.replace(slots, score_mod=chain(*mods) if mods else None)
            return head(query, key, value, slots)

        own = None if self.slopes is None else (self.slopes,)
        where = {"mask": self.mask, "lengths": (None, self.lengths), "own_slots": own}
        return over_heads(one, self.query, self.key, self.value, every, **where, **options)

    def _allowed(self, slots: Slots) -> list[masks.MaskFunction]:
        """The module's mask, and that of the keys that are there."""
        mask, absent, allowed = slots["mask"], self.padding, []
        if mask is not None and self.start is not None:
            mask = masks.Shifted(mask, self._first_query, self.first_key)
        if mask is not None:
            allowed.append(mask)
        if not isinstance(self.first_key, int):  # it is negative where a cache is not yet full
            absent = jnp.maximum((0 if absent is None else absent) - self.first_key, 0)
        if absent is not None:
            allowed.append(~masks.Prefix(absent[:, None] if absent.ndim else absent))
        return allowed

    def _shifted(self, mod: ScoreMod) -> ScoreMod:
        if self.start is None:
            return mod
        return Shifted(mod, self._first_query, self.first_key)

    @property
    def _first_query(self) -> Int[Array, ""] | int:
        """Its position."""
        return self.start + self.first_key
