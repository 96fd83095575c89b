"""attention.py: the contracts of DESIGN §5, over every member of every slot and their products.

Each contract holds for every implementation. What streaming has besides is in test_streaming.py.
Every streaming call compiles, so where a test goes through whole tables for the dense equation,
streaming takes the members that differ in how a block of them is computed.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import (
    Alibi,
    Bias,
    Causal,
    Cosine,
    Dense,
    Dot,
    Entmax,
    Kernel,
    Padding,
    Segments,
    SoftCap,
    Softmax,
    Sparsemax,
    Window,
    attention,
    attention_and_logsumexp,
    attention_weights,
    kernels,
    merge,
)
from tests import oracles
from tests.members import (
    DENSE,
    IMPLEMENTATIONS,
    KERNELS,
    MASKS,
    NORMALIZERS,
    ROWS,
    SCORE_MODS,
    SCORES,
    SIZES,
    STREAMING,
    Implementation,
    in_turn,
    inputs,
)
from tests.tolerance import (
    TOLERANCE,
    assert_close,
    assert_derivatives,
    assert_exactly_zero,
    assert_trees_close,
)

Q, K, E = SIZES["q"], SIZES["k"], SIZES["e"]
COTANGENT = np.random.default_rng(17).normal(size=(Q, E))
each_implementation = pytest.mark.parametrize("how", IMPLEMENTATIONS, ids=str)
each_normalizer = pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
# Members of several slots at once, each in one row at least: for dense all of them, for streaming
# those that differ in how a block of them is computed, which kernels but these do not.
ONE_KERNEL = [m for m in SCORES if m.name not in {f"kernel_{k}" for k in KERNELS[1:]}]
SOME_SCORES = [m for m in SCORES if m in ONE_KERNEL or m.name == "kernel_epanechnikov"]
UNMASKED = [
    *((DENSE, row) for row in in_turn(score=SCORES, score_mod=SCORE_MODS, normalizer=NORMALIZERS)),
    *(
        (STREAMING, row)
        for row in in_turn(score=SOME_SCORES, score_mod=SCORE_MODS, normalizer=NORMALIZERS)
    ),
]
STACKED = in_turn(score=ONE_KERNEL, score_mod=SCORE_MODS, mask=MASKS[9:], normalizer=NORMALIZERS)


def names(x):
    """A row's name."""
    return "-".join(map(str, x.values())) if isinstance(x, dict) else str(x)


def slots_of(members, seed=3):
    return {slot: member.slot(member.arrays(seed=seed)) for slot, member in members.items()}


@functools.partial(jax.jit, static_argnums=0)
def outputs(how, arguments, slots):
    """Compiled once for each kind of slot: tests share shapes."""
    return how.attention(*arguments, **slots)


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(how, arguments, learned, fixed, cotangent):
    """The output; of output · cotangent the gradients by (query, key, value) and by the slots."""

    def loss(arguments, learned):
        output = how.attention(*arguments, **learned, **fixed)
        return (output * cotangent).sum(), output

    gradients, output = jax.grad(loss, (0, 1), has_aux=True)(arguments, learned)
    return output, *gradients


def call(how, members, arguments):
    """The library's output and the oracle's, for {slot: member}."""
    got = how.attention(*arguments, **{s: m.slot() for s, m in members.items()})
    expected = oracles.attention(*arguments, **{s: m.oracle() for s, m in members.items()})
    return got, expected


# 1. The equation and its order


@pytest.mark.parametrize(("slot", "member"), ROWS, ids=str)
def test_every_member_is_its_oracle(slot, member):
    query, key, value = inputs()
    slots, twins = {slot: member.slot()}, {slot: member.oracle()}
    weights = attention_weights(query, key, **slots)
    assert_close(weights, oracles.attention_weights(query, key, **twins))
    assert_close(DENSE.attention(query, key, value, **slots), weights @ value)


def combinations():
    """All slots at once: each score, mod and mask with each of four kinds of normalizer.

    Two normalizers of a kind take turns: softmax, sparse up to α = 2, beyond or traced, sigmoid.
    """
    kinds = [NORMALIZERS[:2], NORMALIZERS[2:4], NORMALIZERS[4:6], NORMALIZERS[6:]]
    for (n, score), (kind, pair) in itertools.product(enumerate(SCORES), enumerate(kinds)):
        yield {
            "score": score,
            "score_mod": SCORE_MODS[(n + 3 * kind) % len(SCORE_MODS)],
            "mask": MASKS[(n + 5 * kind) % len(MASKS)],
            "normalizer": pair[(n + kind) % 2],
        }


COMBINATIONS = list(combinations())


@pytest.mark.parametrize(
    ("how", "members"),
    [*((DENSE, m) for m in COMBINATIONS), *((STREAMING, m) for m in COMBINATIONS[::3])],
    ids=names,
)
def test_all_slots_together(how, members):
    """Streaming takes every third: they hold every member of every slot."""
    assert_close(*call(how, members, inputs()))


