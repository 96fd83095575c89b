"""Angles of positions, however far: in float32 as in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.position_encodings import apply_rotary, sinusoids

FAR = [0, 1, -7, 1000, 1_000_001, 2**24 + 1, 123_456_789, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(("half", "base"), [(5, 10_000.0), (3, 5e5), (2, 0.3)])
def test_far_positions_keep_their_angles(half, base, x64):
    angle = np.asarray(FAR, np.longdouble)[:, None] * base ** (-np.arange(half) / half)
    expected = np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(float)
    vectors = np.concatenate([np.ones((len(FAR), 1, half)), np.zeros((len(FAR), 1, half))], axis=2)

    def both(positions, vectors):
        return sinusoids(positions, 2 * half, base=base), apply_rotary(
            vectors, positions, base=base
        )

    with jax.enable_x64(x64):
        arrays = jnp.asarray(FAR, jnp.int32), jnp.asarray(vectors, jnp.float32)
        for call in (both, jax.jit(both)):
            waves, turned = call(*arrays)
            assert turned.dtype == jnp.float32
            np.testing.assert_allclose(waves, expected, atol=2e-6)
            turned = np.roll(turned[:, 0], half, axis=1)  # cosines first
            np.testing.assert_allclose(turned, expected, atol=2e-6)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_number_stands_for_the_positions_from_0_on():
    expected = sinusoids(jnp.arange(5), 3)
    for count in (5, np.int64(5), np.array(5)):
        np.testing.assert_array_equal(sinusoids(count, 3), expected)
