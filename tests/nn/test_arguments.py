"""Mistakes in what modules are given: the argument, the rule, what came."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import masks
from attn_jax.nn import Embedding, LanguageModel, MultiHeadAttention, Stack, TransformerSeq2Seq

pytestmark = pytest.mark.usefixtures("without_shape_hook")

B, T, D, N = 2, 5, 12, 4
X, MEMORY = np.ones((B, T, D)), np.ones((B, 7, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 0}, r"heads must be a positive integer\. Got 0"),
        ({"features": 2.5}, r"features must be a positive integer\. Got 2.5"),
        ({"key_value_heads": 3}, r"key_value_heads must divide 4\. Got 3"),
        ({"key_value_heads": 0}, r"key_value_heads must be a positive integer\. Got 0"),
        ({"head_features": 0}, r"head_features must be a positive integer\. Got 0"),
        ({"heads": 5}, r"heads must divide features, 12, without head_features\. Got 5"),
        ({"positions": "learned"}, r"positions must be 'rotary', 'alibi' or None\. Got 'learned'"),
        ({"positions": "rotary"}, r"head_features must be even for rotary positions\. Got 3"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"dtype": jnp.int32}, "dtype must be a floating-point dtype or None"),
    ],
)
def test_attention_names_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"features": D, "heads": N} | options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("own", "arguments", "options", "message"),
    [
        (
            {},
            (X[0],),
            {},
            r"inputs must have shape \[batch, length, features\]. Got float64\[5, 12",
        ),
        ({}, (X[:, :, :7],), {}, r"inputs must have 12 features\. Got float64"),
        ({}, (X + 1j,), {}, r"inputs must hold real numbers\. Got complex128"),
        ({}, (X, MEMORY), {}, "memory must have 12 features"),
        ({"memory_features": 6}, (X,), {}, "memory must be given to a module with memory_features"),
        (
            {"memory_features": 6},
            (X, MEMORY[:1]),
            {},
            "memory must be of 2 examples, as the inputs",
        ),
        ({}, (X,), {"lengths": [1.0, 2.0]}, "lengths must be integers, one for each of the 2"),
        ({}, (X,), {"lengths": [1, 2, 3]}, "lengths must be integers, one for each of the 2"),
        ({}, (X,), {"lengths": [1, -2]}, "lengths must not be negative"),
    ],
)
def test_attention_names_bad_input(own, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(D, N, **own, rngs=nnx.Rngs(0))(*arguments, **options)


def test_cross_attention_has_no_cache_to_extend():
    module = MultiHeadAttention(D, N, memory_features=6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="memory_features must be None where a cache is extended"):
        module.extend(X, module.cache(B, T))


# Stacks


def stack(**options):
    return Stack(**{"features": D, "heads": 2, "layers": 1} | options, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "learned"}, r"positions must be one of \['none', 'rotary', 'alibi'\] in a"),
        ({"positions": "absolute"}, r"positions must be one of .*Got 'absolute'"),
        ({"norm": "batch"}, r"norm must be one of .*Got 'batch'"),
        ({"activation": "tanh"}, r"activation must be one of .*Got 'tanh'"),
        ({"layers": 0}, r"layers must be a positive integer\. Got 0"),
        ({"hidden": 0}, r"hidden must be a positive integer\. Got 0"),
        ({"heads": -1}, r"heads must be a positive integer\. Got -1"),
    ],
)
def test_stack_names_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        stack(**options)


@pytest.mark.parametrize(
    ("own", "inputs", "options", "message"),
    [
        ({}, X[..., :5], {}, "inputs must have 12 features"),
        ({}, X, {"memory": MEMORY}, "memory must be given where .* memory_features None"),
        ({"memory_features": 6}, X, {}, "memory must be given where .* memory None"),
        ({"memory_features": 6}, X, {"memory": MEMORY[:1]}, "memory must be of 2 examples"),
        ({"memory_features": 6}, X, {"memory": MEMORY[0]}, "memory must have shape"),
        ({}, X, {"lengths": [2, -1]}, "lengths must not be negative"),
        (
            {"memory_features": 6},
            X,
            {"memory": MEMORY, "memory_lengths": [2]},
            "memory_lengths must be integers, one for each of the 2",
        ),
    ],
)
def test_stack_names_bad_input(own, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        stack(**own)(inputs, **options)


def test_a_full_cache_of_a_stack_is_refused():
    module = stack(mask=masks.Causal())
    room = r"cache must have room for 3 more positions\. Got 4 of 5 used"
    used = module.cache(B, T)._replace(used=jnp.array([4]))
    with pytest.raises(ValueError, match=room):
        module.extend(X[:, :3], used)
    apart = tuple(each._replace(used=jnp.array([4, 4])) for each in module.caches(B, T))
    with pytest.raises(ValueError, match=room):
        module.extend_each(X[:, :3], apart)
    with pytest.raises(ValueError, match="stack must be extended by extend_each"):
        module.unrolled().extend(X[:, :1], module.cache(B, T))


# Tokens and positions


@pytest.mark.parametrize(
    ("tokens", "start", "message"),
    [
        ([[3, 7]], 0, r"tokens must be from 0 to 6\. Got \[7\]"),
        ([[3, -1]], 0, r"tokens must be from 0 to 6\. Got \[-1\]"),
        ([3, 4], 0, r"tokens must be integers \[batch, length\]"),
        ([[3.0]], 0, r"tokens must be integers \[batch, length\]"),
        ([[1] * 6], 0, r"tokens must take at most 5 positions, which are learned\. Got 6"),
        ([[1, 1]], jnp.array(4), r"tokens must take at most 5 positions, .*\. Got 6"),
    ],
)
def test_embedding_names_bad_tokens(tokens, start, message):
    module = Embedding(7, 4, positions="learned", longest=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=message):
        module(np.array(tokens), start=start)


def test_learned_positions_end_also_where_jax_traces():
    module = Embedding(7, 4, positions="learned", longest=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="tokens must take at most 5 positions"):
        jax.eval_shape(module, jnp.ones((1, 6), int))


def test_begin_names_what_does_not_fit():
    model = LanguageModel(7, 4, 1, 1, positions="learned", longest=5, rngs=nnx.Rngs(0))
    assert model.begin(np.ones((2, 3), int), longest=3)[1][0].key.shape[2] == 5
    for prompt, longest, message in (
        (np.ones((2, 3), int), 4, r"prompt and longest must take at most 5 positions, .*Got 6"),
        (np.ones((2, 0), int), 4, "prompt must hold a token at least"),
        (np.full((2, 3), 7), 1, "prompt must be from 0 to 6"),
        (np.ones((2, 3), int), 0, "longest must be a positive integer"),
    ):
        with pytest.raises(ValueError, match=message):
            model.begin(prompt, longest=longest)
    with pytest.raises(ValueError, match="cache must have room for 2 more positions"):
        model.extend(np.ones((2, 2), int), model.cache(2, 1))


def test_a_translator_ends_at_its_learned_positions():
    model = TransformerSeq2Seq(7, 7, 4, 1, 1, positions="learned", longest=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="longest must take at most 5 positions"):
        model.begin(np.ones((1, 3), int), np.array([3]), longest=6)
    with pytest.raises(ValueError, match="tokens must take at most 5 positions"):
        model.encode(np.ones((1, 6), int), np.array([3]))
