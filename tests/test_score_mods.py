"""score_mods.py: each mod is its formula for any block of indices, in the order of the chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Alibi, Bias, RelativeBias, SoftCap, attention_weights, chain
from tests import oracles
from tests.members import SCORE_MODS, SIZES
from tests.test_integers import dtypes_here
from tests.tolerance import assert_close, assert_derivatives

MODS = [member for member in SCORE_MODS if member.name != "no_score_mod"]
each_mod = pytest.mark.parametrize("member", MODS, ids=str)
Q, K = SIZES["q"], SIZES["k"]
SCORES = np.random.default_rng(6).normal(size=(Q, K))


def indices(q, k):
    return jnp.arange(q)[:, None], jnp.arange(k)[None, :]


def modified(mod, scores):
    """An oracle's mod of every pair [q, k]."""
    return np.array([[mod(s, i, j) for j, s in enumerate(row)] for i, row in enumerate(scores)])


@each_mod
def test_mod_is_the_formula(member):
    got = member.slot()(jnp.asarray(SCORES), *indices(Q, K))
    assert_close(got, modified(member.oracle(), SCORES))


@each_mod
def test_a_block_is_a_block_of_the_whole(member):
    """The indices, not the positions in the block, say which bias applies."""
    (i, j), mod, scores = indices(Q, K), member.slot(), jnp.asarray(SCORES)
    whole = np.asarray(mod(scores, i, j))
    part = jax.jit(lambda scores, i, j: mod(scores[2:4, 3:6], i[2:4], j[:, 3:6]))
    assert_close(part(scores, i, j), whole[2:4, 3:6])


@each_mod
def test_derivatives(member):
    cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(Q, K)))

    def loss(scores, arrays):
        return (member.slot(arrays)(scores, *indices(Q, K)) * cotangent).sum()

    assert_derivatives(loss, jnp.asarray(SCORES), member.arrays())


@pytest.mark.parametrize("buckets", [8, 32, 7])
@pytest.mark.parametrize("max_distance", [20, 128])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_has_t5_buckets(buckets, max_distance, bidirectional):
    """Raffel et al. 2020: every distance from -300 to 300, each bucket's own number read back."""
    distances = np.arange(-300, 301)
    table = np.arange(float(buckets))
    oracle = oracles.RelativeBias(table, bidirectional, max_distance)
    mod = RelativeBias(jnp.asarray(table), bidirectional, max_distance)
    got = mod(jnp.zeros((1, 601)), jnp.array([[300]]), jnp.arange(601)[None])
    expected = [oracle(0.0, 300, 300 + int(d)) for d in distances]
    np.testing.assert_array_equal(got[0], expected)


def test_relative_bias_by_hand():
    """32 buckets, 128 positions: 16 a side, 8 of them exact, then each doubling split in two."""
    mod = RelativeBias(jnp.arange(32.0))
    at = {
        0: 0,
        -1: 1,
        -7: 7,
        -8: 8,
        -15: 9,
        -16: 10,
        -64: 14,
        -128: 15,
        1: 17,
        7: 23,
        9: 24,
        900: 31,
    }
    for distance, bucket in at.items():
        assert mod(jnp.zeros((1, 1)), jnp.array([[1000]]), jnp.array([[1000 + distance]])) == bucket


@pytest.mark.parametrize("x64", [False, True])
def test_buckets_of_offsets_at_the_ends_of_their_dtype(x64):
    with jax.enable_x64(x64):
        table = jnp.arange(8.0)
        for both, far in [(True, [3, 7]), (False, [7, 0])]:
            mod = RelativeBias(table, bidirectional=both, max_distance=20)
            for dtype in dtypes_here():
                limits = np.iinfo(dtype)
                offsets = jnp.array([limits.min, limits.max], dtype)
                expected = [mod.bucket(jnp.array(0)) if limits.min == 0 else far[0], far[1]]
                np.testing.assert_array_equal(mod.bucket(offsets), expected, err_msg=dtype)


def test_integers_of_any_kind():
    scores, (i, j) = jnp.asarray(SCORES), indices(Q, K)
    table = jnp.arange(8.0)
    got = RelativeBias(table, max_distance=np.int64(20))(scores, i, j)
    np.testing.assert_array_equal(got, RelativeBias(table, max_distance=20)(scores, i, j))
    for far in (2**40, 2**70):
        np.testing.assert_array_equal(Alibi(far)(scores, i, j), Alibi(float(far))(scores, i, j))
        np.testing.assert_array_equal(SoftCap(far)(scores, i, j), SoftCap(float(far))(scores, i, j))
    with pytest.raises(ValueError, match="slope must be one real number"):
        Alibi(10**400)


