"""Dropout on attention weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Integer, Key, PRNGKeyArray, UInt32

from attn_jax.checks import all_hold, require, require_scalar
from attn_jax.slots import slot


@slot
class Dropout:
    """Drop each weight with probability `rate`, divide the others by 1 - rate. (Srivastava 2014.)

    The fate of weight (i, j) depends on (rng, i, j) alone, so every implementation and block size
    drops the same ones, and so does the backward pass.

    >>> drop = Dropout(0.0, jax.random.key(0))
    >>> drop(jnp.ones((1, 2)), jnp.array([[0]]), jnp.array([[0, 1]])).tolist()
    [[1.0, 1.0]]
    """

    rate: Float[ArrayLike, "..."] | int
    rng: Key[Array, "..."] | UInt32[Array, "... 2"]

    def __post_init__(self):
        require_scalar(self.rate, "rate")
        proper = all_hold(self.rate, lambda rate: (rate >= 0) & (rate < 1))
        require(proper, "rate", "be at least 0 and below 1", self.rate)

    def __call__(
        self,
        weights: Float[Array, "q k"],
        query_index: Integer[Array, "q 1"],
        key_index: Integer[Array, "1 k"],
    ) -> Float[Array, "q k"]:
        keep = self.keep(query_index, key_index)
        return jnp.where(keep, weights / (1 - self.rate), 0.0)

    def keep(self, query_index: Integer[Array, "q 1"], key_index: Integer[Array, "1 k"]) -> Array:
        """True [q, k] where a weight stays."""
        # Whatever the generator, its key becomes one of threefry: under vmap "unsafe_rbg" folds
        # otherwise than alone.
        words = jax.random.key_data(self.rng)
        rng = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        for word in words[2:]:
            rng = jax.random.fold_in(rng, word)
        rows = jax.vmap(jax.random.fold_in, (None, 0))(rng, query_index[:, 0])
        fold_keys = jax.vmap(jax.random.fold_in, (None, 0))
        pairs = jax.vmap(fold_keys, (0, None))(rows, key_index[0])
        # Folding is one round of the counter-based generator: its first word is the random number.
        bits = jax.random.key_data(pairs)[..., 0]
        uniform = (bits >> 8).astype(jnp.float32) * 2.0**-24
        return uniform >= self.rate


def drop_units(
    units: Float[Array, "..."],
    rate: float,
    rng: PRNGKeyArray | None,
    *,
    shared: tuple[int, ...] = (),
) -> Float[Array, "..."]:
    """Set each number to 0 with probability `rate`, divide the others by 1 - rate: on layers.

    With `rng` None, as in evaluation, the units themselves. XLA's own generator draws the bytes:
    on a CPU the counter-based one of JAX takes longer than a recurrent layer. A rate is thus a
    multiple of 1/256, the next one below, and 1 - rate is what it leaves.

    Args:
      units: an array of any shape.
      rate: at least 0 and below 1, static.
      rng: what to draw with.
      shared: axes along which one fate is shared, as time is in variational dropout. (Gal &
        Ghahramani 2016.)

    >>> drop_units(jnp.ones(2), 0.5, None).tolist()
    [1.0, 1.0]
    """
    require(0 <= rate < 1, "rate", "be at least 0 and below 1", rate)
    dropped = int(rate * 256)
    if rng is None or dropped == 0:
        return units
    seed = jax.random.bits(rng, (4,), jnp.uint32)
    shape = [1 if axis in shared else size for axis, size in enumerate(units.shape)]
    bits = jax.random.bits(jax.random.wrap_key_data(seed, impl="rbg"), shape, jnp.uint8)
    return jnp.where(bits >= dropped, units * (256 / (256 - dropped)), 0)
