"""masks.py: each mask is its rule for any block of indices; & | ~ are boolean algebra."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Causal, Dense, Padding, Prefix, Segments, Window, attention_weights
from tests.members import MASKS, SIZES
from tests.tolerance import assert_close

ALL = [member for member in MASKS if member.name != "no_mask"]
each_mask = pytest.mark.parametrize("member", ALL, ids=str)
Q, K = SIZES["q"], SIZES["k"]


def indices(q, k):
    return jnp.arange(q)[:, None], jnp.arange(k)[None, :]


@each_mask
@pytest.mark.parametrize("sizes", [(Q, K), (K, Q), (1, 1)], ids=str)
def test_mask_is_the_rule(member, sizes):
    q, k = sizes
    arrays = member.arrays({"q": q, "k": k})
    got = member.slot(arrays).dense(q, k)
    assert got.dtype == jnp.bool_
    np.testing.assert_array_equal(got, member.oracle(arrays).dense(q, k))


@each_mask
def test_a_block_is_a_block_of_the_whole(member):
    (i, j), mask = indices(Q, K), member.slot()
    block = jnp.broadcast_to(mask(i[1:4], j[:, 2:6]), (3, 4))
    np.testing.assert_array_equal(block, mask.dense(Q, K)[1:4, 2:6])


@each_mask
def test_weights_are_zero_exactly_where_the_mask_says(member):
    weights = attention_weights(jnp.ones((Q, 2)), jnp.ones((K, 2)), mask=member.slot())
    np.testing.assert_array_equal(weights > 0, member.oracle().dense(Q, K))


@pytest.mark.parametrize(("one", "other"), list(itertools.pairwise(ALL)), ids=str)
def test_boolean_algebra(one, other):
    a, b = one.slot(), other.slot()
    p, q = one.oracle().dense(Q, K), other.oracle().dense(Q, K)
    for got, expected in [
        (a & b, p & q),
        (a | b, p | q),
        (~a, ~p),
        (~~a, p),
        (~(a | b), ~p & ~q),
        (~a & ~b, ~p & ~q),
        (a & b | ~a, (p & q) | ~p),
    ]:
        np.testing.assert_array_equal(got.dense(Q, K), expected)


def test_causal_alignments():
    """Two queries, five keys: top left is offset 0, bottom right k - q."""
    np.testing.assert_array_equal(Causal().dense(2, 5), np.tri(2, 5, dtype=bool))
    np.testing.assert_array_equal(Causal(offset=3).dense(2, 5), np.tri(2, 5, 3, dtype=bool))
    np.testing.assert_array_equal(Causal(offset=-3).dense(5, 2), np.tri(5, 2, -3, dtype=bool))


def test_window_bounds_are_inclusive():
    got = Window(2, 1).dense(4, 6)[2]
    np.testing.assert_array_equal(got, [True, True, True, True, False, False])
    assert Window(None, None).dense(3, 4).all()
    np.testing.assert_array_equal(Window(0, 0).dense(3, 3), np.eye(3, dtype=bool))


def test_lengths_may_be_traced_and_batched():
    lengths = jnp.array([0, 3, 9])
    got = jax.jit(jax.vmap(lambda n: Padding(n, n).dense(Q, K)))(lengths)
    expected = [np.outer(np.arange(Q) < n, np.arange(K) < n) for n in (0, 3, 9)]
    np.testing.assert_array_equal(got, expected)


def test_offset_and_prefix_may_be_traced():
    got = jax.jit(lambda n: (Causal(n) | Prefix(n)).dense(Q, K))(2)
    np.testing.assert_array_equal(got, (Causal(2) | Prefix(2)).dense(Q, K))


def test_a_plain_function_is_a_mask():
    query, key = jnp.ones((Q, 2)), jnp.ones((K, 2))
    got = attention_weights(query, key, mask=lambda i, j: (i + j) % 3 == 0)
    allowed = np.add.outer(np.arange(Q), np.arange(K)) % 3 == 0
    assert_close(got, allowed / allowed.sum(1, keepdims=True))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda: Window(-1, 0), r"left.*-1"),
        (lambda: Window(0, -2), r"right.*-2"),
        (lambda: Window(1.5, 0), r"left.*1\.5"),
        (lambda: Dense(jnp.ones((Q, K))), r"array.*bool.*float"),
        (lambda: Dense(jnp.ones((Q, K), int)), r"array.*bool.*int"),
        (lambda: Dense(jnp.ones((K, Q), bool)), r"array.*\D7, 5\D"),
        (lambda: Dense(jnp.ones((1, K), bool)), r"array.*\D1, 7\D"),
        (lambda: Dense(jnp.ones((2, Q, K), bool)), r"array.*\D2, 5, 7\D"),
        (lambda: Segments(jnp.ones(Q, int), jnp.ones(Q, int)), r"key_ids.*\D5,?\D"),
        (lambda: Segments(jnp.ones(K, int), jnp.ones(K, int)), r"query_ids.*\D7,?\D"),
        (lambda: Segments(jnp.ones(Q, int), jnp.ones((1, K), int)), r"key_ids.*\D1, 7\D"),
        (lambda: Padding(-1), r"key_length.*-1"),
        (lambda: Padding(3, -1), r"query_length.*-1"),
        (lambda: Padding(jnp.array([3, 2])), r"key_length.*\D2,?\D"),
        (lambda: Padding(2.5), r"key_length.*2\.5"),
        (lambda: Prefix(-1), r"length.*-1"),
        (lambda: Prefix(jnp.array([3, 2])), r"length.*\D2,?\D"),
        (lambda: Causal(jnp.array([3, 2])), r"offset.*\D2,?\D"),
        (lambda: Causal(0.5), r"offset.*0\.5"),
        (lambda: Causal() & Window(-1, 0), r"left.*-1"),
        (lambda: jnp.ones((Q, K), bool), r"mask.*Dense"),
        (lambda: np.ones((Q, K), bool), r"mask.*Dense"),
        (lambda: jnp.ones((Q, K)), r"mask.*Dense"),
        (lambda: True, r"mask.*(?:True|bool)"),
    ],
)
def test_bad_mask_is_named(mask, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        attention_weights(jnp.ones((Q, 3)), jnp.ones((K, 3)), mask=mask())