@each_implementation
@pytest.mark.parametrize("sizes", [(1, 1), (5, 1)], ids=str)
@each_normalizer
def test_one_query_one_key(how, sizes, normalizer):
    q, k = sizes
    assert_close(*call(how, {"normalizer": normalizer}, inputs(SIZES | {"q": q, "k": k})))


OTHER_BLOCKS = [Implementation("streaming", size) for size in [(1, 1), (5, 7), (8, 8)]]


@pytest.mark.parametrize("how", OTHER_BLOCKS, ids=str)
@pytest.mark.parametrize("normalizer", [NORMALIZERS[n] for n in (1, 2)], ids=str)
def test_any_block_size(how, normalizer):
    """One pair, all pairs, more than there are."""
    arguments, fixed = inputs(), {"mask": Causal(-1), "score_mod": Alibi(0.3)}
    learned = {"normalizer": normalizer.slot(), "score": Kernel(bandwidth=jnp.array([2.0, 1, 3]))}
    got = outputs_and_gradients(how, arguments, learned, fixed, COTANGENT)
    expected = outputs_and_gradients(DENSE, arguments, learned, fixed, COTANGENT)
    assert_trees_close(got, expected)


@each_implementation
@pytest.mark.parametrize("axes", ["q", "k", "d", "e", "qk", "kd", "qe"])
def test_axes_of_length_zero(how, axes):
    """No query, no key, no feature to compare, no value to sum: alone and two at once."""
    arguments = inputs(SIZES | dict.fromkeys(axes, 0))
    got = how.attention_and_logsumexp(*arguments, score=Dot())
    assert_trees_close(got, oracles.attention_and_logsumexp(*arguments, score=oracles.Dot()))


def test_a_cap_comes_before_the_mask():
    """onnx/onnx#7865: the other order turns -inf into -cap and leaks weight."""
    query, key, _ = inputs()
    got = attention_weights(query, key, score_mod=SoftCap(0.5), mask=Padding(2))
    assert_exactly_zero(got[:, 2:])
    assert_close(got[:, :2], attention_weights(query, key[:2], score_mod=SoftCap(0.5)))


@each_implementation
@pytest.mark.parametrize("normalizer", NORMALIZERS[:2], ids=str)
@pytest.mark.parametrize("mask", [m for m in MASKS if m.name in ("no_mask", "nested")], ids=str)
def test_logsumexp(how, normalizer, mask):
    arguments = inputs()
    slots = {"normalizer": normalizer.slot(), "mask": mask.slot(), "score": Cosine(3.0)}
    twins = {"normalizer": normalizer.oracle(), "mask": mask.oracle(), "score": oracles.Cosine(3.0)}
    got = how.attention_and_logsumexp(*arguments, **slots)
    assert_trees_close(got, oracles.attention_and_logsumexp(*arguments, **twins))
    assert_close(got[0], how.attention(*arguments, **slots))


def test_auto_and_defaults_are_scaled_dot_softmax():
    query, key, value = inputs()
    expected = attention(query, key, value, implementation="dense", normalizer=Softmax())
    np.testing.assert_array_equal(attention(query, key, value), expected)
    assert_close(attention(query, key, value), oracles.attention(query, key, value))


@pytest.mark.parametrize(
    ("keys", "normalizer", "is_dense"),
    [
        (1023, Softmax(), True),
        (1024, Softmax(), False),
        (1024, attn_jax.softmax, False),
        (1024, Entmax(1.5), False),
        (1024, lambda s, where=None, axis=-1: s, True),
    ],
)
def test_auto_streams_from_a_million_pairs_on_where_the_normalizer_streams(
    keys, normalizer, is_dense
):
    """An array of all scores is there or it is not."""
    shapes = [jax.ShapeDtypeStruct((n, 2), "float32") for n in (1024, keys, keys)]
    program = jax.make_jaxpr(lambda *x: attention(*x, normalizer=normalizer))(*shapes)
    assert (f"[1024,{keys}]" in str(program)) == is_dense


# 2. Empty rows and NaN


def with_empty_rows():
    """Row 0 is masked, row 2's scores are -inf, row 4 lies outside the kernel's support."""
    query, key, value = inputs()
    query = query.at[4].add(1e3)
    slots = {
        "score": Kernel(kernels.tricube, 2.6),
        "score_mod": lambda s, i, j: jnp.where(i == 2, -jnp.inf, s),
        "mask": ~Segments(jnp.array([0, 1, 1, 1, 1]), jnp.zeros(K, int)),
    }
    return (query, key, value), slots, np.array([0, 2, 4])


