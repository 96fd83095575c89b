"""Which dtypes attention takes: narrow ones, any byte order, and under strict promotion."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import (
    Causal,
    RelativeBias,
    Softmax,
    attention,
    attention_and_logsumexp,
    attention_weights,
    chain,
    dot_product_attention,
    merge,
    normalizers,
)
from tests.members import IMPLEMENTATIONS, ROWS, SLOTS, in_turn, inputs

NARROW_FLOATS = [
    name
    for name in dir(jnp)
    if name.startswith(("float8", "float4")) and not name.startswith("float_")
]
NARROW = [*NARROW_FLOATS, "int2", "uint2", "int4", "uint4"]
each_narrow = pytest.mark.parametrize("dtype", NARROW)


def narrow(dtype, *shape):
    """Random numbers that each narrow dtype of the kind holds, and those in a usual dtype."""
    floats = "float" in dtype
    numbers = np.random.default_rng(5).choice([0.5, 1.0, 2.0] if floats else [0, 1], shape)
    array = numbers.astype(jnp.dtype(dtype))
    return array, array.astype("float32" if floats else "int8")


def assert_equal(got, expected):
    for one, other in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


@jax.jit
def attended(query, key, value):
    heads = [each[:, None] for each in (query, key, value)]
    bias = query[:1, :1]
    return (
        [each.attention_and_logsumexp(query, key, value) for each in IMPLEMENTATIONS],
        attention_weights(query, key),
        dot_product_attention(*heads, bias=bias, return_residual=True),
    )


@pytest.mark.usefixtures("without_shape_hook")  # it does not know all of them
@each_narrow
def test_narrow_arrays_are_computed_in_float32(dtype):
    arrays, usual = zip(*(narrow(dtype, *shape) for shape in [(5, 3), (7, 3), (7, 2)]), strict=True)
    got, expected = attended(*arrays), attended(*usual)
    assert_equal(got, expected)
    for one, other in zip(*map(jax.tree.leaves, (got[0], expected[0])), strict=True):
        assert one.dtype == other.dtype
    assert "float" not in dtype or got[0][0][0].dtype == jnp.float32


@jax.jit
def normalized(scores):
    functions = (normalizers.softmax, normalizers.sigmoid, normalizers.logsumexp)
    entmax = normalizers.entmax15(scores)
    merged = merge(scores[None], scores[None, :, 0])[0]
    return merged, entmax, [normalize(scores) for normalize in functions]


@pytest.mark.usefixtures("without_shape_hook")  # it does not know all of them
@each_narrow
def test_normalizers_and_merge_take_narrow_arrays(dtype):
    scores, usual = narrow(dtype, 5, 7)
    got, expected = normalized(scores), normalized(usual)
    assert_equal(got, expected)
    assert got[0].dtype == expected[0].dtype


@pytest.mark.parametrize(("slot", "member"), ROWS, ids=str)
def test_slots_hold_narrow_floats_in_float32(slot, member):
    for leaf in jax.tree.leaves(member.slot(dtype=jnp.float8_e4m3fn)):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating):
            assert leaf.dtype == jnp.float32


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("dtype", [bool, complex, "datetime64[s]", str])
def test_other_dtypes_are_refused_by_name(dtype):
    bad, good = np.zeros((5, 3), dtype), np.zeros((5, 3))
    for n, name in enumerate(["query", "key", "value"]):
        with pytest.raises(ValueError, match=f"{name} must "):
            attention(*(bad if n == m else good for m in range(3)))
    with pytest.raises(ValueError, match="outputs must "):
        merge(np.zeros((1, 5, 3), dtype), np.zeros((1, 5)))
    with pytest.raises(ValueError, match="logsumexps must "):
        merge(np.zeros((1, 5, 3)), np.zeros((1, 5), dtype))


@pytest.mark.usefixtures("without_shape_hook")
def test_any_byte_order_lists_and_integers_that_int32_lacks():
    query, key, value = (np.asarray(each) for each in inputs())
    expected = attention(query, key, value)
    for turn in (lambda x: x.astype(">f8"), np.ndarray.tolist):
        np.testing.assert_array_equal(attention(*map(turn, (query, key, value))), expected)
    with jax.enable_x64(False):
        zero, far = np.zeros((1, 1)), np.array([[2**32 + 1]])
        np.testing.assert_array_equal(attention(zero, zero, far), np.float32(far))


@pytest.mark.parametrize("each", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("members", in_turn(**SLOTS), ids=lambda x: "-".join(map(str, x.values())))
def test_strict_promotion(members, each):
    """Nothing promotes in silence: what JAX refuses, it refuses while it traces."""
    slots = {slot: member.slot(dtype=jnp.float32) for slot, member in members.items()}
    _require_strict(each, inputs(dtype="float32"), slots)


@pytest.mark.parametrize("each", IMPLEMENTATIONS, ids=str)
def test_strict_promotion_of_half_precision(each):
    slots = {
        "score_mod": chain(RelativeBias(jnp.arange(8.0, dtype=jnp.bfloat16)), attn_jax.Alibi(0.5)),
        "mask": Causal(jnp.int8(1)) & attn_jax.Window(2, 3) | attn_jax.Padding(jnp.uint32(2)),
        "normalizer": Softmax(jnp.float32(0.5)),
        "dropout": attn_jax.Dropout(0.3, jax.random.key(1)),
    }
    _require_strict(each, inputs(dtype="bfloat16"), slots)


def _require_strict(implementation, arrays, slots):
    slots = {name: slot for name, slot in slots.items() if slot is not None}
    inexact = {n: s for n, s in slots.items() if n not in ("mask", "dropout")}
    rest = {n: s for n, s in slots.items() if n not in inexact}

    def loss(arrays, slots):
        output = implementation.attention(*arrays, **slots, **rest)
        return output.astype(jnp.float32).sum()

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(jax.grad(loss, argnums=(0, 1)), arrays, inexact)


@pytest.mark.parametrize("each", IMPLEMENTATIONS, ids=str)
def test_the_logsumexp_takes_softmax_as_a_function(each):
    arrays = inputs()
    got = each.attention_and_logsumexp(*arrays, normalizer=normalizers.softmax)
    for one, other in zip(got, each.attention_and_logsumexp(*arrays), strict=True):
        np.testing.assert_array_equal(one, other)
    for normalizer in (normalizers.sigmoid, functools.partial(normalizers.softmax)):
        with pytest.raises(ValueError, match="normalizer must be a Softmax"):
            attention_and_logsumexp(*arrays, normalizer=normalizer)


def test_strict_promotion_of_the_other_functions():
    query, key, value = inputs(dtype="bfloat16")
    lengths, bias = jnp.array([3], jnp.uint8), jnp.ones((1, 1, 1, 7), jnp.float32)
    heads = [each[None, :, None] for each in (query, key, value)]
    options = {"is_causal": True, "local_window_size": (2, jnp.int16(1)), "return_residual": True}
    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(
            lambda *arrays: dot_product_attention(
                *arrays, bias=bias, key_value_seq_lengths=lengths, scale=0.3, **options
            ),
            *heads,
        )
        parts = jax.eval_shape(attention_and_logsumexp, query, key, value)
        jax.eval_shape(lambda *parts: merge(*(jnp.stack([each] * 2) for each in parts)), *parts)
        jax.eval_shape(attention_weights, query, key)
