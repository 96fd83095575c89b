"""Positions of tokens for attention, which does not depend on order: sinusoids, rotary, ALiBi."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32


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
    angle = _angles(positions, -(-features // 2), base)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :features]


def apply_rotary(
    vectors: Float[Array, "*b t h d"], positions: Int[Array, " t"], *, base: float = 10_000.0
) -> Float[Array, "*b t h d"]:
    """Rotate pairs of features by angles that grow with the position. (Su et al. 2021, eq. 34.)

    The dot of a query and a key then depends on the difference of their positions alone. Feature i
    is paired with i + d / 2, as in GPT-NeoX and Llama (the paper pairs neighbours); d is even.

    >>> apply_rotary(jnp.array([[[1.0, 0.0]]]), jnp.array([0])).tolist()
    [[[1.0, 0.0]]]
    """
    half = vectors.shape[-1] // 2
    angle, dtype = _angles(positions, half, base), jnp.promote_types(vectors.dtype, jnp.float32)
    shape = (1,) * (vectors.ndim - 3) + (angle.shape[0], 1, half)
    cosine, sine = (part(angle).astype(dtype).reshape(shape) for part in (jnp.cos, jnp.sin))
    first, second = vectors[..., :half], vectors[..., half:]
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(rotated, axis=-1).astype(vectors.dtype)


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


def _angles(positions: Int[Array, " t"], half: int, base: float) -> Float[Array, "t h"]:
    """position · base^(-i / half), in float32 less whole turns.

    A large position times a rate, rounded to float32, would be off by more than a radian. Turns are
    counted in units of 2⁻⁶⁴ instead: integers, whose product wraps around where a turn is whole.
    """
    rate = base ** (-np.arange(half) / max(half, 1))
    dtype = jax.dtypes.canonicalize_dtype(float)
    if dtype == jnp.float64 or not jnp.issubdtype(positions.dtype, jnp.integer):
        return positions[:, None].astype(dtype) * jnp.asarray(rate, dtype)[None, :]
    turn = (rate / (2 * math.pi) % 1 * 2.0**64).astype(np.uint64)
    high, low = ((turn >> shift & 0xFFFFFFFF).astype(np.uint32) for shift in (32, 0))
    if positions.dtype.itemsize < 4:  # whose smallest number has no opposite
        positions = positions.astype(jnp.int32)
    steps = jnp.abs(positions)[:, None].astype(jnp.uint32)
    turns = steps * high[None, :] + _high_product(steps, jnp.asarray(low)[None, :])
    signed = jax.lax.bitcast_convert_type(turns, jnp.int32).astype(dtype)
    return jnp.sign(positions)[:, None].astype(dtype) * signed * (2 * math.pi / 2**32)


def _high_product(a: UInt32[Array, "t 1"], b: UInt32[Array, "1 h"]) -> UInt32[Array, "t h"]:
    """The upper 32 bits of a · b, by halves of 16 bits."""
    (a1, a0), (b1, b0) = ((each >> 16, each & 0xFFFF) for each in (a, b))
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16)
