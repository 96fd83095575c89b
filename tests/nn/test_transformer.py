"""Stacks of blocks, language models and translators made of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Alibi, Entmax, ScaledDot, SoftCap, Softmax, chain, decoding, masks
from attn_jax.nn import Embedding, Encoded, LanguageModel, Stack, TransformerSeq2Seq
from tests.nn.compiled import compiled
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close, assert_exactly_zero, assert_trees_close

V, B, T = 11, 3, 6
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(4, V, (B, T))
SOURCE, LENGTH = RNG.integers(4, 13, (B, 5)), np.array([5, 0, 3])


def gently_randomized(module):
    """Random parameters, small ones: four layers deep a large one decides everything."""
    randomized(module)
    state = nnx.state(module, nnx.All(nnx.Param, lambda path, _: "slots" not in path))
    nnx.update(module, jax.tree.map(lambda each: each * 0.5, state))
    return module


def stack(**options):
    return gently_randomized(Stack(8, 2, 3, hidden=10, rngs=nnx.Rngs(0), **options))


def test_scan_is_the_loop_over_blocks():
    module = stack(norm="rms", activation="swiglu", bias=False)
    graphdef, state = nnx.split(module.blocks)

    @jax.jit
    def loop(x):
        for number in range(3):
            block = nnx.merge(graphdef, jax.tree.map(lambda each, i=number: each[i], state))
            x = x + block.attention(block.attention_norm(x))
            x = x + block.forward(block.forward_norm(x))
        return module.norm(x)

    x = RNG.normal(size=(B, T, 8))
    assert_close(compiled(module)(x), loop(x))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_blocks_differ_and_are_recomputed_to_the_same(dropout):
    plain, again = stack(dropout=dropout), stack(dropout=dropout, remat=True)
    kernels = plain.blocks.forward.up.kernel[...]
    assert kernels.shape[0] == 3
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    x = RNG.normal(size=(B, T, 8))

    def gradient(module):
        graphdef, state = nnx.split(module)
        rng = jax.random.key(0)
        loss = lambda state: (nnx.merge(graphdef, state)(x, rng=rng) ** 3).sum()  # noqa: E731
        return jax.jit(jax.grad(loss))(state)

    for one, other in zip(*map(jax.tree.leaves, map(gradient, (plain, again))), strict=True):
        assert_close(one, other, tolerance=1e-11)


def test_an_unrolled_stack_is_the_same():
    module = stack(positions="alibi", dropout=0.4)
    x, lengths, rng = RNG.normal(size=(B, T, 8)), np.array([6, 2, 0]), jax.random.key(1)

    def weights(block, queries, memory):
        return block.attention.weights(queries.own)

    @jax.jit
    def both(x, rng):
        results = []
        for each in (module, module.unrolled()):
            outputs = [each(x, lengths=lengths, **options) for options in ({}, {"rng": rng})]
            results.append([*outputs, each.inspect(weights, x)[1]])
        return results

    assert_trees_close(*both(x, rng))


def test_an_unrolled_stack_recomputes_its_blocks():
    def recomputed(module):
        graphdef, state = nnx.split(module.unrolled())
        loss = lambda state, x: nnx.merge(graphdef, state)(x).sum()  # noqa: E731
        equations = jax.make_jaxpr(jax.grad(loss))(state, np.ones((B, T, 8))).eqns
        again = [str(each) for each in equations if each.primitive.name == "remat2"]
        return sum("dot_general" in each for each in again)  # softmax makes its elements again

    assert recomputed(stack(remat=True)) == 3
    assert recomputed(stack()) == 0


def test_padding_gives_no_gradient():
    """Of the inputs and of the memory: NaN times 0 would be NaN."""
    graphdef, state = nnx.split(stack(memory_features=5))
    lengths = {"lengths": LENGTH, "memory_lengths": np.array([2, 4, 0])}
    real = np.arange(T)[None] < LENGTH[:, None]

    @jax.jit
    @jax.grad
    def gradient(state, inputs, memory):
        outputs = nnx.merge(graphdef, state)(inputs, memory=memory, **lengths)
        return jnp.where(real[:, :, None], outputs**2, 0).sum()

    def padded(rows, length, number):
        return np.where(
            np.arange(rows.shape[1])[None, :, None] < length[:, None, None], rows, number
        )

    rows = {"lengths": RNG.normal(size=(B, T, 8)), "memory_lengths": RNG.normal(size=(B, 4, 5))}
    got, expected = (
        gradient(state, *(padded(each, lengths[name], number) for name, each in rows.items()))
        for number in (np.nan, 1.0)
    )
    assert_trees_close(got, expected)


def test_dropout_differs_from_layer_to_layer():
    """Each of three layers adds 1 where it keeps a unit: with one fate for all of them 0 or 3."""
    module = stack(dropout=0.5)
    kernels = (module.blocks.attention.out.kernel, module.blocks.forward.down.kernel)
    for each in (*kernels, module.blocks.forward.down.bias):
        each[...] = np.zeros(each.shape)
    module.blocks.attention.out.bias[...] = np.full((3, 8), 0.5)
    module.norm.scale[...], module.norm.bias[...] = np.ones(8), np.zeros(8)
    normalized = np.asarray(compiled(module)(np.zeros((B, T, 8)), rng=jax.random.key(0)))
    assert max(len(np.unique(row.round(6))) for row in normalized.reshape(-1, 8)) > 2


def test_calls_outside_jit_are_compiled_once():
    """Also of a stack that was made anew with the same options; other slots are another program."""
    x, compiled = RNG.normal(size=(B, T, 8)), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event.endswith("/backend_compile_duration"))
    )

    def programs(module):
        del compiled[:]
        module(x)
        module.extend(x[:, :2], module.cache(B, T))
        return sum(compiled)

    options = {"mask": masks.Causal(), "normalizer": Softmax(jnp.array(0.5))}
    module = stack(**options)
    programs(module)
    assert programs(module) == programs(stack(**options)) == 0
    assert programs(stack(mask=masks.Causal() & masks.Window(1, 0))) > 0


def test_what_is_compiled_does_not_grow_with_the_depth():
    def lines(layers):
        graphdef, state = nnx.split(nnx.eval_shape(lambda: Stack(8, 2, layers, rngs=nnx.Rngs(0))))
        forward = jax.jit(lambda state, x: nnx.merge(graphdef, state)(x))
        return len(forward.lower(state, np.zeros((1, 3, 8))).as_text().splitlines())

    assert lines(12) < 1.2 * lines(2)


LANGUAGE_MODELS = {
    "rotary": {},
    "alibi, window": {"positions": "alibi", "mask": masks.Window(2, 0)},
    "sinusoidal, entmax": {"positions": "sinusoidal", "normalizer": Entmax(1.3)},
    "learned, untied": {"positions": "learned", "longest": 9, "tied": False},
    "none, grouped": {"positions": "none", "key_value_heads": 1, "norm": "rms"},
}


def decoded(module, *begun, tokens, longest):
    """What the step function of decoding makes of each of these times' tokens."""

    @jax.jit
    def run(tokens):
        step, state = module.begin(*begun, longest=longest)

        def one(state, token):
            logits, state, weights = step(token, state)
            return state, (logits, weights)

        return jax.lax.scan(one, state, tokens.T)[1]

    return run(tokens)