@pytest.mark.parametrize(
    "normalizer", [m for m in NORMALIZERS if m.name not in ("entmax15", "sigmoid")], ids=str
)
def test_empty_row_is_zero_with_zero_gradients(normalizer):
    """To second order. The other rows' derivatives are dense's, whose own are tested below.

    Entmax of 1.5 and a sigmoid without a bias, cases of what is here, are below to first order.
    """
    arguments, slots, empty = with_empty_rows()
    arguments = (*arguments, normalizer.arrays())

    @functools.partial(jax.jit, static_argnums=0)
    def to_second_order(how, arguments, share):
        def loss(query, key, value, learned):
            made = normalizer.slot(learned)
            rows = how.attention(query, key, value, normalizer=made, **slots)
            return (share * (rows * COTANGENT + rows**2)).sum(), rows

        gradient = jax.grad(loss, (0, 1, 2, 3), has_aux=True)
        (of_share, rows), (moved, tangents) = jax.jvp(gradient, arguments, arguments)
        return (rows, tangents), (of_share, moved)

    share, of_others = np.zeros((Q, 1)), {}
    share[empty] = 1
    for how in IMPLEMENTATIONS:
        (rows, tangents), of_empty = jax.device_get(to_second_order(how, arguments, share))
        assert_exactly_zero((rows[empty], tangents[empty], of_empty))
        assert np.abs(rows[np.array([1, 3])]).min() > 0
        of_others[how] = to_second_order(how, arguments, 1 - share)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_others[DENSE]))
    assert_trees_close(of_others[STREAMING], of_others[DENSE], tolerance=1e-9)


@each_implementation
@each_normalizer
def test_zero_length_and_no_keys(how, normalizer):
    query, key, value = inputs()
    learned = {"normalizer": normalizer.slot()}
    padded = {"mask": Padding(jnp.array(0))}
    arguments = (query, key, value)
    assert_exactly_zero(outputs_and_gradients(how, arguments, learned, padded, COTANGENT))
    nothing = (query, key[:0], value[:0])
    assert_exactly_zero(how.attention(*nothing, **learned))
    if how == DENSE:  # which evaluates it for both
        assert_exactly_zero(outputs_and_gradients(how, nothing, learned, {}, COTANGENT))


@pytest.mark.parametrize(
    ("how", "normalizer"),
    [*((DENSE, m) for m in NORMALIZERS), *((STREAMING, NORMALIZERS[n]) for n in (1, 4, 6))],
    ids=str,
)
def test_no_nan_inside(how, normalizer):
    """Operation by operation: a NaN that a later `where` hides trips jax.debug_nans."""
    arguments, slots, _ = with_empty_rows()
    slots["normalizer"] = normalizer.slot()
    with jax.debug_nans(True):
        gradients = jax.grad(lambda *a: how.attention(*a, **slots).sum(), (0, 1, 2))(*arguments)
    assert_exactly_zero(gradients[0][np.array([0, 2, 4])])


@each_implementation
@pytest.mark.parametrize("sink", [None, 0.3])
def test_logsumexp_of_an_empty_row(how, sink):
    query, key, value = inputs()
    normalizer = Softmax(sink=sink)

    def logsumexp(query, key):
        slots = {"mask": Causal(-2), "normalizer": normalizer}
        return how.attention_and_logsumexp(query, key, value, **slots)[1]

    assert_close(logsumexp(query, key)[:2], np.full(2, -np.inf if sink is None else sink))
    with jax.debug_nans(True):
        gradients = jax.grad(lambda q, k: logsumexp(q, k)[1], (0, 1))(query, key)
        whole = jax.grad(lambda q: logsumexp(q, key)[2:].sum())(query)
    assert_exactly_zero((gradients, whole[:2]))
    every = how == DENSE
    assert_derivatives(lambda q, k: logsumexp(q, k)[2:].sum(), query, key, every_mixture=every)


@each_implementation
@each_normalizer
def test_nan_at_an_allowed_position_shows_in_its_row(how, normalizer):
    query, key, value = inputs()
    slots = {"normalizer": normalizer.slot(), "mask": Causal()}
    clean = outputs(how, (query, key, value), slots)
    got = outputs(how, (query, key.at[3].set(jnp.nan), value), slots)
    assert np.isnan(got[3:]).all()
    assert_close(got[:3], clean[:3])
    weights = attention_weights(query, key.at[3].set(jnp.nan), **slots)
    assert_exactly_zero(weights[~np.tri(Q, K, dtype=bool)])
    in_query = outputs(how, (query.at[1].set(jnp.nan), key, value), slots)
    assert np.isnan(in_query[1]).all()
    assert_close(in_query[2:], clean[2:])


@each_implementation
def test_nan_value_at_an_allowed_position_shows(how):
    query, key, value = inputs()
    got = how.attention(query, key, value.at[3, 0].set(jnp.nan))
    assert np.isnan(got[:, 0]).all()
    assert_close(got[:, 1], how.attention(query, key, value)[:, 1])


# 3. Masked = deleted

KEPT, HIDDEN = np.array([0, 2, 3, 6]), np.array([1, 4, 5])
BLIND = np.array([1, 4])  # queries that may attend to nothing
HIDE = Dense(jnp.ones((Q, K), bool).at[:, HIDDEN].set(False))
HIDE_AND_BLIND = Dense(HIDE.array.at[BLIND].set(False))


def as_oracle(mask):
    return oracles.Dense(np.asarray(mask.dense(Q, K)))


