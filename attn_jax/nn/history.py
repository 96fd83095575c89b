"""Attention that sees its own past weights: location-aware, with coverage, within a window.

The score stays what it is. The keys of a step know the weights of the steps before it:

    key'ⱼ = keyⱼ + (F * last)ⱼ U + w · totalⱼ

F * last are filters over the last weights (Chorowski et al. 2015, eqs. 8-9); total is the sum of
the weights so far (coverage: See et al. 2017, eqs. 10-11). A window is a mask: keys near the median
of the last weights alone (Chorowski et al. 2015, section 2.3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from attn_jax.blocks import Index
from attn_jax.checks import require, require_count
from attn_jax.masks import MaskFunction
from attn_jax.nn.arguments import require_flags, require_rngs, sizes_of


class Attended(NamedTuple):
    """The weights of a decoder's steps so far."""

    last: Float[Array, "n m"]
    total: Float[Array, "n m"]

    def plus(self, weights: Float[Array, "n m"]) -> "Attended":
        """After one more step."""
        return Attended(weights, self.total + weights)


class History(nnx.Module):
    """What each key knows of the weights so far, and which keys come next.

    Args:
      features: a, of the keys as the score compares them.
      location: filters over the last weights; 0: none.
      location_width: positions of a filter, an odd number.
      coverage: whether keys know the sum of their weights so far.
      window: (left, right): keys so far from the median of the last weights may be attended to;
        before the first step that is position 0. None: all keys.
      rngs: a seed for the parameters.

    >>> history = History(4, location=2, window=(1, 2), rngs=nnx.Rngs(0))
    >>> attended = Attended(jnp.array([[0.1, 0.8, 0.1, 0.0, 0.0]]), jnp.ones((1, 5)))
    >>> history.keys(jnp.zeros((1, 5, 4)), attended).shape
    (1, 5, 4)
    >>> history.mask(attended.last[0])(jnp.zeros((1, 1), int), jnp.arange(5)[None]).tolist()
    [[True, True, True, True, False]]
    """

    def __init__(
        self,
        features: int,
        *,
        location: int = 0,
        location_width: int = 15,
        coverage: bool = False,
        window: tuple[int, int] | None = None,
        rngs: nnx.Rngs,
    ):
        require_count(location, "location")
        features, location_width = sizes_of(features=features, location_width=location_width)
        location = int(location)
        require(location_width % 2 == 1, "location_width", "be odd", location_width)
        require_flags(coverage=coverage)
        require_rngs(rngs)
        if window is not None:
            pair = isinstance(window, tuple | list) and len(window) == 2
            require(pair, "window", "be (left, right) or None", repr(window))
            for each in window:
                require_count(each, "window")
        self.window = None if window is None else tuple(map(int, window))
        glorot = jax.nn.initializers.glorot_uniform()

        def parameter(*shape: int) -> nnx.Param:
            return nnx.Param(glorot(rngs.params(), shape, float))

        self.filters = self.location = self.coverage = nnx.data(None)
        if location:
            self.filters = parameter(location_width, int(location))
            self.location = parameter(int(location), features)
        if coverage:
            self.coverage = parameter(1, features)

    def start(self, memory: Float[Array, "n m e"]) -> Attended:
        """Before the first step nothing was attended to."""
        return Attended(*2 * [jnp.zeros_like(memory[:, :, 0])])

    def keys(self, keys: Float[Array, "n m a"], attended: Attended) -> Float[Array, "n m a"]:
        """The keys, and what they know of the weights so far."""
        if self.filters is not None:
            width, positions = self.filters.shape[0], keys.shape[1]
            padded = jnp.pad(attended.last, ((0, 0), (width // 2, width // 2)))
            near = jnp.stack([padded[:, at : at + positions] for at in range(width)], axis=-1)
            keys = keys + near @ (self.filters[...] @ self.location[...])
        if self.coverage is not None:
            keys = keys + attended.total[:, :, None] * self.coverage[...][None]
        return keys

    def mask(self, last: Float[Array, " m"]) -> MaskFunction | None:
        """The keys of one example that come next, as a mask; None where all may."""
        if self.window is None:
            return None
        left, right = self.window
        middle = _median(last)

        def near(query_index: Index, key_index: Index) -> Bool[Array, "#q #k"]:
            return (key_index >= middle - left) & (key_index <= middle + right)

        return near


def _median(weights: Float[Array, " m"]) -> Int[Array, ""]:
    """The first position up to which half of the weight lies; 0 where there is none."""
    below = jnp.cumsum(weights)
    return jnp.argmax(below >= below[-1:] / 2)