def language_model(**options):
    return gently_randomized(LanguageModel(V, 8, 2, 2, hidden=6, rngs=nnx.Rngs(0), **options))


@pytest.mark.parametrize("options", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_cached_decoding_is_the_full_forward(options):
    """By the stacked cache (a prompt, then one by one), and by the step function of decoding.

    And changing a token changes no logits before it, to the bit, and those at it.
    """
    module = language_model(**options)
    changed = TOKENS.copy()
    changed[:, 3] = (changed[:, 3] - 4 + 1) % (V - 4) + 4
    forward, extend = compiled(module), compiled(module, "extend")
    expected, after = (np.asarray(forward(each)) for each in (TOKENS, changed))
    np.testing.assert_array_equal(expected[:, :3], after[:, :3])
    assert (np.abs(expected[:, 3] - after[:, 3]).max(-1) > 0).all()
    cache, got = module.cache(B, T + 1), []
    for part in (TOKENS[:, :4], TOKENS[:, 4:5], TOKENS[:, 5:]):
        logits, cache = extend(part, cache)
        got.append(logits)
    assert_close(np.concatenate(got, axis=1), expected)
    logits, _ = decoded(module, TOKENS[:, :3], tokens=TOKENS[:, 2:5], longest=4)
    assert_close(logits, expected[:, 2:5].swapaxes(0, 1))


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_decoding_beyond_the_room_of_a_cache_is_seen(positions):
    """Logits at positions that do not fit are NaN, and so is what a search makes of them."""
    module = language_model(positions=positions, longest=4)
    expected = np.asarray(compiled(module)(TOKENS[:, :4]))
    extend = compiled(module, "extend")
    got, cache = extend(TOKENS[:, :3], module.cache(B, 4))
    assert_close(got, expected[:, :3])
    got, cache = extend(TOKENS[:, 3:], cache)
    got = np.asarray(got)
    assert_close(got[:, :1], expected[:, 3:])
    assert np.isnan(got[:, 1:]).all()

    @jax.jit
    def fitting_and_beyond():
        step, state = module.begin(TOKENS[:, :2], longest=3)
        how = {"start": TOKENS[:, 1], "end": 3}
        return [decoding.greedy(step, state, **how, max_length=n, min_length=n) for n in (3, 4)]

    fits, beyond = fitting_and_beyond()
    assert np.isfinite(fits.log_probabilities).all()
    assert np.isnan(beyond.log_probabilities).all()
    assert not beyond.finished.any()


@pytest.mark.parametrize("start", [2, 9])
def test_positions_beyond_those_learned_are_nan_where_jax_traces(start):
    module = Embedding(V, 8, positions="learned", longest=5, rngs=nnx.Rngs(0))
    rows = np.asarray(compiled(module)(TOKENS[:, :4], start=start))
    fits = max(5 - start, 0)
    expected = jax.jit(lambda: module(TOKENS[:, :fits], start=min(start, 5)))()
    assert_close(rows[:, :fits], expected)
    assert np.isnan(rows[:, fits:]).all()


def test_an_unrolled_model_is_prefilled_alike():
    module = language_model(positions="alibi")
    both = (module, module.unrolled())
    expected, got = jax.jit(lambda: [each.prefill(TOKENS, longest=2) for each in both])()
    assert_trees_close([each[:2] for each in got], [each[:2] for each in expected])
    assert [each.used.tolist() for each in got] == [[T - 1] * B] * 2


def test_language_model_loss():
    module = language_model()
    logits = np.asarray(compiled(module)(TOKENS[:, :-1]))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_p, TOKENS[:, 1:, None], axis=2).mean()
    assert_close(module.loss(TOKENS)[0], expected)  # outside jit