@pytest.mark.parametrize(("how", "members"), UNMASKED, ids=names)
def test_masked_is_deleted_in_value_and_gradient(how, members):
    """Garbage in a key that no query may attend to, in its value, in a query that sees nothing."""
    query, key, value = inputs()
    learned, fixed = slots_of(members), {"mask": HIDE_AND_BLIND}
    clean = outputs_and_gradients(how, (query, key, value), learned, fixed, COTANGENT)
    twins = {slot: member.oracle() for slot, member in members.items()}
    twins["mask"] = as_oracle(HIDE_AND_BLIND)
    assert_close(clean[0], oracles.attention(query, key, value, **twins))
    if how != DENSE:
        dense = outputs_and_gradients(DENSE, (query, key, value), learned, fixed, COTANGENT)
        assert_trees_close(clean, dense)
    for garbage in (1e30, jnp.inf, jnp.nan):
        hostile = (
            query.at[BLIND].set(garbage),
            key.at[HIDDEN].set(garbage),
            value.at[HIDDEN].set(garbage),
        )
        got = outputs_and_gradients(how, hostile, learned, fixed, COTANGENT)
        assert_trees_close(got, clean)
        output, (d_query, d_key, d_value), _ = got
        assert_exactly_zero((output[BLIND], d_query[BLIND], d_key[HIDDEN], d_value[HIDDEN]))


@each_implementation
@each_normalizer
def test_gradients_are_those_without_the_masked_keys(how, normalizer):
    query, key, value = inputs()
    slots = {"normalizer": normalizer.slot()}
    _, masked, of_slots = outputs_and_gradients(
        how, (query, key, value), slots, {"mask": HIDE}, COTANGENT
    )
    _, deleted, of_same = outputs_and_gradients(
        DENSE, (query, key[KEPT], value[KEPT]), slots, {}, COTANGENT
    )
    assert_trees_close((masked[0], masked[1][KEPT], masked[2][KEPT]), deleted)
    assert_trees_close(of_slots, of_same)


@each_implementation
@each_normalizer
def test_masked_scores_never_count_pair_by_pair(how, normalizer):
    """1e30, inf or NaN in the scores of masked pairs, each key being allowed to some query."""
    allowed = np.add.outer(np.arange(Q), np.arange(K)) % 3 != 0
    learned, mask = {"normalizer": normalizer.slot()}, Dense(jnp.asarray(allowed))

    def with_garbage(garbage):
        bias = Bias(jnp.where(allowed, 0.25, garbage))
        fixed = {"mask": mask, "score_mod": bias}
        return outputs_and_gradients(how, inputs(), learned, fixed, COTANGENT)

    clean = with_garbage(0.0)
    for garbage in (1e30, -1e30, jnp.inf, -jnp.inf, jnp.nan):
        assert_trees_close(with_garbage(garbage), clean)


@each_implementation
@each_normalizer
def test_enormous_masked_keys_that_others_may_attend_to(how, normalizer):
    """A key and value of 1e30 that only the last query sees leave the other rows as they are."""
    query, key, value = inputs()
    mask = Dense(jnp.ones((Q, K), bool).at[: Q - 1, 2].set(False))
    learned, cotangent = {"normalizer": normalizer.slot()}, COTANGENT.copy()
    cotangent[-1] = 0
    clean = outputs_and_gradients(how, (query, key, value), learned, {"mask": mask}, cotangent)
    hostile = (query, key.at[2].set(1e30), value.at[2].set(1e30))
    got = outputs_and_gradients(how, hostile, learned, {"mask": mask}, cotangent)
    assert_trees_close(got[1:], clean[1:])
    assert_close(got[0][:-1], clean[0][:-1])


@each_implementation
def test_garbage_forward_and_second_order(how):
    query, key, value = inputs()
    hostile = [x.at[HIDDEN].set(jnp.nan) for x in (key, value)]

    def gradient(query, key, value, mask=None):
        return jax.grad(lambda q: (how.attention(q, key, value, mask=mask) ** 2).sum())(query)

    @jax.jit
    def both_ways(query):
        deleted = jax.jvp(lambda q: gradient(q, key[KEPT], value[KEPT]), (query,), (query,))
        return deleted, jax.jvp(lambda q: gradient(q, *hostile, mask=HIDE), (query,), (query,))

    expected, got = both_ways(query)
    assert_trees_close(got, expected)


# 5. Precision


@pytest.mark.parametrize(("how", "members"), UNMASKED, ids=names)
def test_float32(how, members):
    arguments, slots, twins = inputs(dtype="float32"), {}, {}
    for slot, member in members.items():
        drawn = member.arrays().items()
        arrays = {n: np.asarray(a, "float32") if a.dtype.kind == "f" else a for n, a in drawn}
        slots[slot], twins[slot] = member.slot(arrays), member.oracle(arrays)
    got = outputs(how, arguments, slots)
    assert got.dtype == jnp.float32
    assert_close(got, oracles.attention(*arguments, **twins), tolerance=1e-5)


