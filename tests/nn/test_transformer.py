"""Stacks of blocks, language models and translators made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Entmax, SoftCap, Softmax, decoding, masks
from attn_jax.nn import LanguageModel, Stack, TransformerSeq2Seq
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close, assert_exactly_zero

V, B, T = 11, 3, 6
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(4, V, (B, T))
SOURCE, LENGTH = RNG.integers(4, 13, (B, 5)), np.array([5, 0, 3])


def gently_randomized(module):
    """Random parameters, small ones: four layers deep a large one decides everything."""
    randomized(module)
    state = nnx.state(module, nnx.Param)
    nnx.update(module, jax.tree.map(lambda each: each * 0.5, state))
    return module


def stack(**options):
    return gently_randomized(Stack(8, 2, 3, hidden=10, rngs=nnx.Rngs(0), **options))


def test_scan_is_the_loop_over_blocks():
    module = stack(norm="rms", activation="swiglu", bias=False)
    x = jnp.asarray(RNG.normal(size=(B, T, 8)))
    graphdef, state = nnx.split(module.blocks)
    expected = x
    for number in range(3):
        block = nnx.merge(graphdef, jax.tree.map(lambda each, i=number: each[i], state))
        seen = block.attention(block.attention_norm(expected))
        expected = expected + seen
        expected = expected + block.forward(block.forward_norm(expected))
    assert_close(module(x), module.norm(expected))


def test_blocks_differ_and_are_recomputed_to_the_same():
    plain, again = stack(), stack(remat=True)
    kernels = plain.blocks.forward.up.kernel[...]
    assert kernels.shape[0] == 3
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    x = jnp.asarray(RNG.normal(size=(B, T, 8)))

    def gradient(module):
        graphdef, state = nnx.split(module)
        return jax.grad(lambda state: (nnx.merge(graphdef, state)(x) ** 3).sum())(state)

    for one, other in zip(*map(jax.tree.leaves, map(gradient, (plain, again))), strict=True):
        assert_close(one, other, tolerance=1e-11)


def test_what_is_compiled_does_not_grow_with_the_depth():
    def lines(layers):
        module = Stack(8, 2, layers, rngs=nnx.Rngs(0))
        return len(jax.jit(module.__call__).lower(jnp.zeros((1, 3, 8))).as_text().splitlines())

    assert lines(12) < 1.2 * lines(2)


LANGUAGE_MODELS = {
    "rotary": {},
    "alibi, window": {"positions": "alibi", "mask": masks.Window(2, 0)},
    "sinusoidal, entmax": {"positions": "sinusoidal", "normalizer": Entmax(1.3)},
    "learned, untied": {"positions": "learned", "longest": 9, "tied": False},
    "none, grouped": {"positions": "none", "key_value_heads": 1, "norm": "rms"},
}


def language_model(**options):
    return gently_randomized(LanguageModel(V, 8, 2, 2, hidden=6, rngs=nnx.Rngs(0), **options))


@pytest.mark.parametrize("options", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_cached_decoding_is_the_full_forward(options):
    """By the stacked cache (a prompt, then one by one), and by the step function of decoding."""
    module = language_model(**options)
    expected = module(TOKENS)
    cache, got = module.cache(B, T + 1), []
    for part in (TOKENS[:, :4], TOKENS[:, 4:5], TOKENS[:, 5:]):
        logits, cache = module.extend(part, cache)
        got.append(logits)
    assert_close(jnp.concatenate(got, axis=1), expected)
    step, state = module.begin(TOKENS[:, :3], longest=4)
    for t in (2, 3, 4):
        logits, state, _ = step(jnp.asarray(TOKENS[:, t]), state)
        assert_close(logits, expected[:, t])


@pytest.mark.parametrize("options", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
def test_no_leak_from_the_future(options):
    """Changing a token changes no logits before it, to the bit, and those at it."""
    module = language_model(**options)
    before = module(TOKENS)
    changed = TOKENS.copy()
    changed[:, 3] = (changed[:, 3] - 4 + 1) % (V - 4) + 4
    after = module(changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (np.abs(before[:, 3] - after[:, 3]).max(-1) > 0).all()


def test_language_model_loss():
    module = language_model()
    logits = np.asarray(module(TOKENS[:, :-1]))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_p, TOKENS[:, 1:, None], axis=2).mean()
    assert_close(module.loss(TOKENS)[0], expected)


# Translators


def translator(**options):
    return gently_randomized(TransformerSeq2Seq(13, V, 8, 2, 2, rngs=nnx.Rngs(0), **options))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_step_is_one_time_of_teacher_forcing(positions):
    module = translator(positions=positions)
    expected = module(SOURCE, LENGTH, TOKENS)
    alignment = module.decoder.weights(jnp.asarray(TOKENS), module.encode(SOURCE, LENGTH))
    step, state = module.begin(SOURCE, LENGTH, longest=T)
    for t in range(3):
        logits, state, weights = step(jnp.asarray(TOKENS[:, t]), state)
        assert_close(logits, expected[:, t])
        assert_close(weights, alignment[:, t])


def test_padding_and_company_change_nothing():
    module = translator()
    expected = module(SOURCE, LENGTH, TOKENS)
    real = np.arange(5)[None] < LENGTH[:, None]
    padded = np.pad(np.where(real, SOURCE, 7), [(0, 0), (0, 2)], constant_values=9)
    order = np.array([2, 0, 1])
    got = module(padded[order], LENGTH[order], TOKENS[order])
    assert_close(got, expected[order])
    batch = {"source": SOURCE, "source_length": LENGTH, "target": TOKENS}
    batch["target_length"] = np.array([6, 0, 2])
    loss, numbers = module.loss(batch, start=2)
    longer = batch | {"target": np.pad(TOKENS, [(0, 0), (0, 2)], constant_values=5)}
    assert_close(module.loss(longer, start=2)[0], loss)
    assert int(numbers["tokens"]) == 8


def test_alignment_is_over_the_source_alone():
    module = translator()
    weights = module.decoder.weights(jnp.asarray(TOKENS), module.encode(SOURCE, LENGTH))
    assert weights.shape == (B, T, 5)
    assert_close(weights.sum(-1), np.where(LENGTH > 0, 1.0, 0.0)[:, None] * np.ones(T))
    for i, length in enumerate(LENGTH):
        assert_exactly_zero(weights[i, :, length:])


def test_beam_search_moves_the_caches():
    """Each hypothesis' log-probability, computed again from its tokens."""
    module = translator()
    step, state = module.begin(SOURCE, LENGTH, longest=5)
    how = {"start": 2, "end": 3, "max_length": 5, "beam_size": 3, "n_best": 2}
    found = jax.jit(lambda state: decoding.beam_search(step, state, **how))(state)
    for n in range(2):
        tokens, lengths = np.asarray(found.tokens[:, n]), np.asarray(found.lengths[:, n])
        before = np.concatenate([np.full((B, 1), 2), tokens[:, :-1]], axis=1)
        logits = np.asarray(module(SOURCE, LENGTH, before))
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_p, tokens[:, :, None], axis=2)[:, :, 0]
        real = np.arange(5)[None] < lengths[:, None]
        assert_close(found.log_probabilities[:, n], np.where(real, chosen, 0).sum(1))