# Translators


def translator(**options):
    return gently_randomized(TransformerSeq2Seq(13, V, 8, 2, 2, rngs=nnx.Rngs(0), **options))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_step_is_one_time_of_teacher_forcing(positions):
    module = translator(positions=positions)

    @jax.jit
    def teacher_forcing(tokens):
        weights = module.decoder.weights(tokens, module.encode(SOURCE, LENGTH))
        return module(SOURCE, LENGTH, tokens), weights

    got = decoded(module, SOURCE, LENGTH, tokens=TOKENS[:, :3], longest=T)
    expected = (np.asarray(each)[:, :3].swapaxes(0, 1) for each in teacher_forcing(TOKENS))
    assert_trees_close(got, tuple(expected))


def test_padding_and_company_change_nothing():
    module = translator()
    forward, loss_of = compiled(module), jax.jit(lambda batch: module.loss(batch, start=2))
    expected = np.asarray(forward(SOURCE, LENGTH, TOKENS))
    real = np.arange(5)[None] < LENGTH[:, None]
    padded = np.pad(np.where(real, SOURCE, 7), [(0, 0), (0, 2)], constant_values=9)
    order = np.array([2, 0, 1])
    got = forward(padded[order], LENGTH[order], TOKENS[order])
    assert_close(got, expected[order])
    batch = {"source": SOURCE, "source_length": LENGTH, "target": TOKENS}
    batch["target_length"] = np.array([6, 0, 2])
    loss, numbers = loss_of(batch)
    longer = batch | {"target": np.pad(TOKENS, [(0, 0), (0, 2)], constant_values=-100)}
    assert_close(loss_of(longer)[0], loss)
    assert int(numbers["tokens"]) == 8


def test_a_translators_mask_is_beside_the_causal_one():
    """Each position sees itself alone: no token changes what follows the next one."""
    module, changed = translator(mask=masks.Window(0, None)), TOKENS.copy()
    changed[:, 2] = (changed[:, 2] - 4 + 1) % (V - 4) + 4
    forward = compiled(module)
    one, other = (np.asarray(forward(SOURCE, LENGTH, each)) for each in (TOKENS, changed))
    assert (np.abs(one - other).max(-1) > 0).tolist() == [[t == 2 for t in range(T)]] * B