@each_implementation
@pytest.mark.parametrize(
    ("dtype", "normalizer"),
    [*(("bfloat16", m) for m in NORMALIZERS), *(("float16", m) for m in NORMALIZERS[::3])],
    ids=str,
)
def test_half_precision_rounds_once(how, normalizer, dtype):
    """The error is at most twice that of a float32 computation rounded at its end."""
    arguments = inputs(SIZES | {"k": 101, "d": 23}, dtype=dtype)
    arrays = {n: np.asarray(a, "float32") for n, a in normalizer.arrays().items()}
    got = outputs(how, arguments, {"normalizer": normalizer.slot(arrays)})
    assert got.dtype == dtype
    exact = oracles.attention(*arguments, normalizer=normalizer.oracle(arrays))
    rounded = exact.astype("float32").astype(arguments[0].dtype)
    error, unavoidable = (np.abs(np.asarray(x, np.float64) - exact) for x in (got, rounded))
    assert (error <= 2 * unavoidable.max()).all()


@each_implementation
@pytest.mark.parametrize(
    ("dtypes", "output", "accumulation"),
    [
        (("float64",) * 3, "float64", "float64"),
        (("float32",) * 3, "float32", "float32"),
        (("float16",) * 3, "float16", "float32"),
        (("bfloat16",) * 3, "bfloat16", "float32"),
        (("bfloat16", "bfloat16", "float32"), "float32", "float32"),
        (("float32", "float32", "bfloat16"), "bfloat16", "float32"),
    ],
    ids=str,
)
def test_dtypes(how, dtypes, output, accumulation):
    arguments = tuple(x.astype(d) for x, d in zip(inputs(), dtypes, strict=True))

    @jax.jit
    def everything(query, key, value):
        results = how.attention_and_logsumexp(query, key, value)
        loss = jax.grad(lambda *a: how.attention(*a).astype("float32").sum(), (0, 1, 2))
        return *results, attention_weights(query, key), loss(query, key, value)

    got, logsumexp, weights, gradients = everything(*arguments)
    assert got.dtype == output
    assert logsumexp.dtype == weights.dtype == accumulation
    assert tuple(g.dtype.name for g in gradients) == dtypes
    assert_close(got, oracles.attention(*arguments), tolerance=TOLERANCE[output])


@each_implementation
@pytest.mark.parametrize("normalizer", [NORMALIZERS[n] for n in (1, 2, 3)], ids=str)
def test_half_precision_gradients(how, normalizer):
    half, cotangent = inputs(dtype="bfloat16"), jnp.asarray(COTANGENT, "float32")
    learned = {"normalizer": normalizer.slot(dtype="float32")}
    got = outputs_and_gradients(how, half, learned, {}, cotangent)
    single = tuple(x.astype("float32") for x in half)
    expected = outputs_and_gradients(DENSE, single, learned, {}, cotangent)
    assert_trees_close(got, expected, tolerance=TOLERANCE["bfloat16"])


# 6. Derivatives


def with_floats(table):
    return [m for m in table if any(a.dtype.kind == "f" for a in m.arrays().values())]


# No array of a row is in another's diagonal: a learned score, mod and normalizer meet.
LEARNED = in_turn(
    score=with_floats(SCORES),
    score_mod=[SCORE_MODS[0], *with_floats(SCORE_MODS)],
    normalizer=[NORMALIZERS[0], *with_floats(NORMALIZERS)],
)
STREAMED = {"score": SCORES[5], "score_mod": SCORE_MODS[2], "normalizer": NORMALIZERS[7]}
LEARNED = [*((DENSE, row) for row in LEARNED), (STREAMING, STREAMED)]


@pytest.mark.parametrize(("how", "members"), LEARNED, ids=names)
def test_derivatives_of_every_array_in_every_slot(how, members):
    """Streaming's first derivatives are held to dense's above; more of its second ones below."""

    def loss(query, key, value, arrays):
        slots = {slot: member.slot(arrays[slot]) for slot, member in members.items()}
        return (how.attention(query, key, value, mask=Window(4, 3), **slots) * COTANGENT).sum()

    arrays = {slot: member.arrays() for slot, member in members.items()}
    mixed = how == DENSE and NORMALIZERS[4] in members.values()
    assert_derivatives(loss, *inputs(), arrays, every_mixture=mixed)


@each_implementation
def test_slots_are_pytrees_whose_arrays_are_leaves(how):
    """`grad` with respect to a slot is a slot of gradients."""
    query, key, value = inputs()
    slots = {"score": Kernel(bandwidth=jnp.array([0.7, 1.9, 1.0])), "normalizer": Softmax(0.3)}
    got = jax.grad(lambda s: (how.attention(query, key, value, **s) * COTANGENT).sum())(slots)

    def loss(bandwidth, sink):
        slots = {"score": Kernel(bandwidth=bandwidth), "normalizer": Softmax(sink)}
        return (DENSE.attention(query, key, value, **slots) * COTANGENT).sum()

    bandwidth, sink = jax.grad(loss, (0, 1))(jnp.array([0.7, 1.9, 1.0]), 0.3)
    assert_close(got["score"].bandwidth, bandwidth)
    assert_close(got["normalizer"].sink, sink)


def test_hessian_is_the_derivative_of_the_gradient():
    """jax.hessian, entry by entry, of a learned kernel regression. Streaming's is dense's."""
    query, key, value = inputs()

    def loss(bandwidth):
        output = DENSE.attention(query, key, value, score=Kernel(bandwidth=bandwidth))
        return (output * COTANGENT).sum()

    hessian, gradient = jax.jit(jax.hessian(loss)), jax.jit(jax.grad(loss))
    at, step = np.array([0.8, 1.9, 1.2]), 1e-5
    columns = [(gradient(at + step * e) - gradient(at - step * e)) / (2 * step) for e in np.eye(3)]
    assert_close(hessian(at), np.array(columns), tolerance=1e-8)


