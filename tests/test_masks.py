"""masks.py: each mask is its rule for any block of indices; & | ~ are boolean algebra."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import (
    Causal,
    Dense,
    Padding,
    Prefix,
    Segments,
    Window,
    attention,
    attention_weights,
)
from attn_jax.block_mask import Span
from attn_jax.masks import block_mask
from tests import oracles
from tests.members import IMPLEMENTATIONS, MASKS, SIZES, inputs
from tests.test_integers import ENDS, dtypes_here, held
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


# Integers: any dtype, any size, at run time or before

POSITIONS = {
    "causal": lambda library, n: library.Causal(n),
    "window left": lambda library, n: library.Window(n, None),
    "window right": lambda library, n: library.Window(None, n),
    "window offset": lambda library, n: library.Window(2, 1, offset=n),
    "window offset right": lambda library, n: library.Window(None, 2, offset=n),
    "padding of keys": lambda library, n: library.Padding(n),
    "padding of queries": lambda library, n: library.Padding(6, n),
    "prefix": lambda library, n: library.Prefix(n),
    "all": lambda library, n: (
        (library.Causal(n) | ~library.Window(n, n)) & (library.Prefix(n) | library.Padding(3, n))
    ),
}
# what a user may hand over as an index: from 0, and up to the last one that int32 has
STARTS = [(0, 0), (2**31 - 1 - Q, 0), (0, 2**31 - 1 - K)]


@functools.cache
def allowed(name, n, start):
    """By Python's integers."""
    mask = POSITIONS[name](oracles, n)
    return [
        [mask(i, j) for j in range(start[1], start[1] + K)] for i in range(start[0], start[0] + Q)
    ]


def on_a_grid(mask, start):
    """The mask's answer for these indices, and what it says of blocks of 2 x 3 of them."""
    i, j = (at + np.arange(n) for at, n in zip(start, (Q, K), strict=True))
    rows, columns = (
        Span(each[::size], np.minimum(each[::size] + size - 1, each[-1]))
        for each, size in ((i, 2), (j, 3))
    )
    there = mask(jnp.asarray(i, int)[:, None], jnp.asarray(j, int)[None, :])
    return jnp.broadcast_to(there, (Q, K)), vars(block_mask(mask, rows, columns))


def assert_known(blocks, whole):
    """No block with a pair is left out, no pair is let through unseen."""
    whole = np.asarray(whole)
    for a, b in np.ndindex(blocks["any"].shape):
        block = whole[2 * a : 2 * a + 2, 3 * b : 3 * b + 3]
        maybe = True if blocks["runtime_any"] is None else blocks["runtime_any"][a, b]
        assert not block.any() or (blocks["any"][a, b] and maybe)
        assert block.all() or not blocks["all"][a, b]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", POSITIONS)
def test_static_positions_of_any_size(name, x64):
    with jax.enable_x64(x64):
        for n, start in itertools.product([*ENDS, 2**70, -(2**70)], STARTS):
            if n < 0 and name != "causal" and "offset" not in name:
                with pytest.raises(ValueError, match="must not be negative"):
                    POSITIONS[name](attn_jax, n)
                continue
            expected = allowed(name, n, start)
            got, blocks = on_a_grid(POSITIONS[name](attn_jax, n), start)
            np.testing.assert_array_equal(got, expected, err_msg=f"{n} at {start}")
            assert_known(blocks, expected)


@pytest.mark.parametrize("x64", [False, True])
def test_traced_positions_of_any_dtype(x64):
    @jax.jit
    def on_grids(n):
        return {
            (name, start): on_a_grid(make(attn_jax, n), start)
            for name, make in POSITIONS.items()
            for start in STARTS
        }

    with jax.enable_x64(x64):
        for dtype in ("int8", "uint32", *(("int64", "uint64") if x64 else ("uint8", "int32"))):
            for n in held(dtype):
                found = jax.device_get(on_grids(np.asarray(n, dtype)))
                for (name, start), (got, blocks) in found.items():
                    if "offset" in name and abs(n) > jnp.iinfo(jnp.result_type(int)).max:
                        continue  # sums of positions stay at the largest number, which is less
                    expected = allowed(name, n, start)
                    np.testing.assert_array_equal(got, expected, err_msg=f"{name} {dtype} {n}")
                    assert_known(blocks, expected)