def test_chain_applies_the_first_first():
    scores, (i, j) = jnp.asarray(SCORES), indices(Q, K)
    bias, cap = Bias(jnp.full((Q, K), 2.0)), SoftCap(1.5)
    assert_close(chain(bias, cap)(scores, i, j), 1.5 * np.tanh((SCORES + 2) / 1.5))
    assert_close(chain(cap, bias)(scores, i, j), 1.5 * np.tanh(SCORES / 1.5) + 2)


def test_chain_takes_plain_functions():
    scores, (i, j) = jnp.asarray(SCORES), indices(Q, K)
    got = chain(lambda s, i, j: s * (i + 1), Alibi(0.5))(scores, i, j)
    distance = np.abs(np.arange(Q)[:, None] - np.arange(K))
    assert_close(got, SCORES * (np.arange(Q)[:, None] + 1) - 0.5 * distance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_float32_bias_beside_half_scores_keeps_its_gradient(dtype):
    """jax-ml/jax#32242."""
    query = jnp.asarray(np.random.default_rng(2).normal(size=(Q, 3)), dtype)
    key = jnp.asarray(np.random.default_rng(3).normal(size=(K, 3)), dtype)

    @jax.jit
    @jax.grad
    def gradient(bias, query, key):
        return (attention_weights(query, key, score_mod=Bias(bias)) ** 2).sum()

    bias = np.asarray(SCORES, "float32")
    got = gradient(bias, query, key)
    assert got.dtype == jnp.float32
    expected = gradient(*(np.asarray(x, "float64") for x in (bias, query, key)))
    assert_close(got, expected, tolerance=1e-5)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("mod", "message"),
    [
        (lambda: Bias(jnp.ones((7, 5))), r"bias.*\D7, 5\D"),
        (lambda: Bias(jnp.ones((5, 1))), r"bias.*\D5, 1\D"),
        (lambda: Bias(jnp.ones(7)), r"bias.*\D7,?\D"),
        (lambda: Bias(jnp.ones((2, 5, 7))), r"bias.*\D2, 5, 7\D"),
        (lambda: RelativeBias(jnp.ones(1)), r"table.*\D1,?\D"),
        (lambda: RelativeBias(jnp.ones(3)), r"table.*\D3,?\D"),
        (lambda: RelativeBias(jnp.ones(1), bidirectional=False), r"table.*\D1,?\D"),
        (lambda: RelativeBias(jnp.ones((8, 2))), r"table.*\D2\D"),  # eight heads' tables
        (lambda: RelativeBias(jnp.ones(32), max_distance=0), r"max_distance.*0"),
        (lambda: RelativeBias(jnp.ones(32), max_distance=8), r"max_distance.*8"),
        (lambda: RelativeBias(jnp.ones(8), max_distance=2**31), r"max_distance.*2147483648"),
        (lambda: RelativeBias(jnp.ones(8), max_distance=True), r"max_distance.*True"),
        (lambda: Alibi(jnp.ones(4)), r"slope.*\D4,?\D"),
        (lambda: SoftCap(0.0), r"cap.*0"),
        (lambda: SoftCap(-30.0), r"cap.*-30"),
        (lambda: SoftCap(np.nan), r"cap.*nan"),
        (lambda: SoftCap(jnp.ones(7)), r"cap.*\D7,?\D"),
        (lambda: chain(Alibi(1.0), SoftCap(-1.0)), r"cap.*-1"),
        (lambda: jnp.ones((5, 7)), r"score_mod.*\D5, 7\D"),
    ],
)
def test_bad_mod_is_named(mod, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        attention_weights(jnp.ones((5, 3)), jnp.ones((7, 3)), score_mod=mod())


def test_traced_fields_raise_no_alarm():
    scores, (i, j) = jnp.asarray(SCORES), indices(Q, K)
    got = jax.jit(lambda cap, slope: chain(SoftCap(cap), Alibi(slope))(scores, i, j))(1.5, 0.5)
    assert_close(got, chain(SoftCap(1.5), Alibi(0.5))(scores, i, j))