@each_implementation
def test_plain_functions_in_every_slot_and_what_they_close_over(how):
    """A normalizer has to be one of ours to stream: there the mod does its part."""
    query, key, value = inputs()
    matrix = np.random.default_rng(9).normal(size=(3, 3))

    def output(matrix, slope, temperature, limit):
        def bent(s, i, j):
            return s - slope * (i - j) ** 2

        def cooled(s):
            return jnp.minimum(s, limit) / temperature

        slots = {
            "score_mod": bent,
            "normalizer": lambda s, where=None, axis=-1: jax.nn.softmax(
                cooled(s), axis, where=where
            ),
        }
        if how != DENSE:
            mod = {"score_mod": lambda s, i, j: cooled(bent(s, i, j))}
            slots = mod | {"normalizer": attn_jax.softmax}
        slots |= {"score": lambda q, k: q @ matrix @ k.T, "mask": lambda i, j: j <= i + 2}
        return how.attention(query, key, value, **slots)

    arguments = (jnp.asarray(matrix), 0.1, 1.7, 0.9)
    expected = oracles.attention(
        query,
        key,
        value,
        score=lambda q, k: min(1e9, q @ matrix @ k),
        score_mod=lambda s, i, j: min(s - 0.1 * (i - j) ** 2, 0.9) / 1.7,
        mask=lambda i, j: j <= i + 2,
    )
    assert_close(output(*arguments), expected)
    assert_derivatives(lambda *a: (output(*a) * COTANGENT).sum(), *arguments)


# 8. Determinism; jit, vmap, padding


@each_implementation
@pytest.mark.parametrize("members", STACKED, ids=names)
def test_jit_is_eager_and_traced_slots_raise_no_alarm(how, members):
    """The other members meet their oracles above as they are called, and below under jit."""
    arguments, slots = inputs(), slots_of(members)
    eager, jitted = how.attention(*arguments, **slots), outputs(how, arguments, slots)
    assert_close(jitted, eager)
    np.testing.assert_array_equal(how.attention(*arguments, **slots), eager)
    np.testing.assert_array_equal(outputs(how, arguments, slots), jitted)


@each_implementation
@pytest.mark.parametrize("members", STACKED, ids=names)
def test_vmap_is_a_loop(how, members):
    """Over the arguments and over slots with arrays: each example has its own bandwidth, mask…"""
    examples = [(inputs(seed=n), slots_of(members, seed=n)) for n in range(3)]
    batch = jax.tree.map(lambda *x: np.stack(x), *examples)
    together = jax.vmap(lambda arguments, slots: how.attention(*arguments, **slots))
    got = np.asarray(jax.jit(together)(*batch))
    for n, (arguments, slots) in enumerate(examples):
        assert_close(got[n], outputs(DENSE, arguments, slots))


@each_implementation
def test_vmap_over_an_axis_of_one_argument(how):
    """Heads that share a key (in_axes None), and batch over heads."""
    query, key, value = inputs()
    queries = jnp.stack([query, query + 1, query * 2, -query, query - 1, query / 2])
    queries = queries.reshape(3, 2, Q, -1)
    both = jax.vmap(jax.vmap(how.attention, (0, None, None)), (0, None, None))
    assert_close(both(queries, key, value)[2, 1], how.attention(query / 2, key, value))


@each_implementation
@pytest.mark.parametrize(
    ("slot", "member"), [("normalizer", m) for m in NORMALIZERS] + [("score", SCORES[17])], ids=str
)
def test_padding_changes_an_example_by_rounding_at_most(how, slot, member):
    query, key, value = inputs()
    slots = {slot: member.slot()}
    padded = [
        np.pad(x, ((0, n), (0, 0)), constant_values=np.nan)
        for x, n in ((query, 6), (key, 4), (value, 4))
    ]
    attend = jax.jit(lambda *x: how.attention(*x, mask=Padding(K, query_length=Q), **slots))
    got = np.asarray(attend(*padded))
    assert_close(got[:Q], outputs(DENSE, (query, key, value), slots))
    assert_exactly_zero(got[Q:])


# merge


def parts(query, key, value, cuts, mask):
    """Partial attentions over key[cuts[n] : cuts[n + 1]], each with its shifted mask."""
    pieces = [
        attention_and_logsumexp(
            query,
            key[start:stop],
            value[start:stop],
            mask=lambda i, j, start=start: mask(i, j + start),
        )
        for start, stop in itertools.pairwise(cuts)
    ]
    return tuple(jnp.stack(x) for x in zip(*pieces, strict=True))


