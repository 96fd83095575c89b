"""dropout.py: a weight lives or dies by (rng, i, j) alone, and the mean stays right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import (
    Causal,
    Dense,
    Dropout,
    Entmax,
    Softmax,
    attention,
    attention_and_logsumexp,
)
from tests.members import NORMALIZERS, inputs
from tests.tolerance import assert_close, assert_derivatives, assert_exactly_zero

RNG = jax.random.key(4)


def dropped(q, k, dropout, **slots):
    """Weights after dropout, read off by attending to the identity."""
    query, key, _ = inputs({"q": q, "k": k, "d": 3, "e": 2})
    # one program: operation by operation each of these shapes would compile twenty
    attend = jax.jit(lambda *arrays: attention(*arrays, dropout=dropout, **slots))
    return np.asarray(attend(query, key, np.eye(k)))


@pytest.mark.parametrize("member", NORMALIZERS, ids=str)
def test_weights_are_zero_or_rescaled(member):
    """Operation by operation; the tests below are compiled."""
    query, key, _ = inputs()
    whole, got = (
        np.asarray(attention(query, key, np.eye(7), dropout=dropout, normalizer=member.slot()))
        for dropout in (None, Dropout(0.4, RNG))
    )
    alive = got != 0
    assert 0 < np.count_nonzero(alive) < np.count_nonzero(whole)
    assert_close(got[alive], whole[alive] / 0.6)


def test_fate_depends_on_rng_and_position_alone():
    fates = dropped(29, 31, Dropout(0.3, RNG)) != 0
    for q, k in [(1, 1), (2, 31), (29, 5), (13, 17)]:
        np.testing.assert_array_equal(dropped(q, k, Dropout(0.3, RNG)) != 0, fates[:q, :k])
    np.testing.assert_array_equal(dropped(29, 31, Dropout(0.3, RNG)) != 0, fates)
    other = dropped(29, 31, Dropout(0.3, jax.random.key(5))) != 0
    assert (fates != other).mean() > 0.3


@pytest.mark.parametrize("size", [(1, 8), (8, 3), (29, 31), (64, 64)], ids=str)
@pytest.mark.parametrize("normalizer", [Softmax(), Entmax(1.5)], ids=lambda n: type(n).__name__)
def test_every_block_drops_the_same_weights(normalizer, size):
    """Whole blocks, cut ones, halves of them, and those that reach beyond the last pair."""
    slots = {"normalizer": normalizer, "mask": Causal(3)}
    dense = dropped(29, 31, Dropout(0.3, RNG), **slots, implementation="dense")
    got = dropped(29, 31, Dropout(0.3, RNG), **slots, implementation="streaming", block_size=size)
    np.testing.assert_array_equal(got != 0, dense != 0)
    assert_close(got, dense)


def test_survivors_at_a_higher_rate_are_a_share_of_all():
    """Rate, independence of rows and of columns: within five standard deviations."""
    alive = dropped(199, 211, Dropout(0.3, RNG)) != 0
    deviation = 5 * np.sqrt(0.3 * 0.7)
    assert abs(alive.mean() - 0.7) < deviation / np.sqrt(alive.size)
    assert np.abs(alive.mean(0) - 0.7).max() < deviation / np.sqrt(199)
    assert np.abs(alive.mean(1) - 0.7).max() < deviation / np.sqrt(211)
    for shifted in (alive[1:] == alive[:-1], alive[:, 1:] == alive[:, :-1]):
        assert abs(shifted.mean() - 0.58) < 5 * np.sqrt(0.58 * 0.42 / shifted.size)
    square = alive[:199, :199]
    assert (square == square.T).mean() < 0.7


def test_the_mean_is_the_output_without_dropout():
    query, key, value = inputs()
    keys = jax.random.split(jax.random.key(0), 2000)
    outputs = jax.jit(
        jax.vmap(lambda rng: attention(query, key, value, dropout=Dropout(0.25, rng)))
    )(keys)
    spread = np.std(outputs, axis=0) / np.sqrt(2000)
    error = np.abs(np.mean(outputs, axis=0) - attention(query, key, value))
    assert (error < 5 * spread).all()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_fates_are_the_same_by_every_generator(impl):
    """Which vmaps `fold_in` in its own way."""
    keys = jax.random.split(jax.random.key(3, impl=impl), 2)
    (i, j), keep = np.indices((29, 31), sparse=True), jax.jit(Dropout.keep)
    one, other = (np.asarray(keep(Dropout(0.4, key), i, j)) for key in keys)
    assert 0.5 < one.mean() < 0.7
    assert (one != other).mean() > 0.3
    for rows, columns in [(slice(5, 18), slice(0, 7)), (slice(28, 29), slice(30, 31))]:
        part = keep(Dropout(0.4, keys[0]), i[rows], j[:, columns])
        np.testing.assert_array_equal(part, one[rows, columns])
    dropout = Dropout(0.4, keys[0])
    whole = dropped(29, 31, dropout, implementation="dense") != 0
    np.testing.assert_array_equal(whole, one)
    blocks = dropped(29, 31, dropout, implementation="streaming", block_size=(8, 3)) != 0
    np.testing.assert_array_equal(blocks, one)


def test_every_word_of_a_key_counts():
    def keep(*words):
        rng = jax.random.wrap_key_data(jnp.array(words, jnp.uint32), impl="rbg")
        return np.asarray(Dropout(0.5, rng).keep(jnp.arange(5)[:, None], jnp.arange(7)[None]))

    assert (keep(1, 2, 3, 4) != keep(1, 2, 3, 5)).any()
    assert (keep(1, 2, 3, 4) != keep(1, 2, 4, 4)).any()


def test_rate_zero_is_no_dropout():
    np.testing.assert_array_equal(dropped(5, 7, Dropout(0.0, RNG)), dropped(5, 7, None))


def test_raw_and_typed_rng_agree():
    raw = jax.random.key_data(RNG)
    np.testing.assert_array_equal(
        dropped(5, 7, Dropout(0.5, raw)), dropped(5, 7, Dropout(0.5, RNG))
    )


def test_dropout_comes_after_the_mask_and_leaves_the_logsumexp():
    query, key, value = inputs()
    allowed = np.random.default_rng(1).random((5, 7)) < 0.7
    allowed[2] = False
    got = dropped(5, 7, Dropout(0.3, RNG), mask=Dense(jnp.asarray(allowed)))
    assert_exactly_zero(jnp.asarray(got[~allowed]))
    slots = {"mask": Dense(jnp.asarray(allowed))}
    output, logsumexp = attention_and_logsumexp(
        query, key, value, dropout=Dropout(0.3, RNG), **slots
    )
    assert_close(logsumexp, attention_and_logsumexp(query, key, value, **slots)[1])
    assert_close(output, attention(query, key, value, dropout=Dropout(0.3, RNG), **slots))


def test_derivatives_are_of_the_surviving_weights():
    query, key, value = inputs()

    def loss(query, key, value):
        return (attention(query, key, value, dropout=Dropout(0.3, RNG)) ** 2).sum()

    assert_derivatives(loss, query, key, value)


def test_half_precision_and_traced_rng():
    query, key, value = inputs(dtype="bfloat16")
    eager = attention(query, key, value, dropout=Dropout(0.5, RNG))
    traced = jax.jit(lambda rng: attention(query, key, value, dropout=Dropout(0.5, rng)))(RNG)
    assert eager.dtype == jnp.bfloat16
    assert_close(traced, eager)


def test_heads_with_their_own_rng_drop_differently():
    query, key, _ = inputs()
    heads = jax.vmap(lambda rng: attention(query, key, np.eye(7), dropout=Dropout(0.5, rng)))
    got = np.asarray(jax.jit(heads)(jax.random.split(RNG, 3))) != 0
    assert (got[0] != got[1]).any()
    assert (got[1] != got[2]).any()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("rate", [1.0, 1.5, -0.1, np.nan, np.inf])
def test_bad_rate_is_named(rate):
    x = jnp.ones((4, 2))
    with pytest.raises(ValueError, match=f"(?s)rate.*{rate}"):
        attn_jax.attention(x, x, x, dropout=Dropout(rate, RNG))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("dropout", [0.1, RNG], ids=["rate alone", "rng alone"])
def test_dropout_must_be_a_dropout(dropout):
    x = jnp.ones((4, 2))
    with pytest.raises(ValueError, match=r"dropout must be a Dropout"):
        attention(x, x, x, dropout=dropout)
