"""Positions of tokens for attention, which does not depend on order: sinusoids, rotary, ALiBi."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from attn_jax.checks import require


def sinusoids(
    positions: Int[Array, " t"] | int, features: int, *, base: float = 10_000.0
) -> Float[Array, "t d"]:
    """Sines and cosines of each position at geometric wavelengths. (Vaswani et al. 2017, §3.5.)

    The first half of the features are sin(position · base^(-i / half)), the second half the
    cosines. A number stands for the positions from 0 on.

    >>> sinusoids(1, 4).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    if not getattr(positions, "shape", ()):
        positions = jnp.arange(positions)
    angle = _angles(positions, _rates(-(-features // 2), base))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :features]


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Positions divided by a factor. (Chen et al. 2023, "Position interpolation", eq. 4.)"""

    factor: float

    def rates(self, rates: np.ndarray, base: float) -> np.ndarray:
        """The scaled rates."""
        del base
        return rates / self.factor


@dataclasses.dataclass(frozen=True)
class NTKScaling:
    """A base that grows so that the slowest rate is divided by a factor, the fastest one not.

    (bloc97 2023; Peng et al. 2023, "YaRN", section 3.1: base · factor^(d / (d - 2)).)
    """

    factor: float

    def rates(self, rates: np.ndarray, base: float) -> np.ndarray:
        """The scaled rates."""
        del base
        half = len(rates)
        return rates * self.factor ** (-np.arange(half) / max(half - 1, 1))


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Slow rates divided by a factor, fast ones left, between them a mixture. (Llama 3.1, 2024.)

    Rates that turn less than `low` times in the `original` length are slow, those that turn more
    than `high` times are fast.
    """

    factor: float
    original: int
    low: float = 1.0
    high: float = 4.0

    def rates(self, rates: np.ndarray, base: float) -> np.ndarray:
        """The scaled rates."""
        del base
        turns = self.original * rates / (2 * math.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (1 - share) * rates / self.factor + share * rates


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Slow rates divided by a factor, fast ones left, a ramp over the features between them.

    (Peng et al. 2023, section 3.2-3.4.) `slow` and `fast` are turns in the `original` length;
    cosines and sines are multiplied by `magnitude`, by default 0.1 ln(factor) + 1. `rounds` the
    ends of the ramp to whole features, as the authors' code does.
    """

    factor: float
    original: int
    slow: float = 1.0
    fast: float = 32.0
    magnitude: float | None = None
    rounds: bool = True

    def rates(self, rates: np.ndarray, base: float) -> np.ndarray:
        """The scaled rates."""
        half = len(rates)
        first, last = (
            half * math.log(self.original / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.fast, self.slow)
        )
        if self.rounds:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        last = last + 0.001 if first == last else last
        ramp = np.clip((np.arange(half) - first) / (last - first), 0, 1)
        return rates / self.factor * ramp + rates * (1 - ramp)


Scaling = LinearScaling | NTKScaling | Llama3Scaling | YarnScaling


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotate pairs of features by angles that grow with the position. (Su et al. 2021, eq. 34.)

    The dot of a query and a key then depends on the difference of their positions alone.

    Args:
      base: the wavelengths go from 2π to 2π · base.
      features: how many of a head's features are rotated, the first ones, an even number; None:
        all. (GPT-NeoX rotates a quarter.)
      interleaved: whether neighbours are paired, as in the paper and in GPT-J; else feature i with
        i + features / 2, as in GPT-NeoX and Llama.
      scaling: how the rates of a longer context differ from base^(-2i / features).

    >>> rotary = Rotary(features=2, scaling=LinearScaling(4.0))
    >>> rotary(jnp.ones((1, 1, 3)), jnp.array([0])).tolist()
    [[[1.0, 1.0, 1.0]]]
    """

    base: float = 10_000.0
    features: int | None = None
    interleaved: bool = False
    scaling: Scaling | None = None

    def __post_init__(self):
        require(self.base > 0, "base", "be positive", self.base)
        even = self.features is None or (self.features > 0 and self.features % 2 == 0)
        require(even, "features", "be even and positive, or None", self.features)
        known = self.scaling is None or isinstance(self.scaling, Scaling)
        require(known, "scaling", "be a scaling of position_encodings or None", self.scaling)

    def check(self, features: int) -> None:
        """Raise ValueError where a head of so many features cannot be rotated."""
        if self.features is None:
            require(features % 2 == 0, "head_features", "be even for rotary positions", features)
        else:
            rule = f"be at most the head's, {features}"
            require(self.features <= features, "features", rule, self.features)

    def rates(self, features: int) -> np.ndarray:
        """The angle that a position adds to each pair, [features / 2] in radians."""
        half = (features if self.features is None else self.features) // 2
        rates = _rates(half, self.base)
        return rates if self.scaling is None else self.scaling.rates(rates, self.base)

    def __call__(
        self, vectors: Float[Array, "*b t h d"], positions: Int[Array, "*#b t"]
    ) -> Float[Array, "*b t h d"]:
        """Rotated vectors; the positions are the same for all examples, or [b, t]."""
        rates = self.rates(vectors.shape[-1])
        angle, dtype = _angles(positions, rates), jnp.promote_types(vectors.dtype, jnp.float32)
        magnitude = 1.0
        if isinstance(self.scaling, YarnScaling):
            given = self.scaling.magnitude
            magnitude = 0.1 * math.log(self.scaling.factor) + 1 if given is None else given
        leading = (1,) * (vectors.ndim - 2 - positions.ndim)
        shape = (*leading, *positions.shape, 1, len(rates))
        cosine, sine = (
            (part(angle) * magnitude).astype(dtype).reshape(shape) for part in (jnp.cos, jnp.sin)
        )
        count = 2 * len(rates)
        rotated, rest = vectors[..., :count], vectors[..., count:]
        if self.interleaved:
            first, second = rotated[..., ::2], rotated[..., 1::2]
        else:
            first, second = rotated[..., : count // 2], rotated[..., count // 2 :]
        parts = [first * cosine - second * sine, second * cosine + first * sine]
        if self.interleaved:
            rotated = jnp.stack(parts, axis=-1).reshape(rotated.shape)
        else:
            rotated = jnp.concatenate(parts, axis=-1)
        return jnp.concatenate([rotated.astype(vectors.dtype), rest], axis=-1)


def apply_rotary(
    vectors: Float[Array, "*b t h d"], positions: Int[Array, " t"], *, base: float = 10_000.0
) -> Float[Array, "*b t h d"]:
    """`Rotary(base)` of all features; d is even.

    >>> apply_rotary(jnp.array([[[1.0, 0.0]]]), jnp.array([0])).tolist()
    [[[1.0, 0.0]]]
    """
    return Rotary(base)(vectors, positions)


def alibi_slopes(heads: int) -> Float[Array, " h"]:
    """The slope of each head's linear bias: 2^(-8 i / heads). (Press, Smith & Lewis 2022, §3.)

    Where the heads are no power of two, those of the power below, and every second one of the
    power above, as in the authors' code.

    >>> alibi_slopes(2).tolist()
    [0.0625, 0.00390625]
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return jnp.asarray(slopes[:heads], float)


def _rates(half: int, base: float) -> np.ndarray:
    """base^(-i / half)."""
    return base ** (-np.arange(half) / max(half, 1))


def _angles(positions: Int[Array, "*t"], rate: np.ndarray) -> Float[Array, "*t h"]:
    """position · rate, in float32 less whole turns.

    A large position times a rate, rounded to float32, would be off by more than a radian. Turns are
    counted in units of 2⁻⁶⁴ instead: integers, whose product wraps around where a turn is whole.
    """
    dtype = jax.dtypes.canonicalize_dtype(float)
    if dtype == jnp.float64 or not jnp.issubdtype(positions.dtype, jnp.integer):
        return _products(positions.astype(dtype), jnp.asarray(rate, dtype))
    turn = (rate / (2 * math.pi) % 1 * 2.0**64).astype(np.uint64)
    high, low = ((turn >> shift & 0xFFFFFFFF).astype(np.uint32) for shift in (32, 0))
    if positions.dtype.itemsize < 4:  # whose smallest number has no opposite
        positions = positions.astype(jnp.int32)
    shape = (*positions.shape, len(rate))
    steps = jnp.abs(positions).reshape(-1, 1).astype(jnp.uint32)
    turns = steps * high[None, :] + _high_product(steps, jnp.asarray(low)[None, :])
    signed = jax.lax.bitcast_convert_type(turns, jnp.int32).astype(dtype)
    angle = jnp.sign(positions).reshape(-1, 1).astype(dtype) * signed * (2 * math.pi / 2**32)
    return angle.reshape(shape)


def _products(positions: Float[Array, "*t"], rate: Float[Array, " h"]) -> Float[Array, "*t h"]:
    return positions[..., None] * rate.reshape((1,) * positions.ndim + rate.shape)


def _high_product(a: UInt32[Array, "t 1"], b: UInt32[Array, "1 h"]) -> UInt32[Array, "t h"]:
    """The upper 32 bits of a · b, by halves of 16 bits."""
    (a1, a0), (b1, b0) = ((each >> 16, each & 0xFFFF) for each in (a, b))
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16)
