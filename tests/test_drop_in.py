"""drop_in.py: jax.nn's signature against loops and jax.nn itself; Flax's against stock Flax."""

import functools
import itertools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import (
    Alibi,
    Causal,
    Cosine,
    Entmax,
    Softmax,
    Window,
    attention,
    attention_weights,
    dot_product_attention,
    flax_attention_fn,
)
from tests import oracles
from tests.tolerance import (
    TOLERANCE,
    assert_close,
    assert_derivatives,
    assert_exactly_zero,
    assert_trees_close,
)

B, T, S, N, K, H, E = 3, 5, 7, 8, 2, 6, 9
SIZES = {"B": B, "N": N, "T": T, "S": S, "1": 1}
SHAPES = ["S", "1", "T1", "TS", "1TS", "N11", "NTS", "111S", "B11S", "1N1S", "B1TS", "BNTS"]
jitted = jax.jit(
    dot_product_attention,
    static_argnames=("is_causal", "local_window_size", "implementation", "return_residual"),
)
LENGTHS = {"query_seq_lengths": [4, 5, 0], "key_value_seq_lengths": [7, 0, 3]}


def shape_of(letters):
    return tuple(SIZES[letter] for letter in letters)


def draw(batch=(B,), t=T, s=S, n=N, k=K, h=H, e=E, dtype="float64", seed=5):
    """Random query [*batch, t, n, h], key [*batch, s, k, h], value [*batch, s, k, e]."""
    rng = np.random.default_rng(seed)
    shapes = [(t, n, h), (s, k, h), (s, k, e)]
    return [rng.normal(size=(*batch, *shape)).astype(jnp.dtype(dtype)) for shape in shapes]


def normal(*shape, seed=6):
    return np.random.default_rng(seed).normal(size=shape)


def coins(*shape, seed=8):
    return np.random.default_rng(seed).random(shape) < 0.7


