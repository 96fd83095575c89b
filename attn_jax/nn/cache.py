"""The keys and values of the positions so far, which decoding carries from token to token.

One protocol for an attention, a stack and a language model:

    cache = module.cache(batch, length)              empty, with room for `length` positions
    outputs, cache = module.extend(inputs, cache)    the next positions, one or many

A stack's cache is a tuple, one of each layer: a `Cache`, or where a window limits what is looked
back to a `RollingCache`. All arrays have the examples first, as the
states of `attn_jax.decoding`, and the heads before the positions, [b, heads, positions, features].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_jax.checks import concrete, require


class KeyValue(NamedTuple):
    """A memory as the heads compare and sum it: projected once for all queries."""

    key: Float[Array, "b h s d"]
    value: Float[Array, "b h s e"]


class Seen(NamedTuple):
    """What the next positions attend to: keys and values, and where these and the queries stand."""

    key: Float[Array, "b h s d"]
    value: Float[Array, "b h s e"]
    start: Int[Array, ""] | int  # the first query's place among the keys
    first_key: Int[Array, ""] | int  # the first key's position


class Cache(NamedTuple):
    """Keys and values of the positions so far; those from `used` on are free.

    All examples have used as many, the same number for each; the first `padding` of each example
    are not there: prompts of several lengths end at the same place.
    """

    key: Float[Array, "b h s d"]
    value: Float[Array, "b h s e"]
    used: Int[Array, " b"]
    padding: Int[Array, " b"] | None = None

    @property
    def position(self) -> Int[Array, ""]:
        """The next position of all examples, padding included; 0 in an empty batch."""
        return self.used[0] if self.used.size else jnp.zeros((), self.used.dtype)

    def next_positions(self, count: int) -> Int[Array, "*#b t"]:
        """Where each example's next rows stand, not counting its padding: [t], or [b, t]."""
        at = self.position + jnp.arange(count)
        return at if self.padding is None else jnp.maximum(at[None] - self.padding[:, None], 0)

    def require_room(self, inputs: Float[Array, "b t d"]) -> None:
        """Refuse inputs of another batch, and more of them than there is room for.

        How much of the cache is used is unknown where JAX traces: there the positions that do not
        fit are not stored, and the outputs at them are NaN.
        """
        _require_examples(self, inputs)
        length, t, used = self.key.shape[2], inputs.shape[1], concrete(self.used)
        used = 0 if used is None else int(used.max(initial=0))
        rule = f"have room for {t} more positions"
        require(used + t <= length, "cache", rule, f"{used} of {length} used")

    def extended(
        self, key: Float[Array, "b h t d"], value: Float[Array, "b h t e"]
    ) -> tuple["Cache", Seen]:
        """With the keys and values of the next t positions, as far as there is room for them."""
        start, used = self.position, self.used + key.shape[2]
        key, value = (
            _written(before, new.astype(before.dtype), start)
            for before, new in ((self.key, key), (self.value, value))
        )
        return Cache(key, value, used, self.padding), Seen(key, value, start, 0)

    def where_it_fits(self, outputs: Float[Array, "b t o"]) -> Float[Array, "b t o"]:
        """The outputs at the last t positions; NaN at those that there was no room for.

        An output from keys that are not stored would be wrong, and look like any other.
        """
        t = outputs.shape[1]
        at = self.position - t + jnp.arange(t, dtype=self.used.dtype)
        return jnp.where((at < self.key.shape[2])[None, :, None], outputs, jnp.nan)


class RollingCache(NamedTuple):
    """Keys and values of the last positions, as many as a window looks back to: the latest last.

    `used` counts all positions so far; those before the first one, and `padding`, are not there.
    """

    key: Float[Array, "b h w d"]
    value: Float[Array, "b h w e"]
    used: Int[Array, " b"]
    padding: Int[Array, " b"] | None = None

    position = Cache.position
    next_positions = Cache.next_positions

    def require_room(self, inputs: Float[Array, "b t d"]) -> None:
        """Refuse inputs of another batch; there is room for any number of them."""
        _require_examples(self, inputs)

    def extended(
        self, key: Float[Array, "b h t d"], value: Float[Array, "b h t e"]
    ) -> tuple["RollingCache", Seen]:
        """With the last of these and the next t positions; what is seen are all of them."""
        width, t = self.key.shape[2], key.shape[2]
        key, value = (
            jnp.concatenate([before, new.astype(before.dtype)], axis=2)
            for before, new in ((self.key, key), (self.value, value))
        )
        seen = Seen(key, value, width, self.position - width)
        return RollingCache(key[:, :, t:], value[:, :, t:], self.used + t, self.padding), seen

    def where_it_fits(self, outputs: Float[Array, "b t o"]) -> Float[Array, "b t o"]:
        """The outputs: all positions fit."""
        return outputs


AnyCache = Cache | RollingCache


def _require_examples(cache: AnyCache, inputs: Float[Array, "b t d"]) -> None:
    batch, b = cache.key.shape[0], inputs.shape[0]
    require(batch == b, "cache", f"be of {b} examples, as the inputs", f"{batch}")


def require_each_layer(name: str, given: Any, kind: Any, count: int) -> None:
    """Refuse what is no tuple of one `kind`, a cache or a `KeyValue`, of each layer."""
    several = isinstance(given, tuple) and not isinstance(given, AnyCache | KeyValue)
    fits = several and len(given) == count and all(isinstance(each, kind) for each in given)
    got = type(given).__name__ + (f" of {len(given)}" if several else "")
    require(fits, name, f"be a tuple, one of each of the {count} layers", got)


def _written(
    before: Float[Array, "b h s d"], new: Float[Array, "b h t d"], used: Int[Array, ""]
) -> Float[Array, "b h s d"]:
    """The new rows from `used` on, those beyond the end left out."""
    new = new[:, :, : before.shape[2]]
    t, zero = new.shape[2], jnp.zeros_like(used)
    first = jnp.clip(used, 0, before.shape[2] - t)
    at = (zero, zero, first, zero)
    if t > 1:  # a single row that does not fit may overwrite the last one: all is NaN from there on
        beyond = used - first
        old = jax.lax.dynamic_slice(before, at, new.shape)
        stays = jnp.arange(t, dtype=used.dtype) < beyond
        new = jnp.where(stays[None, None, :, None], old, jnp.roll(new, beyond, axis=2))
    return jax.lax.dynamic_update_slice(before, new, at)