@pytest.mark.parametrize("cuts", [(0, 3, 7), (0, 1, 2, 6, 7), (0, 0, 7), (0, 7)], ids=str)
def test_merged_parts_are_the_whole(cuts):
    """Whatever the cuts: with parts that are empty for some rows, or hold no key at all."""
    mask = Causal(-1)

    @jax.jit
    def parts_and_merged(query, key, value):
        found = parts(query, key, value, cuts, mask)
        return *found, merge(*found)

    outputs, logsumexps, got = parts_and_merged(*inputs())
    assert_trees_close(got, attention_and_logsumexp(*inputs(), mask=mask))
    assert_trees_close(got, oracles.merge(np.asarray(outputs), np.asarray(logsumexps)))


def test_merge_of_empty_parts_is_empty():
    with jax.debug_nans(True):
        output, logsumexp = merge(jnp.ones((3, Q, E)), jnp.full((3, Q), -jnp.inf))
    assert_exactly_zero(output)
    assert_close(logsumexp, np.full(Q, -np.inf))
    output, logsumexp = merge(jnp.ones((0, Q, E)), jnp.ones((0, Q)))
    assert_exactly_zero(output)
    assert_close(logsumexp, np.full(Q, -np.inf))


@jax.jit
def merge_gradients(outputs, logsumexps):
    def loss(outputs, logsumexps):
        output, logsumexp = merge(outputs, logsumexps)
        return (output * COTANGENT).sum() + (logsumexp**2).sum()

    return jax.grad(loss, (0, 1))(outputs, logsumexps)


@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_what_an_empty_part_holds_is_ignored(garbage):
    rng = np.random.default_rng(3)
    outputs, logsumexps = rng.normal(size=(3, Q, E)), rng.normal(size=(3, Q)) * 10
    logsumexps[1, 2:] = -np.inf
    outputs[1, 2:] = garbage

    arguments = (jnp.asarray(outputs), jnp.asarray(logsumexps))
    assert_trees_close(merge(*arguments), oracles.merge(outputs, logsumexps))
    gradients = merge_gradients(*arguments)
    assert_exactly_zero(tuple(g[1, 2:] for g in gradients))
    clean = merge_gradients(arguments[0].at[1, 2:].set(0), arguments[1])
    assert_trees_close(gradients, clean)
    two = merge_gradients(*(x[jnp.array([0, 2])] for x in arguments))
    for got, expected in zip(gradients, two, strict=True):
        assert_close(got[jnp.array([0, 2]), 2:], expected[:, 2:])


def test_merge_is_differentiable_through_partial_attentions():
    def merged(query, key, value):
        output, logsumexp = merge(*parts(query, key, value, (0, 2, 7), Causal(-1)))
        return (output * COTANGENT).sum() + jnp.where(logsumexp > -jnp.inf, logsumexp, 0).sum()

    def whole(query, key, value):
        output, logsumexp = attention_and_logsumexp(query, key, value, mask=Causal(-1))
        return (output * COTANGENT).sum() + jnp.where(logsumexp > -jnp.inf, logsumexp, 0).sum()

    gradients = [jax.jit(jax.grad(f, (0, 1, 2)))(*inputs()) for f in (merged, whole)]
    assert_trees_close(*gradients)
    assert_derivatives(merged, *inputs(), every_mixture=False)


def test_merge_of_extreme_logsumexps():
    """Shifted by the maximum; two parts with sinks of -inf and large logits do not overflow."""
    outputs = jnp.array([[[1.0]], [[3.0]], [[100.0]]])
    output, logsumexp = merge(outputs, jnp.array([[1e4], [1e4], [-1e4]]))
    assert_close(output, [[2.0]])
    assert_close(logsumexp, [1e4 + np.log(2)])


# 9. Bad input


def refused(message, function, *arguments, **options):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        function(*arguments, **options)


