"""Multi-head attention against Flax's module, loops over heads, and its own cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Cosine, Entmax, Sigmoid, SoftCap, Softmax, cudnn, masks, regression
from attn_jax.nn import Cache, MultiHeadAttention, projected
from attn_jax.position_encodings import alibi_slopes, apply_rotary, sinusoids
from tests.nn.compiled import compiled
from tests.nn.test_recurrent import randomized
from tests.tolerance import TOLERANCE, assert_close

B, T, S, D, N = 2, 5, 7, 12, 4
RNG = np.random.default_rng(0)
X, MEMORY = RNG.normal(size=(B, T, D)), RNG.normal(size=(B, S, 6))
LENGTHS = np.array([7, 3])


def layer(**options):
    return randomized(MultiHeadAttention(D, N, rngs=nnx.Rngs(0), **options))


# Flax's module

FLAX = 2e-6  # its softmax computes in float32, also of float64
HALF = 4 * TOLERANCE["bfloat16"]  # rounded once more in each layer


def flax_twin(ours, **options):
    """`flax.nnx.MultiHeadAttention` with the same weights."""
    theirs = nnx.MultiHeadAttention(
        num_heads=N, in_features=D, decode=False, param_dtype=float, rngs=nnx.Rngs(1), **options
    )
    for name in ("query", "key", "value", "out"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        other.kernel[...] = mine.kernel[...].reshape(other.kernel.shape)
        if mine.bias is not None:
            other.bias[...] = mine.bias[...].reshape(other.bias.shape)
    if ours.query_norm is not None:
        theirs.query_ln.scale[...] = ours.query_norm.scale[...]
        theirs.key_ln.scale[...] = ours.key_norm.scale[...]
    return theirs


PARITY = {
    "default": ({}, {}),
    "widths": ({"head_features": 5, "out_features": 3}, {"qkv_features": 20, "out_features": 3}),
    "no bias": ({"bias": False}, {"use_bias": False}),
    "normalized": ({"normalize_query_key": True}, {"normalize_qk": True}),
    "memory": ({"memory_features": 6}, {"in_kv_features": 6}),
    "dropout off": ({"dropout": 0.5}, {"dropout_rate": 0.5, "deterministic": True}),
    "bfloat16": (
        {"dtype": jnp.bfloat16, "normalize_query_key": True},
        {"dtype": jnp.bfloat16, "normalize_qk": True},
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), PARITY.values(), ids=PARITY)
@pytest.mark.parametrize("masked", [False, True])
def test_defaults_are_flax(ours, theirs, masked):
    mine = layer(**ours)
    other = flax_twin(mine, **theirs)
    memory = MEMORY if "memory_features" in ours else None
    keys = S if memory is not None else T
    mask = RNG.random((B, 1, T, keys)) < 0.7
    mask[..., 0] = True  # Flax gives an empty row the mean of all values
    mask = jnp.asarray(mask) if masked else None
    arguments = [jnp.asarray(X)] + ([] if memory is None else [jnp.asarray(memory)])
    expected, got = (compiled(each)(*arguments, mask=mask) for each in (other, mine))
    assert got.dtype == expected.dtype
    assert_close(got, expected, tolerance=HALF if "dtype" in ours else FLAX)


def test_normalized_queries_and_keys_stay_half():
    """A score sees half-precision vectors in float32; parameters here are float64."""
    seen = []

    def score(query, key):
        seen.extend([query.dtype.name, key.dtype.name])
        return query @ key.T

    jax.eval_shape(layer(dtype=jnp.bfloat16, normalize_query_key=True, score=score), X)
    assert set(seen) == {"float32"}


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_inputs_and_parameters_promote_as_in_flax(dtype):
    mine, x = layer(), (3 * X).astype(dtype)
    expected, got = (compiled(each)(x) for each in (flax_twin(mine), mine))
    assert got.dtype == expected.dtype == jnp.float64
    assert_close(got, expected, tolerance=FLAX)


def test_decoding_is_flax():
    mine = layer()
    other = flax_twin(mine)
    other.init_cache((B, T, D), float)
    extend, step = compiled(mine, "extend"), nnx.jit(lambda other, x: other(x, decode=True))
    cache = mine.cache(B, T)
    for t in range(3):
        got, cache = extend(X[:, t : t + 1], cache)
        assert_close(got, step(other, X[:, t : t + 1]), tolerance=FLAX)


def test_gradients_are_flax():
    mine = layer()
    other = flax_twin(mine)

    def gradient(module):
        graphdef, state = nnx.split(module, nnx.Param)
        loss = lambda state, x: (nnx.merge(graphdef, state)(x) ** 2).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1)))(state, X)

    (ours, by_input), (theirs, expected) = gradient(mine), gradient(other)
    assert_close(by_input, expected, tolerance=100 * FLAX)
    for name in ("query", "key", "value", "out"):
        got = ours[name]["kernel"][...]
        assert_close(got, theirs[name]["kernel"][...].reshape(got.shape), tolerance=100 * FLAX)


# Loops


def heads_by_loop(module, slots, x, memory, lengths):
    """Weights [b, n, q, k] by one head at a time, in NumPy."""

    def project(linear, x):
        return x @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])

    k = module.key_value_heads
    query = project(module.query, x).reshape(*x.shape[:2], N, -1)
    key = project(module.key, memory).reshape(*memory.shape[:2], k, -1)

    @jax.jit
    def of_one_head(n, query, key):
        return slots["normalizer"](slots["mod"](n, slots["score"](query, key)))

    weights = np.zeros((B, N, x.shape[1], memory.shape[1]))
    for b, n in np.ndindex(B, N):
        keys = key[b, : lengths[b], n // (N // k)]
        weights[b, n, :, : lengths[b]] = of_one_head(n, query[b, :, n], keys)
    return weights


def test_any_slots_grouped_heads_and_lengths():
    cap, entmax = SoftCap(2.0), Entmax(1.4)
    module = layer(
        memory_features=6,
        key_value_heads=2,
        value_features=5,
        score=Cosine(3.0),
        score_mod=cap,
        normalizer=entmax,
    )

    def capped(n, scores):
        return cap(scores, jnp.zeros((T, 1), int), jnp.zeros((1, scores.shape[1]), int))

    slots = {"score": Cosine(3.0), "normalizer": entmax, "mod": capped}
    expected = heads_by_loop(module, slots, X, MEMORY, LENGTHS)

    @jax.jit
    def weights_output_and_entropy(*inputs):
        methods = (module.weights, module, module.entropy)
        return [each(*inputs, lengths=LENGTHS) for each in methods]

    weights, got, got_entropy = weights_output_and_entropy(X, MEMORY)
    assert_close(weights, expected)
    value = MEMORY @ np.asarray(module.value.kernel[...]) + np.asarray(module.value.bias[...])
    value = np.repeat(value.reshape(B, S, 2, 5), 2, axis=2)
    joined = np.einsum("bnqk,bkne->bqne", expected, value).reshape(B, T, -1)
    output = joined @ np.asarray(module.out.kernel[...]) + np.asarray(module.out.bias[...])
    assert_close(got, output)
    entropy = -np.where(expected > 0, expected * np.log(np.maximum(expected, 1e-300)), 0).sum(-1)
    assert_close(got_entropy, entropy)


def test_alibi_is_each_heads_own_slope():
    module = layer(positions="alibi")
    distance = np.abs(np.arange(T)[:, None] - np.arange(T)[None])
    slopes = jnp.asarray(alibi_slopes(N))
    slots = {
        "score": lambda q, k: q @ k.T / np.sqrt(q.shape[1]),
        "mod": lambda n, scores: scores - slopes[n] * distance,
        "normalizer": Softmax(),
    }
    expected = heads_by_loop(module, slots, X, X, [T] * B)
    assert_close(compiled(module, "weights")(X), expected)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [(1, [2**-8]), (4, [2**-2, 2**-4, 2**-6, 2**-8]), (3, [2**-4, 2**-8, 2**-2])],
)
def test_alibi_slopes_are_the_papers(heads, expected):
    assert_close(alibi_slopes(heads), np.array(expected, float))


def test_rotation_sees_differences_of_positions_alone():
    query, key = RNG.normal(size=(1, 1, 6)), RNG.normal(size=(1, 1, 6))
    at = lambda x, i: np.asarray(apply_rotary(jnp.asarray(x), jnp.array([i])))[0, 0]  # noqa: E731
    here, there = at(query, 3) @ at(key, 1), at(query, 103) @ at(key, 101)
    assert_close(here, there)
    assert abs(here - at(query, 4) @ at(key, 1)) > 1e-3
    assert_close(np.linalg.norm(at(query, 17)), np.linalg.norm(query))
    complex_query = query[0, 0, :3] + 1j * query[0, 0, 3:]
    turned = complex_query * np.exp(5j * 10_000.0 ** (-np.arange(3) / 3))
    assert_close(at(query, 5), np.concatenate([turned.real, turned.imag]))


def test_sinusoids_are_the_papers():
    angle = np.arange(T)[:, None] / 10_000.0 ** (np.arange(3) / 3)
    assert_close(sinusoids(T, 6), np.concatenate([np.sin(angle), np.cos(angle)], axis=1))
    assert_close(sinusoids(jnp.array([3, 4]), 6), sinusoids(T, 6)[3:])


# The cache

SCHEMES = {
    "plain": {},
    "rotary": {"positions": "rotary", "head_features": 4},
    "alibi": {"positions": "alibi"},
    "window": {"mask": masks.Window(2, 0), "key_value_heads": 2},
    "sink": {"normalizer": Softmax(0.5), "score_mod": SoftCap(3.0)},
    "sigmoid": {"normalizer": Sigmoid(), "normalize_query_key": True, "value_features": 2},
    "half": {"normalize_query_key": True, "dtype": jnp.bfloat16},
    "a function": {"normalizer": lambda s, where=None, axis=-1: Softmax()(s, where=where)},
}


@pytest.mark.parametrize("options", SCHEMES.values(), ids=SCHEMES)
def test_cached_is_the_full_causal_forward(options):
    """A prompt, then one token, then two; the cache has room to spare, and its rest is not read."""
    own = options.get("mask")
    module = layer(**options | {"mask": masks.Causal() if own is None else masks.Causal() & own})
    extend, cache, got = compiled(module, "extend"), module.cache(B, T + 3), []
    cache = cache._replace(key=cache.key + 7, value=cache.value - 9)
    for part in (X[:, :2], X[:, 2:3], X[:, 3:]):
        output, cache = extend(part, cache)
        got.append(output)
    assert_close(jnp.concatenate(got, axis=1), compiled(module)(X))
    assert cache.used.tolist() == [T] * B


@pytest.mark.usefixtures("without_shape_hook")
def test_a_full_cache_is_refused():
    module = layer(mask=masks.Causal())
    cache = module.cache(B, T)
    with pytest.raises(ValueError, match=r"cache must have room for 8 more positions\. Got 0 of 5"):
        module.extend(np.ones((B, 8, D)), cache)
    _, cache = module.extend(X[:, :3], cache)
    with pytest.raises(ValueError, match=r"room for 3 more positions\. Got 3 of 5 used"):
        module.extend(X[:, :3], cache)
    with pytest.raises(ValueError, match=r"cache must be of 1 examples, as the inputs\. Got 2"):
        module.extend(X[:1, :1], cache)
    with pytest.raises(ValueError, match="room for 6 more"):  # known also where JAX traces
        jax.eval_shape(module.extend, jnp.ones((B, 6, D)), cache)


@pytest.mark.parametrize("options", [{}, {"normalizer": Sigmoid(), "implementation": "streaming"}])
def test_what_a_cache_has_no_room_for_is_nan_where_jax_traces(options):
    """What fits is right, in one call with what does not as well, and stays remembered."""
    module = layer(mask=masks.Causal(), **options)
    expected, extend = np.asarray(compiled(module)(X)), compiled(module, "extend")
    memory = jax.device_get(compiled(module, "project_memory")(X))
    for room, parts in ((T, (T - 1, T + 2, T + 3)), (T - 2, (1, 4, T))):
        cache, got, before = module.cache(B, room), [], 0
        rows = np.concatenate([X, X], axis=1)
        for end in parts:
            output, cache = extend(rows[:, before:end], cache)
            got.append(output)
            before = end
        got = np.concatenate(got, axis=1)
        assert_close(got[:, :room], expected[:, :room])
        assert np.isnan(got[:, room:]).all()
        assert cache.used.tolist() == [parts[-1]] * B
        keys = np.asarray(cache.key)
        assert_close(keys[:, :, : room - 1], memory.key[:, :, : room - 1])

    def step(cache, row):
        output, cache = module.extend(row[:, None], cache)
        return cache, output[:, 0]

    _, scanned = jax.lax.scan(step, module.cache(B, 3), X.swapaxes(0, 1))
    scanned = np.asarray(scanned)
    assert_close(scanned[:3].swapaxes(0, 1), expected[:, :3])
    assert np.isnan(scanned[3:]).all()


@pytest.mark.parametrize("used", [0, 2, 9])
def test_more_positions_than_a_cache_has_are_stored_as_far_as_they_fit(used):
    cache = Cache(np.zeros((B, 1, 5, 2)), np.zeros((B, 1, 5, 3)), np.full(B, used, np.int32))
    cache = jax.tree.map(jnp.asarray, cache)
    rows = RNG.normal(size=(B, 1, 7, 2)), RNG.normal(size=(B, 1, 7, 3))
    got = jax.jit(lambda cache, *rows: cache.extended(*rows)[0])(cache, *rows)
    fits = max(5 - used, 0)
    for stored, new in zip(got[:2], rows, strict=True):
        expected = np.zeros(stored.shape)
        expected[:, 0, 5 - fits :] = new[:, 0, :fits]
        assert_close(stored, expected)
    assert got.used.tolist() == [used + 7] * B


# Blocks of queries


@pytest.mark.parametrize(
    "options",
    [
        {"mask": masks.Causal(), "positions": "alibi"},
        {"mask": masks.Dense(RNG.random((T, T)) < 0.7), "normalizer": Entmax(1.5)},
        {"positions": "rotary", "head_features": 4},
    ],
    ids=["alibi", "dense", "rotary"],
)
def test_entropy_in_blocks_of_queries(options, monkeypatch):
    module, allowed = layer(**options), RNG.random((B, 1, T, T)) < 0.8
    given = {"mask": allowed, "lengths": np.array([5, 3])}

    @jax.jit
    def weights_and_their_entropy(x):
        weights = module.weights(x, **given)
        return weights, jax.vmap(jax.vmap(regression.entropy))(weights)

    @jax.jit
    def in_blocks(x):
        sums = module.reduced(lambda rows: rows.sum(-1), x, **given)
        return module.entropy(x, **given), sums

    weights, expected = jax.device_get(weights_and_their_entropy(X))
    monkeypatch.setattr(projected, "ROWS", 2)
    entropy, sums = in_blocks(X)
    assert_close(entropy, expected)
    assert_close(sums, weights.sum(-1))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("count", [T - 2, T + 2])
def test_a_mask_of_another_size_is_refused_in_blocks_too(count, monkeypatch):
    monkeypatch.setattr(projected, "ROWS", 2)
    for shape in ((count, T), (T, count)):
        mask = np.ones(shape, bool)
        for ask in (layer().weights, layer().entropy):
            with pytest.raises(ValueError, match=r"mask must align .*\[2, 4, 5, 5\].*Got bool"):
                ask(X, mask=mask)
        for ask in (layer(mask=masks.Dense(mask)).weights, layer(mask=masks.Dense(mask)).entropy):
            with pytest.raises(ValueError, match=r"array must have one entry for each"):
                ask(X)


def test_entropy_of_an_empty_batch(monkeypatch):
    monkeypatch.setattr(projected, "ROWS", 2)
    assert jax.eval_shape(layer().entropy, X[:0]).shape == (0, N, T)


def test_entropy_holds_the_weights_of_some_queries():
    count = 2 * projected.ROWS + 3
    rows = jax.ShapeDtypeStruct((B, count, D), float)
    program = str(jax.make_jaxpr(layer().entropy)(rows))
    assert f"{N},{projected.ROWS},{count}]" in program.replace("1,", "")
    assert f"{count},{count}" not in program


# Training


def test_dropout_drops_weights_of_each_head_and_example():
    module = layer(dropout=0.5)
    losses = [module(X, rng=rng).sum() for rng in (None, jax.random.key(0), jax.random.key(0))]
    assert losses[0] != losses[1]
    assert losses[1] == losses[2]
    same = np.broadcast_to(X[:1], X.shape)
    output = module(same, rng=jax.random.key(0))
    assert np.abs(output[0] - output[1]).max() > 1e-3


def test_dropout_differs_from_head_to_head():
    """Even weights and values of 1: a head shows the sum of the weights that it kept."""
    module = layer(dropout=0.5, key_value_heads=1, value_features=1, out_features=N)
    for linear, value in ((module.query, 0), (module.key, 0), (module.value, 0), (module.out, 0)):
        linear.kernel[...] = jnp.full(linear.kernel.shape, value, float)
        linear.bias[...] = jnp.zeros(linear.bias.shape)
    module.value.bias[...] = jnp.ones(1)
    module.out.kernel[...] = jnp.eye(N)
    kept = np.asarray(compiled(module)(X, rng=jax.random.key(0)))
    assert_close(kept, np.round(kept * T / 2) * 2 / T)
    assert all(np.abs(kept[..., 0] - kept[..., n]).max() > 0.1 for n in range(1, N))


def test_streaming_is_dense():
    dense, streams = layer(implementation="dense"), layer(implementation="streaming")
    options = {"lengths": np.array([4, 0])}
    assert_close(streams(X, **options), dense(X, **options))


def test_half_precision_computes_in_half_and_keeps_its_parameters():
    module = layer(dtype=jnp.bfloat16)
    assert module.query.kernel[...].dtype == jnp.float64
    output = module(X)
    assert output.dtype == jnp.bfloat16
    assert_close(output, layer()(X).astype(jnp.bfloat16), tolerance=0.1)


def test_an_empty_batch_has_an_empty_result():
    for implementation in ("dense", "streaming"):
        module = layer(implementation=implementation, positions="rotary", head_features=4)
        assert module(X[:0]).shape == (0, T, D)
        output, cache = module.extend(X[:0, :2], module.cache(0, 3))
        assert output.shape == (0, 2, D)
        assert cache.used.shape == (0,)


def test_cudnn_is_asked_without_blocks(monkeypatch):
    """Where so many heads stream they get smaller blocks, which cuDNN does not know."""
    asked = []

    def spy(query, key, value, slots, *, block_size=None, **_):
        asked.append((query.shape, block_size))
        return value

    monkeypatch.setattr(cudnn, "attend", spy)
    layer(implementation="cudnn")(np.ones((400, 1, D)))
    assert asked == [((400, 1, N, D // N), None)]