def loop(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size=None,
):
    """The output and the logsumexp, one example and one head at a time."""
    batched = np.ndim(query) == 4
    query, key, value = (
        np.asarray(x, np.float64) if batched else np.asarray(x, np.float64)[None]
        for x in (query, key, value)
    )
    b, t, n, _ = query.shape
    s, k, e = value.shape[1:]
    bias = np.broadcast_to(0.0 if bias is None else bias, (b, n, t, s))
    mask = np.broadcast_to(True if mask is None else mask, (b, n, t, s))
    queries = np.broadcast_to(t if query_seq_lengths is None else query_seq_lengths, b)
    keys = np.broadcast_to(s if key_value_seq_lengths is None else key_value_seq_lengths, b)
    window = local_window_size
    left, right = window if isinstance(window, tuple) else (window, window)
    output, logsumexp = np.zeros((b, t, n, e)), np.zeros((b, t, n))

    for one, head in np.ndindex(b, n):

        def allowed(i, j, one=one, head=head):
            return (
                mask[one, head, i, j]
                and (j <= i or not is_causal)
                and i < queries[one]
                and j < keys[one]
                and (left is None or i - j <= left)
                and (right is None or j - i <= right)
            )

        output[one, :, head], logsumexp[one, :, head] = oracles.attention_and_logsumexp(
            query[one, :, head],
            key[one, :, head // (n // k)],
            value[one, :, head // (n // k)],
            score=oracles.ScaledDot(scale),
            score_mod=oracles.Bias(bias[one, head]),
            mask=allowed,
        )
    return (output, logsumexp) if batched else (output[0], logsumexp[0])


def plain(query, key, value, bias=0.0, scale=None):
    """The formula without masks, in jnp and without grouped heads: other gradients to hold by."""
    group = query.shape[-2] // key.shape[-2]
    key, value = (jnp.repeat(each, group, axis=-2) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("...tnh,...snh->...nts", query, key) * scale
    if jnp.ndim(bias):
        bias = jnp.broadcast_to(bias, scores.shape)
    return jnp.einsum("...nts,...sne->...tne", jax.nn.softmax(scores + bias), value)


# 1. jax.nn's signature, against loops

OPTIONS = {
    "batched": [True, False],
    "bias": [None, "S", "N11", "BNTS"],
    "mask": [None, "T1", "B11S", "1N1S"],
    "is_causal": [False, True],
    "query_seq_lengths": [False, True],
    "key_value_seq_lengths": [False, True],
    "local_window_size": [None, 2, (1, None), (0, 3)],
    "key_heads": [K, 1, N],
    "scale": [None, 0.3],
    "lengths": [(T, S), (S, T), (T, T)],
    "return_residual": [False, True],
    "implementation": [None, "streaming"],
}


def every_pair(options, seed=0):
    """Few choices of all the options such that each two values of two options meet in one."""
    rng, names = random.Random(seed), list(options)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(range(len(options[a])), range(len(options[b])))
    }
    choices = []
    while missing:
        forced = dict(min(missing))
        candidates = [
            {name: forced.get(name, rng.randrange(len(options[name]))) for name in names}
            for _ in range(60)
        ]
        met = [missing & set(itertools.combinations(c.items(), 2)) for c in candidates]
        best = max(range(60), key=lambda c: len(met[c]))
        missing -= met[best]
        choices.append({name: options[name][i] for name, i in candidates[best].items()})
    return choices


PAIRS = every_pair(OPTIONS)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_every_pair_of_options_is_the_loop(number):
    choice = dict(PAIRS[number])
    batched, key_heads, (t, s) = (choice.pop(n) for n in ("batched", "key_heads", "lengths"))
    residual = choice.pop("return_residual")
    batch = (B,) if batched else ()
    qkv = draw(batch, t=t, s=s, k=key_heads)
    sizes = SIZES | {"T": t, "S": s}
    arrays = {}
    for name, make in (("bias", normal), ("mask", coins)):
        letters = choice.pop(name)
        if letters is not None:
            arrays[name] = make(*[sizes[x] for x in (letters if batched else letters[-3:])])
    for name, lengths in LENGTHS.items():
        if choice.pop(name):
            arrays[name] = np.minimum(lengths, t if "query" in name else s)[: B if batched else 1]
            arrays[name] = arrays[name] if batched else arrays[name][0]

    implementation = choice.pop("implementation")
    got = jitted(*qkv, **arrays, **choice, return_residual=residual, implementation=implementation)
    expected = loop(*qkv, **arrays, **choice)
    assert_trees_close(got, expected if residual else expected[0])


def test_bias_and_mask_of_every_shape_broadcast_by_one_rule():
    qkv = draw()
    shapes = zip(SHAPES, reversed(SHAPES), strict=True)
    arrays = [(normal(*shape_of(one)), coins(*shape_of(other))) for one, other in shapes]
    call = jax.jit(lambda arrays: [dot_product_attention(*qkv, *each) for each in arrays])
    assert_trees_close(call(arrays), [loop(*qkv, *each)[0] for each in arrays])


def test_window_sides():
    windows = [0, 3, (0, 0), (2, 1), (None, 1), (None, None), (9, 9)]
    qkv, options = draw(n=1, k=1), [{"local_window_size": w, "scale": 2} for w in windows]
    call = jax.jit(lambda qkv: [dot_product_attention(*qkv, **each) for each in options])
    assert_trees_close(call(qkv), [loop(*qkv, **each)[0] for each in options])


# 2. jax.nn itself, where it is right (float32, E = H, no empty row)

JAX_NN = {
    "nothing": {},
    "multi_query": {"key_heads": 1},
    "grouped": {"key_heads": K},
    "scale": {"scale": 0.3},
    "bias": {"bias": "BNTS"},
    "bias_of_keys": {"bias": "B11S", "key_heads": K},
    "mask": {"mask": "B1TS"},
    "causal": {"is_causal": True, "key_heads": K},
    "mask_causal_lengths": {"mask": "1N1S", "is_causal": True, "key_value_seq_lengths": [7, 4, 2]},
    "causal_window": {"is_causal": True, "local_window_size": (2, 1)},
    "bias_mask_window": {"bias": "1N1S", "mask": "BNTS", "local_window_size": 3},
}


@pytest.mark.parametrize("name", JAX_NN)
def test_equals_jax_nn(name):
    options = dict(JAX_NN[name])
    qkv = draw(k=options.pop("key_heads", N), e=H, dtype="float32")
    if "bias" in options:
        options["bias"] = jnp.asarray(normal(*shape_of(options["bias"])), jnp.float32)
    if "mask" in options:
        mask = coins(*shape_of(options["mask"]))
        mask[..., 0] = True
        if "local_window_size" in options:
            mask |= np.eye(T, S, dtype=bool)  # no row is empty
        options["mask"] = jnp.asarray(mask)
    if "key_value_seq_lengths" in options:
        lengths = options["key_value_seq_lengths"]
        options["key_value_seq_lengths"] = jnp.array(lengths, jnp.int32)  # jax.nn takes no other

    @jax.jit
    def both(*qkv):
        ours = dot_product_attention(*qkv, **options, implementation="xla")
        return ours, jax.nn.dot_product_attention(*qkv, **options)

    got, expected = both(*qkv)
    assert got.dtype == jnp.float32
    assert_close(got, expected, tolerance=5e-6)


def test_residual_is_jax_nns():
    qkv = draw(e=H, dtype="float32")
    options = {"is_causal": True, "return_residual": True}
    theirs = jax.jit(functools.partial(jax.nn.dot_product_attention, **options))
    assert_trees_close(jitted(*qkv, **options), theirs(*qkv), tolerance=5e-6)


def test_dtypes_are_jax_nns_so_that_either_takes_the_others_cotangents():
    qkv = draw(e=H, dtype="bfloat16")
    ours, theirs = (
        functools.partial(f, return_residual=True)
        for f in (dot_product_attention, jax.nn.dot_product_attention)
    )
    cotangents = jax.eval_shape(theirs, *qkv)
    assert jax.eval_shape(ours, *qkv) == cotangents
    jax.eval_shape(lambda *args: jax.vjp(ours, *qkv)[1](args), *cotangents)


# 3. Where jax.nn is or was wrong


def test_lengths_alone_delete_keys_and_queries():
    query, key, value = draw()
    lengths = {"query_seq_lengths": [4, 5, 2], "key_value_seq_lengths": [7, 1, 3]}
    given = {name: np.array(each) for name, each in lengths.items()}
    together = jitted(query, key, value, **given)
    of_keys = {"key_value_seq_lengths": given["key_value_seq_lengths"]}
    keys_alone = jitted(query, key, value, **of_keys)
    together, keys_alone = jax.device_get((together, keys_alone))
    for one in range(B):
        t, s = (each[one] for each in lengths.values())
        expected, _ = loop(query[one], key[one, :s], value[one, :s])
        assert_close(keys_alone[one], expected)
        assert_close(together[one, :t], expected[:t])
        assert_exactly_zero(together[one, t:])


def test_window_alone_and_with_a_mask():
    query, key, value = draw()
    mask = np.arange(S) != 2
    alone = np.asarray(jitted(query, key, value, local_window_size=(1, 0)))
    masked = np.asarray(jitted(query, key, value, mask=mask, local_window_size=(1, 0)))
    for i in range(T):
        near = [j for j in (i - 1, i) if j >= 0]
        for got, seen in ((alone, near), (masked, [j for j in near if j != 2])):
            row = slice(i, i + 1)
            expected, _ = loop(query[:, row], key[:, np.array(seen)], value[:, np.array(seen)])
            assert_close(got[:, row], expected)


def test_empty_rows_are_zero_and_have_no_gradient():
    qkv = draw()
    mask = np.ones((B, 1, T, S), bool)
    mask[0, :, 3] = False  # query 3 of example 0; all of example 1 by its length
    lengths = jnp.array([7, 0, 3])

    def call(qkv, bias):
        options = {"key_value_seq_lengths": lengths, "return_residual": True}
        return dot_product_attention(*qkv, bias, mask, **options)

    @jax.jit
    def outputs_and_gradients(*arguments):
        results, vjp = jax.vjp(call, *arguments)
        return results, vjp(jax.tree.map(jnp.ones_like, results))

    results, gradients = jax.device_get(outputs_and_gradients(qkv, normal(B, N, T, S)))
    (output, residual), ((query, key, value), bias) = results, gradients
    empty = np.zeros((B, T), bool)
    empty[0, 3] = empty[1] = True
    assert_exactly_zero([output[empty], query[empty], key[1], value[1], bias[1], bias[0, :, 3]])
    assert np.all(residual[empty] == -jnp.inf)
    assert np.isfinite(residual[~empty]).all()
    for gradient in (query, key, value, bias):
        assert np.isfinite(gradient).all()
        assert np.any(gradient)
    assert_exactly_zero([key[2, 3:], value[2, 3:], bias[2, ..., 3:]])


def test_what_is_masked_may_hold_anything():
    query, key, value = draw()
    lengths = np.array([7, 4, 3])
    expected = jitted(query, key, value, key_value_seq_lengths=lengths)
    beyond = (np.arange(S) >= lengths[:, None])[..., None, None]
    for poison in (1e30, jnp.inf, jnp.nan):
        rotten = [np.where(beyond, poison, each) for each in (key, value)]
        assert_close(jitted(query, *rotten, key_value_seq_lengths=lengths), expected)


# 4. Derivatives


def test_gradients_of_every_array_are_the_formulas():
    """A bias of each shape has the gradient of that shape: examples do not share theirs."""
    qkv, cotangent = draw(), normal(B, T, N, E, seed=9)
    shapes = ["S", "N11", "B11S", "B1TS", "BNTS"]
    biases = {letters: normal(*shape_of(letters)) for letters in shapes}

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(function, qkv, biases):
        def loss(qkv, biases):
            return sum((function(*qkv, each) * cotangent).sum() for each in biases.values())

        return jax.grad(loss, (0, 1))(qkv, biases)

    got = jax.device_get(gradients(dot_product_attention, qkv, biases))
    assert_trees_close(got, gradients(plain, qkv, biases), tolerance=1e-11)
    assert np.any(got[1]["B11S"][0] != got[1]["B11S"][1])


def test_derivatives_of_the_output_and_of_the_residual():
    mask, lengths = coins(2, 1, 3, 4), jnp.array([3, 4])
    qkv = draw((2,), t=3, s=4, n=2, k=1, h=3, e=2)
    weight, other = normal(2, 3, 2, 2, seed=1), normal(2, 3, 2, seed=2)

    def loss(query, key, value, bias, scale, output_share, residual_share):
        options = {"key_value_seq_lengths": lengths, "is_causal": True, "return_residual": True}
        output, residual = dot_product_attention(
            query, key, value, bias, mask | np.eye(3, 4, dtype=bool), scale=scale, **options
        )
        return output_share * (output * weight).sum() + residual_share * (residual * other).sum()

    arguments = (*qkv, jnp.asarray(normal(2, 1, 3, 4)), jnp.array(0.7))
    for shares in ((1.0, 0.0), (0.0, 1.0)):
        one = functools.partial(loss, output_share=shares[0], residual_share=shares[1])
        assert_derivatives(one, *arguments, every_mixture=False)


@pytest.mark.parametrize("sizes", [(T, S), (515, 1030)], ids=str)
def test_streaming_is_dense_with_gradients(sizes, monkeypatch):
    """One block and several; on one device heads are a loop, on several they are vmapped."""
    t, s = sizes
    qkv, mask = draw(t=t, s=s, n=2, k=1, h=3, e=2), coins(1, 2, 1, s)
    bias = normal(B, 1, t, 1)
    lengths = {"query_seq_lengths": jnp.array([t, t // 2, 0]), "key_value_seq_lengths": [s, 2, 3]}

    def loss(qkv, bias, implementation):
        options = {name: jnp.array(each) for name, each in lengths.items()}
        options |= {"is_causal": True, "local_window_size": (s // 2, None), "return_residual": True}
        output, residual = dot_product_attention(
            *qkv, bias, mask, **options, implementation=implementation
        )
        results = output, jnp.where(residual == -jnp.inf, 0, residual)
        return sum((each**2).sum() for each in results), (output, residual)

    def outputs_and_gradients(name):
        gradient = jax.grad(functools.partial(loss, implementation=name), (0, 1), has_aux=True)
        return jax.jit(gradient)(qkv, bias)

    expected = outputs_and_gradients("dense")
    for devices in (1, 2):
        monkeypatch.setattr(jax, "device_count", lambda devices=devices: devices)
        assert_trees_close(outputs_and_gradients("streaming"), expected)


# 5. Precision, transformations, invariance


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_precision(dtype):
    qkv = draw(dtype=dtype)
    output, residual = jitted(*qkv, is_causal=True, return_residual=True)
    assert (output.dtype, residual.dtype) == (dtype, dtype)
    expected, logsumexp = loop(*qkv, is_causal=True)
    assert_close(output, expected, tolerance=TOLERANCE[dtype])
    assert_close(residual, logsumexp, tolerance=TOLERANCE[dtype])


def test_vmap_over_examples_and_traced_lengths():
    query, key, value = draw()
    lengths, bias = np.array([7, 2, 0]), normal(B, N, T, S)
    expected = jitted(query, key, value, bias, key_value_seq_lengths=lengths)

    def one(query, key, value, bias, length):
        return dot_product_attention(query, key, value, bias, key_value_seq_lengths=length)

    assert_close(jax.jit(jax.vmap(one))(query, key, value, bias, lengths), expected)
    several = jax.jit(
        jax.vmap(lambda n: dot_product_attention(query, key, value, key_value_seq_lengths=n))
    )
    each = several(np.stack([lengths, lengths[::-1]]))
    for got, n in zip(each, (lengths, lengths[::-1]), strict=True):
        assert_close(got, loop(query, key, value, key_value_seq_lengths=n)[0])


def test_what_else_is_in_the_batch_and_how_much_padding_changes_nothing():
    query, key, value = draw()
    lengths = {
        "query_seq_lengths": np.array([4, 5, 1]),
        "key_value_seq_lengths": np.array([7, 2, 3]),
    }
    options = {"is_causal": True, "local_window_size": (3, None)}
    expected = np.asarray(jitted(query, key, value, **lengths, **options))
    order = np.array([2, 0, 1])
    shuffled = {name: each[order] for name, each in lengths.items()}
    got = jitted(query[order], key[order], value[order], **shuffled, **options)
    assert_close(got, expected[order])
    for one in range(B):
        alone = {name: each[one] for name, each in lengths.items()}
        got = jitted(query[one], key[one], value[one], **alone, **options)
        assert_close(got, expected[one])
    longer = [
        np.pad(each, ((0, 0), (0, extra), (0, 0), (0, 0)), constant_values=7.0)
        for each, extra in ((query, 3), (key, 4), (value, 4))
    ]
    got = np.asarray(jitted(*longer, **lengths, **options))
    assert_close(got[:, :T], expected)
    assert_exactly_zero(got[:, T:])


@pytest.mark.parametrize("dtype", ["int8", "uint32", "uint64"])
def test_lengths_and_windows_of_any_integer_dtype(dtype):
    qkv = draw()

    @jax.jit
    def attend(lengths, left, right):
        names = ("query_seq_lengths", "key_value_seq_lengths")
        options = dict(zip(names, lengths, strict=True), local_window_size=(left, right))
        return dot_product_attention(*qkv, **options)

    most = np.iinfo(dtype).max
    for left, right in [(1, most), (most, 0), (most, most)]:
        lengths = [[2, most, 5], [most, 3, most]]
        got = attend(np.array(lengths, dtype), np.array(left, dtype), jnp.array(right, dtype))
        few = [[min(n, 9) for n in each] for each in lengths]
        assert_close(got, attend(np.array(few), min(left, 9), min(right, 9)))


def test_static_lengths_and_windows_of_any_size():
    query, key, value = draw()
    got = jitted(query, key, value, local_window_size=(2**31, 2**70))
    assert_close(got, jitted(query, key, value))
    with jax.enable_x64(False), pytest.raises(ValueError, match="key_value_seq_lengths must be"):
        dot_product_attention(query, key, value, key_value_seq_lengths=np.array([1, 2**32, 3]))


# 6. Refusals

X = np.zeros
REFUSALS = [
    ("query", {"query": X((T, H))}),
    ("query", {"query": X((1, B, T, N, H))}),
    ("key", {"key": X((S, K, H))}),
    ("value", {"value": X((S, K, E))}),
    ("query, key and value", {"query": X((1, T, N, H))}),
    ("query, key and value", {"value": X((1, S, K, E))}),
    ("key and value", {"value": X((B, S + 1, K, E))}),
    ("key and value", {"value": X((B, S, 1, E))}),
    ("query and key", {"query": X((B, T, N, H + 1))}),
    ("query heads", {"query": X((B, T, 3, H))}),
    ("query heads", {"key": X((B, S, 0, H)), "value": X((B, S, 0, E))}),
    ("bias", {"bias": X((T, S), bool)}),
    ("bias", {"bias": X(())}),
    ("bias", {"bias": X((1, 1, 1, 1, S))}),
    ("bias", {"bias": X((B, T, S))}),
    ("bias", {"bias": X((S + 1,))}),
    ("mask", {"mask": X((T, S))}),
    ("mask", {"mask": X((T, S), int)}),
    ("mask", {"mask": X((B, S), bool)}),
    ("mask", {"mask": X((1, B, N, T, S), bool)}),
    ("query_seq_lengths", {"query_seq_lengths": X(B)}),
    ("query_seq_lengths", {"query_seq_lengths": X(B + 1, int)}),
    ("query_seq_lengths", {"query_seq_lengths": X((), int)}),
    ("key_value_seq_lengths", {"key_value_seq_lengths": np.array([1, -1, 2])}),
    ("key_value_seq_lengths", {"key_value_seq_lengths": X((B, 1), int)}),
    ("local_window_size", {"local_window_size": (1, 2, 3)}),
    ("local_window_size", {"local_window_size": 1.5}),
    ("left", {"local_window_size": -1}),
    ("right", {"local_window_size": (None, -2)}),
    ("local_window_size", {"local_window_size": (0.5, 1)}),
    ("local_window_size", {"local_window_size": True}),
    ("local_window_size", {"local_window_size": (1, np.True_)}),
    ("key_value_seq_lengths", {"key_value_seq_lengths": np.array([True, True, False])}),
    ("query_seq_lengths", {"query_seq_lengths": [1, 2**70, 2]}),
    ("scale", {"scale": X(2)}),
    ("implementation", {"implementation": "flash"}),
    ("implementation", {"implementation": "cudnn"}),
]


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(("name", "wrong"), REFUSALS, ids=lambda x: x if type(x) is str else "")
def test_refusals_name_the_argument(name, wrong):
    arguments = {"query": X((B, T, N, H)), "key": X((B, S, K, H)), "value": X((B, S, K, E))}
    with pytest.raises(ValueError, match=rf"^{name} must .*\. Got "):
        dot_product_attention(**arguments | wrong)


def test_an_example_may_have_a_bias_for_a_batch_of_one():
    qkv = draw(())
    bias = np.random.default_rng(3).normal(size=(1, N, T, S))
    call = jax.jit(dot_product_attention)
    assert_close(call(*qkv, bias), call(*qkv, bias[0]))


# 7. Flax: nnx.MultiHeadAttention with our attention_fn is the stock one

F = 8  # features of a layer: 4 heads of 2


def layers(*attention_fns, seed=0, **options):
    """Layers with the same parameters: the stock one, then one for each function."""
    options = {"num_heads": 4, "in_features": F, "decode": False} | options
    biases = nnx.initializers.normal(1.0)
    stock = nnx.MultiHeadAttention(**options, bias_init=biases, rngs=nnx.Rngs(seed))
    return stock, *(
        nnx.MultiHeadAttention(**options, bias_init=biases, attention_fn=f, rngs=nnx.Rngs(seed))
        for f in attention_fns
    )


def tokens(*shape, dtype="float32", seed=4):
    return normal(*shape, seed=seed).astype(dtype)


def padding(*batch, s=T):
    """[*batch, s] of 0 and 1: at least one key each."""
    return np.float32(coins(*batch, s, seed=10) | (np.arange(s) == 0))


def with_first_key(mask):
    """The mask of numbers or booleans, where every query may attend to the first key."""
    mask = np.array(mask)
    mask[..., 0] = 1
    return mask


def flax_cases():
    x = tokens(B, T, F)
    pad = padding(B)
    causal = np.tri(T, dtype=np.float32)[None, None] * np.ones((B, 1, 1, 1), np.float32)
    pairs = padding(2, B)[..., None, :, None] * padding(2, B)[..., None, None, :]
    yield "self", {}, (x,), {}
    yield "one_example", {}, (tokens(T, F),), {}
    yield "cross", {"in_kv_features": 3}, (x, tokens(B, S, 3)), {}
    yield "key_and_value", {}, (x, tokens(B, S, F, seed=1), tokens(B, S, F, seed=2)), {}
    yield "two_batch_axes", {}, (tokens(2, B, T, F),), {}
    yield (
        "two_batch_axes_mask",
        {},
        (tokens(2, B, T, F),),
        {"mask": with_first_key(pairs)},
    )
    yield "mask_of_keys", {}, (x,), {"mask": pad[:, None, None, :] > 0}
    yield "mask_of_numbers", {}, (x,), {"mask": pad[:, None, None, :]}
    yield "mask_full", {}, (x,), {"mask": with_first_key(coins(B, 4, T, T))}
    yield "mask_causal", {}, (x,), {"mask": causal}
    combined = np.logical_and(causal, pad[:, None, None, :]).astype(np.float32)
    yield "masks_combined", {"num_kv_heads": 2}, (x,), {"mask": combined}
    yield "is_causal", {}, (x,), {"is_causal": True}
    yield "is_causal_and_mask", {}, (x,), {"mask": pad[:, None, None, :] > 0, "is_causal": True}
    yield "multi_query", {"num_kv_heads": 1}, (x,), {}
    yield "grouped", {"num_kv_heads": 2}, (x,), {"is_causal": True}
    yield "normalized", {"normalize_qk": True}, (x,), {}
    yield "precision", {"precision": "highest"}, (x,), {}
    yield "lax_precision", {"precision": jax.lax.Precision.HIGHEST}, (x,), {}
    yield "bfloat16", {"dtype": jnp.bfloat16}, (x,), {"is_causal": True}
    yield "deterministic", {"dropout_rate": 0.5}, (x,), {"deterministic": True}


FLAX_CASES = {name: rest for name, *rest in flax_cases()}


@pytest.mark.parametrize("name", FLAX_CASES)
def test_equals_stock_flax(name):
    options, inputs, arguments = FLAX_CASES[name]
    stock, ours = layers(flax_attention_fn(), **options)
    if "mask" in arguments:
        arguments = arguments | {"mask": jnp.asarray(arguments["mask"])}
    both = nnx.jit(lambda *layers: [layer(*inputs, **arguments) for layer in layers])
    expected, got = both(stock, ours)
    assert got.dtype == expected.dtype
    tolerance = 4e-2 if "bfloat16" in name else 1e-5
    assert_close(got, expected, tolerance=tolerance)


def test_flax_bias_argument():
    qkv = draw(e=H, k=N, dtype="float32")
    bias = jnp.asarray(normal(B, N, T, S), jnp.float32)
    functions = nnx.dot_product_attention, flax_attention_fn()
    expected, got = jax.jit(lambda *arrays: [f(*arrays) for f in functions])(*qkv, bias)
    assert_close(got, expected, tolerance=5e-6)


def test_flax_gradients_of_the_parameters():
    @nnx.jit
    def gradients(layer):
        return nnx.grad(lambda layer: (layer(x, is_causal=True) ** 2).sum())(layer)

    x = tokens(B, T, F)
    stock, ours = layers(flax_attention_fn(), num_kv_heads=2)
    expected, got = (nnx.state(gradients(layer), nnx.Param) for layer in (stock, ours))
    assert_trees_close(nnx.to_pure_dict(got), nnx.to_pure_dict(expected), tolerance=1e-4)


def test_flax_cache_step_by_step():
    x = tokens(B, T, F)
    stock, ours = layers(flax_attention_fn(), decode=True, num_kv_heads=2)
    _, causal = layers(flax_attention_fn(), num_kv_heads=2)
    for layer in (stock, ours):
        layer.init_cache(x.shape)
    step = nnx.jit(lambda layer, x: layer(x))
    at_once = nnx.jit(lambda layer: layer(x, is_causal=True))
    expected, got = (
        np.concatenate([step(layer, x[:, i : i + 1]) for i in range(T)], axis=1)
        for layer in (stock, ours)
    )
    assert_close(got, expected, tolerance=1e-5)
    assert_close(got, at_once(causal), tolerance=1e-5)
    assert_trees_close(ours.cached_key[...], stock.cached_key[...])


def sown(layer, x, mask=None):
    """A layer's output and the weights that it sows."""
    apply = nnx.jit(
        nnx.capture(lambda layer: layer(x, mask=mask, sow_weights=True), nnx.Intermediate)
    )
    output, intermediates = apply(layer)
    (weights,) = intermediates["attention_weights"].get_value()
    return output, weights


@pytest.mark.parametrize("batch", [(B,), (2, B)], ids=str)
def test_flax_sows_weights(batch):
    x, mask = tokens(*batch, T, F), jnp.asarray(with_first_key(coins(*batch, 1, T, T)))
    stock, ours = layers(flax_attention_fn(), num_kv_heads=2)
    expected, weights = sown(stock, x, mask)
    got, our_weights = sown(ours, x, mask)
    assert weights.shape == (*batch, 4, T, T)
    assert_close(our_weights, weights, tolerance=5e-6)
    assert_close(got, expected, tolerance=1e-5)


def test_flax_query_without_keys_gets_the_output_bias_alone():
    _, layer = layers(flax_attention_fn())
    mask = np.ones((B, 1, T, T), bool)
    mask[1, :, 2] = False
    call = nnx.jit(lambda layer, mask: layer(tokens(B, T, F), mask=mask))
    output = np.asarray(call(layer, mask))
    assert_close(output[1, 2], layer.out.bias[...])
    assert np.abs(output[1, 3] - layer.out.bias[...]).max() > 1e-3


# 8. Flax: dropout


def dropped(broadcast, size=32, **options):
    """Attention of equal scores to the identity matrix: the weights themselves, times `size`."""
    zeros = jnp.zeros((B, size, 4, 2))
    identity = jnp.broadcast_to(jnp.eye(size)[None, :, None, :], (B, size, 4, size))
    options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(3)} | options
    call = functools.partial(flax_attention_fn(), broadcast_dropout=broadcast, **options)
    return size * jax.jit(call)(zeros, zeros, identity)


@pytest.mark.parametrize("broadcast", [True, False])
def test_flax_dropout(broadcast):
    weights = np.asarray(dropped(broadcast))  # [B, T, N, S]
    np.testing.assert_allclose(weights[weights != 0], 2.0, rtol=1e-6)
    draws = weights.size // (B * 4 if broadcast else 1)
    assert abs((weights == 0).mean() - 0.5) < 4 * math.sqrt(0.25 / draws)
    fates = (np.moveaxis(weights, 2, 1) == 0).reshape(B * 4, -1)
    for one, other in itertools.combinations(fates, 2):
        if broadcast:
            np.testing.assert_array_equal(one, other)
        else:
            assert abs((one == other).mean() - 0.5) < 5 * math.sqrt(0.25 / one.size)


def test_flax_dropout_is_off():
    ones = np.ones((B, 32, 4, 32))
    assert_close(dropped(True, deterministic=True), ones)
    assert_close(dropped(False, deterministic=True, dropout_rng=None), ones)
    assert_close(dropped(True, dropout_rate=0.0, dropout_rng=None), ones)


@pytest.mark.parametrize("broadcast", [True, False])
def test_flax_dropout_gradient(broadcast):
    qkv = draw((2,), t=3, s=4, n=2, k=1, h=3, e=2)
    weight = normal(2, 3, 2, 2, seed=1)
    options = {"dropout_rate": 0.4, "dropout_rng": jax.random.key(1)}
    function = functools.partial(
        flax_attention_fn(), broadcast_dropout=broadcast, is_causal=True, **options
    )
    assert_derivatives(lambda *qkv: (function(*qkv) * weight).sum(), *qkv, every_mixture=False)


def test_flax_layer_drops_anew_at_each_call():
    x = tokens(B, T, F)
    _, layer, other = layers(flax_attention_fn(), flax_attention_fn(), dropout_rate=0.5)
    call = nnx.jit(lambda layer, **rngs: layer(x, deterministic=False, **rngs))
    first, second = (np.asarray(call(layer)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    assert_close(call(other), first)
    seeded = [call(layer, rngs=nnx.Rngs(dropout=7)) for _ in range(2)]
    assert_close(*seeded)


# 9. Flax: any of our slots

SLOTS = {
    "entmax": {"normalizer": Entmax(1.5)},
    "learned_entmax": {"normalizer": Entmax(jnp.array(1.7))},
    "cosine": {"score": Cosine(jnp.array(3.0))},
    "alibi": {"score_mod": Alibi(0.5)},
    "sink": {"normalizer": Softmax(sink=jnp.array(0.4))},
    "window": {"mask": Window(2, 1)},
    "plain_mask": {"mask": lambda i, j: i != j},
    "all": {
        "score": Cosine(3.0),
        "score_mod": Alibi(0.5),
        "mask": Window(2, 3),
        "normalizer": Softmax(sink=0.4),
    },
}


@pytest.mark.parametrize("name", SLOTS)
def test_flax_with_slots_is_vmapped_attention(name):
    slots = SLOTS[name]
    over_heads = functools.partial(jax.vmap, in_axes=1, out_axes=1)

    def wide(*arrays):
        arrays = [each.repeat(N // each.shape[2], axis=2) for each in arrays]
        return jax.vmap(over_heads(functools.partial(attention, **slots)))(*arrays)

    got, expected = jax.jit(lambda *qkv: (flax_attention_fn(**slots)(*qkv), wide(*qkv)))(*draw())
    assert_close(got, expected)


def test_flax_masks_and_slots_combine():
    query, key, value = draw()
    mask = coins(B, 1, 1, S)
    slots = {"score_mod": Alibi(0.5), "mask": Window(3, None)}
    call = functools.partial(flax_attention_fn(**slots), is_causal=True)
    got = np.asarray(jax.jit(call)(query, key, value, mask=mask))

    @jax.jit
    def one_head(query, key, value, allowed):
        combined = Window(3, None) & Causal() & (lambda i, j: allowed[j])
        return attention(query, key, value, score_mod=Alibi(0.5), mask=combined)

    for b, n in np.ndindex(B, N):
        one = n // (N // K)
        expected = one_head(query[b, :, n], key[b, :, one], value[b, :, one], mask[b, 0, 0])
        assert_close(got[b, :, n], expected)


def test_flax_layer_with_slots_sows_their_weights():
    x = tokens(B, T, F)
    _, layer = layers(flax_attention_fn(normalizer=Entmax(1.5)))
    _, weights = sown(layer, x)

    @nnx.jit
    def of_one_head(layer):
        query, key = layer.query(x), layer.key(x)
        return attention_weights(query[1, :, 2], key[1, :, 2], normalizer=Entmax(1.5))

    expected = of_one_head(layer)
    assert_close(weights[1, 2], expected)
    assert np.any(weights == 0)


def test_flax_masks_broadcast_over_several_batch_axes():
    qkv = draw((2, B))
    shapes = [(S,), (T, S), (N, 1, 1), (B, 1, T, S), (2, 1, 1, 1, S), (1, B, N, T, 1)]
    masks = [coins(*shape) for shape in shapes]
    call = jax.jit(lambda qkv, masks: [flax_attention_fn()(*qkv, mask=mask) for mask in masks])
    for mask, got in zip(masks, call(qkv, masks), strict=True):
        whole = np.broadcast_to(mask, (2, B, N, T, S))
        expected = [loop(*(each[i] for each in qkv), mask=whole[i])[0] for i in range(2)]
        assert_close(got, np.stack(expected))


FLAX_REFUSALS = [
    ("mask", {"mask": X((1, 2, B, N, T, S), bool)}),
    ("mask", {"mask": X((B + 1, 1, T, S), bool)}),
    ("mask", {"mask": X((3, B, 1, T, S), bool)}),
    ("bias", {"bias": X((T, S + 1))}),
    ("query", {"query": X((N, H)), "key": X((K, H)), "value": X((K, E))}),
    ("query, key and value", {"key": X((B, 2, S, K, H)), "value": X((B, 2, S, K, E))}),
    ("dropout_rng", {"dropout_rate": 0.5}),
    ("dropout_rng", {"dropout_rate": 0.5, "broadcast_dropout": False}),
    ("(dropout_)?rate", {"dropout_rate": 1.0, "dropout_rng": jax.random.key(0)}),
    ("(dropout_)?rate", {"dropout_rate": -0.5, "dropout_rng": jax.random.key(0)}),
]


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("name", "wrong"), FLAX_REFUSALS, ids=lambda x: x if type(x) is str else ""
)
def test_flax_refusals_name_the_argument(name, wrong):
    arguments = dict(zip(("query", "key", "value"), draw((2, B)), strict=True))
    with pytest.raises(ValueError, match=rf"^{name} must .*\. Got "):
        flax_attention_fn()(**arguments | wrong)