def test_half_precision_keeps_its_parameters():
    module = language_model(dtype=jnp.bfloat16)
    assert module.stack.blocks.forward.up.kernel[...].dtype == jnp.float64
    assert module(TOKENS).dtype == jnp.bfloat16
    assert_close(module(TOKENS), language_model()(TOKENS).astype(jnp.bfloat16), tolerance=0.15)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "absolute"}, "positions must be one of .*Got 'absolute'"),
        ({"norm": "batch"}, "norm must be one of .*Got 'batch'"),
        ({"activation": "tanh"}, "activation must be one of .*Got 'tanh'"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        stack(**options)


# Slots of any kind

SLOTS = {
    "functions": {
        "score": lambda query, key: 0.3 * query @ key.T,
        "mask": lambda i, j: j <= i,
        "score_mod": lambda scores, i, j: scores - 0.1 * (i - j),
    },
    "arrays": {"normalizer": Softmax(jnp.array(0.5)), "mask": masks.Causal()},
    "numbers": {"normalizer": Softmax(0.5), "mask": masks.Causal(), "score_mod": SoftCap(3.0)},
}


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_a_model_with_any_slots_is_split_jitted_and_trained(slots):
    module = stack(**slots)
    x = jnp.asarray(RNG.normal(size=(B, T, 8)))
    graphdef, parameters, others = nnx.split(module, nnx.Param, ...)

    @jax.jit
    @jax.grad
    def gradient(parameters):
        return (nnx.merge(graphdef, parameters, others)(x) ** 2).sum()

    slopes = gradient(parameters)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(slopes))
    # one layer of the three differs in nothing but its parameters: the same slots everywhere
    assert_close(module(x), stack(**slots)(x))
