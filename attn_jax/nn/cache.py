"""What decoding remembers of the positions so far: the keys and values of each head.

All have the heads before the positions, [b, heads, positions, features], as attention reads them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_jax.checks import concrete, require


class KeyValue(NamedTuple):
    """A memory as the heads compare and sum it: projected once, whatever asks."""

    key: Float[Array, "b h s d"]
    value: Float[Array, "b h s e"]


class Cache(NamedTuple):
    """Keys and values of the positions so far; those from `used` on are free.

    All examples are equally far. `used` is one number in a layer's cache, [layers] in a stack's
    (`Stack.cache`, where key and value have that axis too), and [b], the same number for each
    example, where decoding carries it (`Stack.caches`).
    """

    key: Float[Array, "*layers b h s d"]
    value: Float[Array, "*layers b h s e"]
    used: Int[Array, "*n"]

    @property
    def reached(self) -> Int[Array, ""]:
        """How far all examples are, where decoding carries it; 0 in an empty batch."""
        return self.used[0] if self.used.size else jnp.zeros((), self.used.dtype)

    def require_room(self, inputs: Float[Array, "b t d"]) -> None:
        """Refuse inputs of another batch, and more of them than there is room for.

        How far the cache is used is unknown where JAX traces: there the positions that do not fit
        are not remembered, and what comes out at them is NaN.
        """
        batch, length = self.key.shape[-4], self.key.shape[-2]
        b, t = inputs.shape[:2]
        require(batch == b, "cache", f"be of {b} examples, as the inputs", f"{batch}")
        used = concrete(self.used)
        used = 0 if used is None else int(used.max(initial=0))
        rule = f"have room for {t} more positions"
        require(used + t <= length, "cache", rule, f"{used} of {length} used")

    def extended(self, key: Float[Array, "b t h d"], value: Float[Array, "b t h e"]) -> "Cache":
        """With the keys and values of the next t positions, as far as there is room for them."""
        moved = (
            _written(before, new.swapaxes(1, 2).astype(before.dtype), self.used)
            for before, new in ((self.key, key), (self.value, value))
        )
        return Cache(*moved, self.used + key.shape[1])

    def where_it_fits(self, outputs: Float[Array, "b t o"]) -> Float[Array, "b t o"]:
        """What came out at the last t positions; NaN at those that there was no room for.

        An answer to what was not remembered would be wrong, and look like any other.
        """
        t = outputs.shape[1]
        fits = self.used - t + jnp.arange(t, dtype=self.used.dtype) < self.key.shape[2]
        return jnp.where(fits[None, :, None], outputs, jnp.nan)


def _written(
    before: Float[Array, "b h s d"], new: Float[Array, "b h t d"], used: Int[Array, ""]
) -> Float[Array, "b h s d"]:
    """The new rows from `used` on, those beyond the end left out."""
    t, zero = new.shape[2], jnp.zeros_like(used)
    first = jnp.clip(used, 0, before.shape[2] - t)
    at = (zero, zero, first, zero)
    if t > 1:  # a single row that does not fit may overwrite the last one: all is NaN from there on
        beyond = used - first
        old = jax.lax.dynamic_slice(before, at, new.shape)
        stays = jnp.arange(t, dtype=used.dtype) < beyond
        new = jnp.where(stays[None, None, :, None], old, jnp.roll(new, beyond, axis=2))
    return jax.lax.dynamic_update_slice(before, new, at)