@pytest.mark.parametrize("x64", [False, True])
def test_segments_of_any_two_dtypes(x64):
    """An int32 of -1 is no uint32 of 2³² - 1."""

    @jax.jit
    def on_grids(ids):
        results = {}
        for a, b in itertools.product(ids, ids):
            mask, q, k = Segments(ids[a], ids[b]), len(ids[a]), len(ids[b])
            single = (Span(np.arange(n), np.arange(n)) for n in (q, k))
            results[a, b] = mask.dense(q, k), block_mask(mask, *single).runtime_any
        return results

    with jax.enable_x64(x64):
        ids = {dtype: np.array(held(dtype), dtype) for dtype in dtypes_here()}
        for (a, b), (got, maybe) in on_grids(ids).items():
            expected = [[m == n for n in held(b)] for m in held(a)]
            np.testing.assert_array_equal(got, expected, err_msg=f"{a}, {b}")
            np.testing.assert_array_equal(maybe, expected)


def test_both_implementations_take_the_ends_of_int32():
    query, key, value = inputs()
    masks = [
        Causal(2**31 - 1),
        Causal(-(2**31)),
        Window(2**31, 2**70),
        Padding(2**31),
        Prefix(2**40),
    ]
    for mask, n in zip(masks, [K, 0, K, K, K], strict=True):
        expected = attention(query, key, value, mask=Padding(n))
        for each in IMPLEMENTATIONS:
            assert_close(each.attention(query, key, value, mask=mask), expected)
    for each in IMPLEMENTATIONS:
        traced = jax.jit(lambda n, each=each: each.attention(query, key, value, mask=Causal(n)))
        for n in (2**31 - 1, 2**32 - 1):
            assert_close(traced(jnp.uint32(n)), attention(query, key, value))


def test_integers_of_numpy_are_static():
    for n in (np.int8(2), np.uint64(2), np.array(2)):
        assert jax.tree.leaves(Causal(n) | Window(n, n) & Padding(n, n) | Prefix(n)) == []


def test_ids_that_would_wrap_are_refused():
    ids, small = np.array([1, 2**32 + 1]), np.array([1, 1])
    with jax.enable_x64(False):
        for wrong, name in [((ids, small), "query_ids"), ((small, ids), "key_ids")]:
            with pytest.raises(ValueError, match=f"{name} must be integers.*int32"):
                Segments(*wrong)
    assert not Segments(ids, small).dense(2, 2)[1].any()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("true", [True, np.True_, np.array(True), jnp.array(True)], ids=type)
def test_a_bool_is_no_integer(true):
    for name, make in {
        "offset": Causal,
        "left": lambda n: Window(n, 1),
        "right": lambda n: Window(1, n),
        "key_length": Padding,
        "query_length": lambda n: Padding(3, n),
        "length": Prefix,
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be one integer"):
            make(true)


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


def test_rows_and_shifts_of_any_size():
    """Indices that are moved stay in order at the ends of their dtype."""
    shifted = attn_jax.masks.Shifted
    for start in (2**31 - 1, 2**31, 2**70, jnp.uint32(2**31 + 5), jnp.int8(127)):
        assert shifted(attn_jax.Causal(), start).dense(3, 5).all()
        assert not shifted(attn_jax.Padding(3, 2), start).dense(3, 3).any()
    assert shifted(attn_jax.Causal(), -1).dense(3, 3).sum() == 3


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("rows", [[0.5], [-1], [[[[1]]]]])
def test_rows_are_indices(rows):
    with pytest.raises(ValueError, match=r"^rows must "):
        attn_jax.masks.Rows(attn_jax.Causal(), np.array(rows))
    with pytest.raises(ValueError, match=r"^start must be one integer"):
        attn_jax.masks.Shifted(attn_jax.Causal(), 1.5)
