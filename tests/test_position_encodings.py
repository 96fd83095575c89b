"""Angles of positions, however far: in float32 as in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax.nn import LanguageModel
from attn_jax.position_encodings import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    Rotary,
    YarnScaling,
    apply_rotary,
    sinusoids,
)

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


def rate_of(pair, half, base, scaling):
    """The angle that a position adds to one pair, as the papers write it."""
    rate = base ** (-2 * pair / (2 * half))
    match scaling:
        case None:
            return rate
        case LinearScaling(factor):
            return rate / factor
        case NTKScaling(factor):
            return (base * factor ** (2 * half / (2 * half - 2))) ** (-2 * pair / (2 * half))
        case Llama3Scaling(factor, original, low, high):
            wavelength = 2 * np.pi / rate
            if wavelength < original / high:
                return rate
            if wavelength > original / low:
                return rate / factor
            smooth = (original / wavelength - low) / (high - low)
            return (1 - smooth) * rate / factor + smooth * rate
        case YarnScaling(factor, original, slow, fast):

            def dimension(turns):
                return 2 * half * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))

            first, last = np.floor(dimension(fast)), np.ceil(dimension(slow))
            ramp = min(max((pair - max(first, 0)) / (min(last, 2 * half - 1) - first), 0), 1)
            return rate / factor * ramp + rate * (1 - ramp)


SCALINGS = [
    None,
    LinearScaling(4.0),
    NTKScaling(4.0),
    Llama3Scaling(8.0, 64),
    YarnScaling(8.0, 1024),
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: type(s).__name__)
def test_rotations_of_a_part_of_the_features_are_complex_products(scaling, interleaved):
    features, rotated, base = 20, 16, 100.0
    rng = np.random.default_rng(0)
    vectors, positions = rng.normal(size=(2, 3, 2, features)), np.array([[0, 1, 5], [7, 2, 9]])
    rotary = Rotary(base, rotated, interleaved, scaling)
    got = jax.jit(rotary)(jnp.asarray(vectors), jnp.asarray(positions))
    half = rotated // 2
    places = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    expected = vectors.copy()
    for pair, (one, other) in enumerate(places):
        angle = positions[..., None] * rate_of(pair, half, base, scaling)
        turned = (vectors[..., one] + 1j * vectors[..., other]) * np.exp(1j * angle)
        if isinstance(scaling, YarnScaling):
            turned = turned * (0.1 * np.log(scaling.factor) + 1)
        expected[..., one], expected[..., other] = turned.real, turned.imag
    np.testing.assert_allclose(got, expected, atol=1e-12)
    alike = rotary(jnp.asarray(vectors), jnp.asarray(positions[0]))  # the same for all examples
    np.testing.assert_allclose(alike[0], expected[0], atol=1e-12)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotary(-1.0), "base must be positive"),
        (lambda: Rotary(features=3), "features must be even and positive"),
        (lambda: Rotary(scaling=4.0), "scaling must be a scaling"),
        (lambda: Rotary(features=8).check(6), "features must be at most the head's, 6"),
        (lambda: Rotary().check(5), "head_features must be even for rotary positions"),
    ],
)
def test_bad_rotations_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_modules_take_a_rotary():
    """Of Llama's base: another one's outputs; a cache goes on where the prompt ended."""
    tokens = jnp.array([[3, 4, 5, 6]])
    models = [
        LanguageModel(11, 8, 2, 2, positions=positions, rngs=nnx.Rngs(0))
        for positions in ("rotary", Rotary(), Rotary(5e5, features=2, interleaved=True))
    ]
    by_name, same, other = (model(tokens) for model in models)
    np.testing.assert_array_equal(by_name, same)
    assert np.abs(np.asarray(other - same)).max() > 1e-4
    cache = models[2].cache(1, 4)
    first, cache = models[2].extend(tokens[:, :3], cache)
    last, _ = models[2].extend(tokens[:, 3:], cache)
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), other, atol=1e-12)