A = {n: jnp.ones(s) for n, s in {"q": (5, 3), "k": (7, 3), "v": (7, 2)}.items()}


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("function", [attention, attention_and_logsumexp], ids=["plain", "lse"])
@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((5, 3), (5, 3), (6, 3), r"key and value.*rows.*\(5, 3\).*\(6, 3\)"),
        ((5, 3), (7, 2), (7, 2), r"query.*key.*features.*\D5, 3\D.*\D7, 2\D"),
        ((2, 5, 3), (2, 7, 3), (2, 7, 2), r"query.*vmap.*\D2, 5, 3\D"),
        ((4, 2, 5, 3), (4, 2, 7, 3), (4, 2, 7, 2), r"query.*vmap.*\D4, 2, 5, 3\D"),
        ((5, 3), (2, 7, 3), (7, 2), r"key.*\D2, 7, 3\D"),
        ((5, 3), (7, 3), (2, 7, 2), r"value.*\D2, 7, 2\D"),
        ((5, 3), (7, 3), (7,), r"value.*\D7,?\D"),
        ((3,), (7, 3), (7, 2), r"query.*\D3,?\D"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_named(function, query, key, value, message):
    refused(message, function, jnp.ones(query), jnp.ones(key), jnp.ones(value))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "flash"}, r"implementation.*flash"),
        ({"implementation": None}, r"implementation.*None"),
        ({"block_size": 0}, r"block_size.*0"),
        ({"block_size": (0, 3)}, r"block_size.*\(0, 3\)"),
        ({"block_size": (2, -3)}, r"block_size.*-3"),
        ({"block_size": (2,)}, r"block_size.*\(2,\)"),
        ({"block_size": (2.0, 3.0)}, r"block_size.*2\.0"),
        ({"score": 3.0}, r"score.*3\.0"),
        ({"score": "dot"}, r"score.*dot"),
        ({"score": Dot}, r"score.*Dot"),
        ({"normalizer": Sparsemax}, r"normalizer.*Sparsemax"),
        ({"normalizer": None}, r"normalizer.*None"),
        ({"mask": Causal}, r"mask.*Causal"),
        ({"score_mod": Alibi}, r"score_mod.*Alibi"),
        ({"mask": lambda i, j: (j - i).astype("float32")}, r"mask.*bool.*float32"),
        ({"mask": lambda i, j: jnp.ones((5, 8), bool)}, r"mask.*\D5, 8\D"),
        ({"score": lambda q, k: q @ k.T @ k}, r"score.*\D5, 7\D.*\D5, 3\D"),
        ({"score_mod": lambda s, i, j: s[:, :3]}, r"score_mod.*\(5, 7\).*\D5, 3\D"),
        (
            {"normalizer": lambda s, where=None, axis=-1: s.sum(axis)},
            r"normalizer.*\(5, 7\).*\D5,?\D",
        ),
        (
            {"normalizer": lambda s, where=None, axis=-1: s, "implementation": "streaming"},
            r"normalizer.*Softmax.*Entmax.*or.*implementation='dense'",
        ),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_bad_option_is_named(options, message):
    refused(message, attention, A["q"], A["k"], A["v"], **options)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    "normalizer",
    [Sparsemax(), Entmax(1.5), attn_jax.Sigmoid(), attn_jax.sparsemax],
    ids=lambda n: getattr(n, "__name__", type(n).__name__),
)
def test_logsumexp_belongs_to_softmax(normalizer):
    message = r"normalizer.*Softmax"
    refused(message, attention_and_logsumexp, A["q"], A["k"], A["v"], normalizer=normalizer)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("outputs", "logsumexps", "message"),
    [
        ((3, 5, 2), (2, 5), r"outputs.*logsumexps.*\(3, 5, 2\).*\(2, 5\)"),
        ((3, 5, 2), (3, 4), r"outputs.*logsumexps.*\(3, 5, 2\).*\(3, 4\)"),
        ((5, 2), (5,), r"outputs.*\(5, 2\)"),
        ((3, 5, 2), (3, 5, 1), r"logsumexps.*\(3, 5, 1\)"),
    ],
)
def test_bad_parts_are_named(outputs, logsumexps, message):
    refused(message, merge, jnp.ones(outputs), jnp.ones(logsumexps))


@pytest.mark.usefixtures("without_shape_hook")
def test_errors_are_raised_while_tracing_too():
    refused(r"key and value", jax.jit(attention), A["q"], A["k"], A["v"][:3])
    refused(
        r"bandwidth", jax.jit(lambda q: attention(q, q, q, score=Kernel(bandwidth=-1.0))), A["q"]
    )


@each_implementation
@pytest.mark.parametrize("sink", [np.inf, -np.inf])
def test_an_infinite_sink_takes_all_or_nothing(how, sink):
    arrays = inputs()

    def results(sink, *arrays):
        normalizer = Softmax(sink)
        return how.attention_and_logsumexp(*arrays, normalizer=normalizer)

    def loss(sink, *arrays):
        return (results(sink, *arrays)[0] ** 2).sum()

    got, sink = results(sink, *arrays), jnp.asarray(sink)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(sink, *arrays)
    if sink > 0:
        assert_exactly_zero((got[0], gradients))
        assert (got[1] == np.inf).all()
    else:
        assert_trees_close(got, how.attention_and_logsumexp(*arrays))
        without = jax.jit(jax.grad(lambda *arrays: loss(None, *arrays), argnums=(0, 1, 2)))
        assert_trees_close(gradients, (jnp.zeros(()), *without(*arrays)))


@each_implementation
@each_normalizer
def test_an_allowed_infinite_score_shows_in_its_row(how, normalizer):
    """As of 1e20 · 1e20 in float32: NaN, where masked deleted, and its logsumexp is inf."""
    query, key, value = inputs(dtype="float32")
    query, key = query.at[2].set(1e20), key.at[4].set(1e20)
    for allowed in (np.ones((Q, K), bool), np.tile(np.arange(K) != 4, (Q, 1))):
        mask = Dense(allowed)
        slots = {"score": Dot(), "mask": mask, "normalizer": normalizer.slot(dtype=jnp.float32)}
        got = np.asarray(how.attention(query, key, value, **slots))
        shows = allowed.all() and "sigmoid" not in normalizer.name
        np.testing.assert_array_equal(np.isnan(got).all(axis=1), (np.arange(5) == 2) & shows)
        assert np.isfinite(np.delete(got, 2, axis=0)).all()
        if normalizer.name == "softmax":
            _, lse = how.attention_and_logsumexp(query, key, value, **slots)
            np.testing.assert_array_equal(lse == np.inf, (np.arange(5) == 2) & shows)