@pytest.mark.usefixtures("without_shape_hook")
def test_a_stem_makes_what_the_stack_reads_of_arrays():
    """Its memory, of another length and width than the source, is encoded; decoding follows."""
    frames = RNG.normal(size=(B, 10, 4))
    lengths = np.array([10, 0, 6])

    class Halved(nnx.Module):
        memory_features = summary_features = 4

        def __call__(self, source, length, *, rng=None):
            memory = (source[:, ::2] + source[:, 1::2]) / 2
            return Encoded(memory, length // 2, memory.sum(axis=1))

        def memory_length(self, length):
            return length // 2

    options = {"stem": Halved(), "rngs": nnx.Rngs(0)}
    model = gently_randomized(TransformerSeq2Seq(None, V, 8, 2, 1, **options))
    assert (model.memory_length(10), model.most_positions) == (5, np.inf)
    padded = frames.copy()
    padded[2, 6:] = 7.0
    before = np.concatenate([np.full((B, 1), 2), TOKENS[:, :2]], axis=1)

    @jax.jit
    def run(frames):
        step, state = model.begin(frames, lengths, longest=3)
        weights = model.decoder.weights(before, model.encode(frames, lengths))
        return model(frames, lengths, before), weights, step(jnp.asarray(before[:, 0]), state)[0]

    logits, weights, first = run(frames)
    assert weights.shape == (B, 3, 5)
    assert_exactly_zero(weights[2, :, 3:])
    assert_close(first, logits[:, 0])
    assert_close(run(padded)[0], logits)
    with pytest.raises(ValueError, match="sources must be None with a stem"):
        TransformerSeq2Seq(7, V, 8, 2, 1, **options)
    with pytest.raises(ValueError, match="positions must not be learned, where a stem"):
        TransformerSeq2Seq(None, V, 8, 2, 1, positions="learned", **options)


def test_an_empty_batch_has_an_empty_result():
    module, half = translator(), Embedding(V, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert jax.eval_shape(module, SOURCE[:0], LENGTH[:0], TOKENS[:0]).shape == (0, T, V)
    how = {"start": 2, "end": 3, "max_length": 5}
    begun = lambda: module.begin(SOURCE[:0], LENGTH[:0], longest=5)  # noqa: E731
    assert jax.eval_shape(lambda: decoding.greedy(*begun(), **how)).tokens.shape == (0, 5)
    assert jax.eval_shape(lambda tokens: half.logits(half(tokens)), TOKENS[:0]).shape == (0, T, V)


def test_alignment_is_over_the_source_alone():
    module = translator()
    align = jax.jit(lambda *given: module.decoder.weights(given[2], module.encode(*given[:2])))
    weights = np.asarray(align(SOURCE, LENGTH, TOKENS))
    assert weights.shape == (B, T, 5)
    assert_close(weights.sum(-1), np.where(LENGTH > 0, 1.0, 0.0)[:, None] * np.ones(T))
    for i, length in enumerate(LENGTH):
        assert_exactly_zero(weights[i, :, length:])


def test_beam_search_moves_the_caches():
    """Each hypothesis' log-probability, computed again from its tokens."""
    module = translator()
    forward = compiled(module)
    how = {"start": 2, "end": 3, "max_length": 5, "beam_size": 3, "n_best": 2}

    @jax.jit
    def search(*source):
        return decoding.beam_search(*module.begin(*source, longest=5), **how)

    found = jax.device_get(search(SOURCE, LENGTH))
    for n in range(2):
        tokens, lengths = found.tokens[:, n], found.lengths[:, n]
        before = np.concatenate([np.full((B, 1), 2), tokens[:, :-1]], axis=1)
        logits = np.asarray(forward(SOURCE, LENGTH, before))
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_p, tokens[:, :, None], axis=2)[:, :, 0]
        real = np.arange(5)[None] < lengths[:, None]
        assert_close(found.log_probabilities[:, n], np.where(real, chosen, 0).sum(1))


def test_half_precision_keeps_its_parameters_and_its_logits():
    """Logits are sums in float32, those of the cache too: rounded to half they would be equal."""
    module = language_model(dtype=jnp.bfloat16, normalize_query_key=True)
    assert module.stack.blocks.forward.up.kernel[...].dtype == jnp.float64
    logits = np.asarray(compiled(module)(TOKENS))
    assert logits.dtype == np.float32
    assert (logits != logits.astype(jnp.bfloat16)).any()
    full = compiled(language_model(normalize_query_key=True))(TOKENS)
    assert_close(logits, full, tolerance=0.15)
    stepped, _ = decoded(module, TOKENS[:, :3], tokens=TOKENS[:, 2:3], longest=1)
    assert_close(stepped[0], logits[:, 2], tolerance=0.05)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_a_stack_promotes_its_inputs(dtype):
    x, forward = (3 * RNG.normal(size=(B, T, 8))).astype(dtype), compiled(stack())
    assert_close(forward(x), forward(x.astype(float)))


def test_logits_of_half_precision_have_a_gradient():
    module = Embedding(V, 8, tied=False, rngs=nnx.Rngs(0))
    rows = RNG.normal(size=(B, 8)).astype(jnp.bfloat16)

    def total(rows):
        logits = module.logits(rows)
        return (logits**2).sum(), logits

    pulled, got = jax.jit(jax.grad(total, has_aux=True))(rows)
    table = np.asarray(module.output[...]).astype(jnp.bfloat16).astype(float)
    logits = rows.astype(float) @ table.T
    assert_close(got, logits)
    assert_close(pulled, 2 * logits @ table)


# Slots of any kind

SLOTS = {  # and the same by other means
    "functions": (
        {
            "score": lambda query, key: 0.3 * query @ key.T,
            "mask": lambda i, j: j <= i,
            "score_mod": lambda scores, i, j: scores - 0.1 * (i - j),
        },
        {"score": ScaledDot(0.3), "mask": masks.Causal(), "score_mod": Alibi(0.1)},
    ),
    "arrays": (
        {"normalizer": Softmax(jnp.array(0.5)), "mask": masks.Causal()},
        {"normalizer": Softmax(0.5), "mask": masks.Dense(np.tri(T, dtype=bool))},
    ),
    "numbers": (
        {"mask": masks.Causal(), "score_mod": chain(SoftCap(3.0), Alibi(0.2))},
        {
            "mask": masks.Causal(),
            "score_mod": lambda scores, i, j: 3 * jnp.tanh(scores / 3) - 0.2 * jnp.abs(i - j),
        },
    ),
}


@pytest.mark.parametrize(("slots", "others"), SLOTS.values(), ids=SLOTS)
def test_a_model_with_any_slots_is_split_jitted_and_trained(slots, others):
    module = stack(**slots)
    x = RNG.normal(size=(B, T, 8))
    graphdef, parameters, rest = nnx.split(module, nnx.Param, ...)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient(parameters):
        outputs = nnx.merge(graphdef, parameters, rest)(x)
        return (outputs**2).sum(), outputs

    slopes, outputs = jax.device_get(gradient(parameters))
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(slopes))
    expected, plain = (compiled(stack(**each))(x) for each in (others, {"mask": masks.Causal()}))
    assert_close(outputs, expected)
    assert np.abs(outputs - plain).max() > 1e-3


