"""Where a token stands, said to attention that sees a set: sinusoids, rotations, slopes."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def sinusoids(
    positions: Int[Array, " t"] | int, features: int, *, base: float = 10_000.0
) -> Float[Array, "t d"]:
    """Sines and cosines of each position at geometric wavelengths. (Vaswani et al. 2017, §3.5.)

    The first half of the features are sin(position · base^(-i / half)), the second half the
    cosines. A number stands for the positions from 0 on.

    >>> sinusoids(1, 4).tolist()
    [[0.0, 0.0, 1.0, 1.0]]
    """
    positions = jnp.arange(positions) if isinstance(positions, int) else positions
    angle = _angles(positions, -(-features // 2), base)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :features]


def rotated(
    vectors: Float[Array, "*b t h d"], positions: Int[Array, " t"], *, base: float = 10_000.0
) -> Float[Array, "*b t h d"]:
    """Rotate pairs of features by angles that grow with the position. (Su et al. 2021, eq. 34.)

    The dot of a query and a key then depends on the difference of their positions alone. Feature i
    is paired with i + d / 2, as in GPT-NeoX and Llama (the paper pairs neighbours); d is even.

    >>> rotated(jnp.array([[[1.0, 0.0]]]), jnp.array([0])).tolist()
    [[[1.0, 0.0]]]
    """
    half = vectors.shape[-1] // 2
    angle = _angles(positions, half, base).astype(jnp.promote_types(vectors.dtype, jnp.float32))
    cosine, sine = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    shape = (1,) * (vectors.ndim - 3) + cosine.shape
    cosine, sine = cosine.reshape(shape), sine.reshape(shape)
    first, second = vectors[..., :half], vectors[..., half:]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(vectors.dtype)


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
    rate = base ** (-jnp.arange(half, dtype=float) / max(half, 1))
    return positions[:, None].astype(rate.dtype) * rate[None, :]