@pytest.mark.usefixtures("without_shape_hook")
def test_what_a_stack_goes_on_from_is_named():
    """A cache of each layer, a memory of each, of as many examples, and lengths within it."""
    stack = Stack(8, 2, 2, memory_features=5, rngs=nnx.Rngs(0))
    inputs, cache, memory = np.ones((3, 1, 8)), stack.cache(3, 4), np.ones((3, 4, 5))
    model = LanguageModel(7, 8, 2, 2, rngs=nnx.Rngs(0))
    of_each = "be a tuple, one of each of the 2 layers"
    refused = [
        (lambda: stack.extend(inputs, None, memory=memory), f"cache must {of_each}"),
        (lambda: stack.extend(inputs, cache[0], memory=memory), f"cache must {of_each}"),
        (lambda: model.extend(np.ones((1, 2), int), model.cache(1, 4)[0]), f"cache must {of_each}"),
        (
            lambda: stack.extend(inputs, cache, memory=stack.project_memory(memory)[0]),
            f"memory must {of_each}",
        ),
        (
            lambda: stack.extend(inputs, cache, memory=stack.project_memory(memory)[:1]),
            f"memory must {of_each}",
        ),
        (
            lambda: stack.extend(inputs, cache, memory=memory[:2]),
            "memory must be of 3 examples, as the inputs, or of a divisor of it. Got 2",
        ),
        (
            lambda: stack.extend(inputs, cache, memory=memory, memory_lengths=np.array([9, 1, 1])),
            "memory_lengths must be at most 4",
        ),
        (lambda: model.cache(1, -1), "length must be an integer of at least 0. Got -1"),
        (lambda: model.cache(2.0, 3), "batch must be an integer of at least 0. Got 2.0"),
    ]
    for call, says in refused:
        with pytest.raises(ValueError, match=says):
            call()
