"""Mistakes in what modules are given: the argument, the rule, what came."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_jax.nn
from attn_jax import Dot, Softmax, masks
from attn_jax.nn import (
    GRU,
    LSTM,
    Attention,
    Block,
    ConvolutionalEncoder,
    Decoder,
    Embedding,
    Experts,
    FeedForward,
    History,
    ImageEncoder,
    LanguageModel,
    MultiHeadAttention,
    NadarayaWatson,
    Patches,
    PyramidEncoder,
    RecurrentEncoder,
    Seq2Seq,
    Slots,
    Stack,
    TransformerDecoder,
    TransformerEncoder,
    TransformerSeq2Seq,
)
from tests.nn.compiled import compiled

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
        (
            {"positions": "learned"},
            r"positions must be 'rotary', a Rotary, 'alibi' or None\. Got 'learned'",
        ),
        ({"positions": "rotary"}, r"head_features must be even for rotary positions\. Got 3"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"dropout": None}, "dropout must be one real number. Got None"),
        ({"mask": masks.Causal}, r"mask must be a function .*did you mean Causal\(\)"),
        ({"score": Dot}, r"score must be a function .*did you mean Dot\(\)"),
        ({"score_mod": 0.5}, "score_mod must be a function .*Got 0.5"),
        ({"normalizer": None}, "normalizer must be a function .*Got None"),
        ({"dtype": jnp.int32}, "dtype must be a floating-point dtype or None"),
    ],
)
def test_attention_names_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"features": D, "heads": N} | options, rngs=nnx.Rngs(0))


def test_a_slot_is_no_class():
    for build, name in (
        (lambda: Attention(3, 4, score=Dot, rngs=nnx.Rngs(0)), "score"),
        (lambda: Attention(3, 4, normalizer=Softmax, rngs=nnx.Rngs(0)), "normalizer"),
        (lambda: NadarayaWatson(normalizer=Softmax), "normalizer"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .*Got the class"):
            build()


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
        ({}, (X,), {"lengths": [1, 6]}, r"lengths must be at most 5, .*Got \[1 6\]"),
        (
            {"memory_features": 6},
            (X, MEMORY),
            {"lengths": np.array([2**32 + 1] * 2)},
            "lengths must be at most 7",
        ),
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
        (
            {"memory_features": 6},
            X,
            {"memory": MEMORY, "memory_lengths": [2, 8]},
            "memory_lengths must be at most 7",
        ),
        ({}, X, {"lengths": [2, 6]}, "lengths must be at most 5"),
    ],
)
def test_stack_names_bad_input(own, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        stack(**own)(inputs, **options)


def test_a_full_cache_of_a_stack_is_refused():
    module = stack(mask=masks.Causal())
    room = r"cache must have room for 3 more positions\. Got 4 of 5 used"
    used = tuple(each._replace(used=jnp.array([4, 4])) for each in module.cache(B, T))
    for each in (module, module.unrolled()):
        with pytest.raises(ValueError, match=room):
            each.extend(X[:, :3], used)


def test_a_stack_is_given_what_its_layers_take():
    with pytest.raises(ValueError, match=r"memory must be given where .* memory_features None"):
        stack().project_memory(MEMORY)
    module = stack(mask=masks.Causal(), layers=2)
    for cache in (module.cache(B, T)[:1], module.cache(B, T)[0]):
        with pytest.raises(ValueError, match="cache must be a tuple, one of each of the 2 layers"):
            module.extend(X[:, :1], cache)


# Tokens and positions


@pytest.mark.parametrize(
    ("tokens", "start", "message"),
    [
        ([[3, 7]], 0, r"tokens must be from 0 to 6\. Got \[7\]"),
        ([[3, -1]], 0, r"tokens must be from 0 to 6\. Got \[-1\]"),
        ([3, 4], 0, r"tokens must be integers \[batch, length\]"),
        ([[3.0]], 0, r"tokens must be integers \[batch, length\]"),
        ([[1] * 6], 0, r"tokens must take at most 5 positions, which are learned\. Got 6"),
        ([[2**32 + 1]], 0, "tokens must be from 0 to 6"),
        ([[1, 1]], -1, "start must not be negative. Got -1"),
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
    with pytest.raises(ValueError, match="source must take at most 5 positions"):
        model.encode(np.ones((1, 6), int), np.array([3]))
    batch = {"source": np.ones((1, 3), int), "source_length": [3]}
    batch |= {"target": np.ones((1, 6), int), "target_length": [6]}
    with pytest.raises(ValueError, match="target must take at most 5 positions"):
        model.loss(batch, start=2)


def test_traced_tokens_are_not_known():
    module = Embedding(7, 4, rngs=nnx.Rngs(0))
    got = jax.jit(module)(jnp.array([[6, 7, 99, -1], [0, -7, -8, -99]]))
    np.testing.assert_array_equal(got, np.repeat(got[:, :1], 4, axis=1))


def test_a_language_model_names_bad_tokens():
    model = LanguageModel(7, 4, 1, 1, rngs=nnx.Rngs(0))
    for tokens, rule in (([1, 2], r"integers \[batch, length\]"), ([[1, 2, 7]], "from 0 to 6")):
        with pytest.raises(ValueError, match=f"tokens must be {rule}"):
            model.loss(tokens)
    with pytest.raises(ValueError, match="token must be integers, one for each hypothesis"):
        model.step(3, model.cache(1, 2))


SOURCES = {"source": np.ones((2, 3), int), "source_length": np.array([3, 2])}
BATCH = SOURCES | {"target": np.ones((2, 4), int), "target_length": np.array([4, 2])}
BAD_BATCHES = [
    ({"source": np.full((2, 3), 7)}, "source must be from 0 to 6"),
    ({"source_length": [3, 4]}, "length must be at most 3"),
    ({"source_length": [3]}, "length must be integers, one for each of the 2"),
    ({"source_length": None}, "length must be integers, .*Got None"),
    ({"target": np.ones(4, int)}, r"target must be integers \[batch, length\]"),
    ({"target": np.full((2, 4), 5)}, r"target must be from 0 to 4\. Got \[5\]"),
    ({"target": np.ones((3, 4), int)}, "target must have as many rows as source"),
    ({"target_length": [4, 5]}, "target_length must be at most 4"),
    ({"start": 5}, r"start must be from 0 to 4\. Got \[5\]"),
    ({"start": -1}, r"start must be from 0 to 4\. Got \[-1\]"),
    ({"start": 2**32 + 1}, "start must be from 0 to 4"),
    ({"start": 0.5}, r"start must be one integer\. Got 0.5"),
    ({"start": None}, r"start must be one integer\. Got None"),
]
TRANSLATORS = {
    "recurrent": lambda: recurrent(7, 5),
    "transformer": lambda: TransformerSeq2Seq(7, 5, 4, 1, 1, rngs=nnx.Rngs(0)),
}


def recurrent(sources, targets):
    rngs = nnx.Rngs(0)
    encoder = RecurrentEncoder(3, 2, rngs=rngs)
    decoder = Decoder(targets, 4, 4, embedding=2, features=3, rngs=rngs)
    return Seq2Seq(sources, encoder, decoder, embedding=3, rngs=rngs)


@pytest.mark.parametrize("build", TRANSLATORS.values(), ids=TRANSLATORS)
def test_a_translator_names_what_is_wrong_in_a_batch(build):
    model = build()
    for change, message in BAD_BATCHES:
        batch = BATCH | {"start": 2} | change
        with pytest.raises(ValueError, match=message):
            model.loss(batch, start=batch.pop("start"))
    step, state = model.begin(*SOURCES.values(), longest=1)
    for token, rule in (([1, 5], "from 0 to 4"), (1, "integers, one for each"), ([1.0] * 2, "int")):
        with pytest.raises(ValueError, match=f"token must be {rule}"):
            step(token, state)
    with pytest.raises(ValueError, match="tokens must be from 0 to 4"):
        model(*SOURCES.values(), BATCH["target"] + 4)


# Every module: sizes, flags, seeds


def every_module(size, **options):
    """Each module by its sizes, with all that are not needed as well; `size` makes one."""
    two, four, six = size(2), size(4), size(6)
    encoder = {"in_features": four, "features": two, "layers": two}
    decoder = {"embedding": two, "features": four, "layers": two, "attention_features": two}
    blocks = {"hidden": six, "key_value_heads": two}
    wide = {"head_features": four, "value_features": two, "out_features": six}
    calls = {
        Attention: ((four, six), {"features": two}),
        ConvolutionalEncoder: ((), encoder | {"width": size(3)}),
        Decoder: ((six, four, two), decoder | {"readout": six}),
        Embedding: ((six, four), {"positions": "learned", "longest": size(5)}),
        Experts: ((four,), {"hidden": six, "count": four, "chosen": two}),
        FeedForward: ((four, six), {"activation": "swiglu", "bias": True}),
        GRU: ((four, two), {}),
        History: ((four,), {"location": two, "location_width": size(3)}),
        ImageEncoder: ((four, (two, six)), {"channels": two, "patch": size(3)}),
        LSTM: ((four, two), {}),
        LanguageModel: ((six, four, two, two), blocks | {"longest": size(5)}),
        MultiHeadAttention: (
            (four, four),
            wide | {"key_value_heads": two, "memory_features": six, "positions": "rotary"},
        ),
        Patches: ((six, two, four), {"channels": two}),
        PyramidEncoder: ((four, two), {"convolutions": two, "layers": two}),
        RecurrentEncoder: ((), encoder),
        Seq2Seq: ((six, encoders(), decoders()), {"embedding": four}),
        Stack: ((four, two, two), blocks | {"memory_features": six}),
        TransformerDecoder: (
            (six, four, two, two),
            blocks | {"positions": "learned", "longest": size(5), "memory_features": six},
        ),
        TransformerEncoder: ((six, four, two, two), blocks | {"longest": size(5)}),
        TransformerSeq2Seq: ((six, six, four, two, two), blocks | {"longest": size(5)}),
    }
    return {
        kind: lambda kind=kind, sizes=sizes, named=named, **flags: kind(
            *sizes, **named | {"rngs": nnx.Rngs(0)} | options | flags
        )
        for kind, (sizes, named) in calls.items()
    }


def encoders():
    return RecurrentEncoder(4, 2, rngs=nnx.Rngs(0))


def decoders():
    return Decoder(6, 4, 4, embedding=2, features=3, rngs=nnx.Rngs(0))


def test_every_module_is_in_the_tables():
    modules = {
        each for each in vars(attn_jax.nn).values() if isinstance(each, type) and is_module(each)
    }
    assert every_module(int).keys() == modules - {Block, NadarayaWatson, Slots}


def is_module(each):
    return issubclass(each, nnx.Module)


def test_sizes_may_be_numpy_integers():
    plain = every_module(int)
    for kind, build in every_module(np.int64).items():
        got, expected = (nnx.eval_shape(each) for each in (build, plain[kind]))
        assert nnx.graphdef(got) == nnx.graphdef(expected)
        assert jax.tree.leaves(nnx.state(got)) == jax.tree.leaves(nnx.state(expected))


def test_a_model_with_numpy_sizes_is_called_and_decodes():
    two = np.int64(2)
    model = LanguageModel(np.int32(7), np.int64(4), two, two, rngs=nnx.Rngs(0))
    tokens = np.ones((2, 3), int)
    expected = compiled(LanguageModel(7, 4, 2, 2, rngs=nnx.Rngs(0)))(tokens)
    np.testing.assert_array_equal(compiled(model)(tokens), expected)

    def decoded(tokens):
        step, state = model.begin(tokens, longest=two)
        return step(tokens[:, -1], state)[0]

    assert jax.eval_shape(decoded, tokens).shape == (2, 7)
    assert model.cache(two, two)[1].key.shape == (2, 2, 2, 2)


FLAGS = {
    Attention: ("learn_alpha",),
    Decoder: ("learn_alpha", "input_feeding", "tied", "gate", "coverage", "copy"),
    Embedding: ("tied", "output_bias"),
    FeedForward: ("bias",),
    History: ("coverage",),
    LanguageModel: ("tied", "normalize_query_key", "bias", "remat"),
    MultiHeadAttention: ("normalize_query_key", "bias"),
    RecurrentEncoder: ("bidirectional", "residual"),
    Stack: ("normalize_query_key", "bias", "remat"),
    TransformerDecoder: ("normalize_query_key", "bias", "remat"),
    TransformerEncoder: ("normalize_query_key", "bias", "remat"),
    TransformerSeq2Seq: ("normalize_query_key", "bias", "remat", "shared"),
    NadarayaWatson: ("learn_bandwidth", "learn_alpha"),
}


def test_flags_are_true_or_false():
    builders = every_module(int) | {NadarayaWatson: NadarayaWatson}
    for kind, build in builders.items():
        annotated = inspect.signature(kind.__init__).parameters.values()
        assert {each.name for each in annotated if each.annotation is bool} <= set(
            FLAGS.get(kind, ())
        )
        for name in FLAGS.get(kind, ()):
            for value in ("none", None, 1, np.ones(2)):
                if isinstance(value, str) and name == "normalize_query_key":
                    continue  # it may be a norm's name
                with pytest.raises(ValueError, match=rf"^{name} must be True or False\. Got "):
                    build(**{name: value})
    with pytest.raises(ValueError, match=r"^normalize_query_key must be one of \['layer', 'rms'\]"):
        MultiHeadAttention(4, 2, normalize_query_key="none", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"^bias must be True, False or names of \['query', "):
        MultiHeadAttention(4, 2, bias=["none"], rngs=nnx.Rngs(0))
    nnx.eval_shape(lambda: MultiHeadAttention(4, 2, bias=np.bool_(False), rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"reverse must be True or False\. Got 'yes'"):
        GRU(2, 3, rngs=nnx.Rngs(0))(X[:, :, :2], reverse="yes")


def test_a_seed_is_an_rngs():
    for build in every_module(int).values():
        for value in (0, None, jax.random.key(0)):
            with pytest.raises(
                ValueError, match=r"^rngs must be an nnx.Rngs, nnx.Rngs\(0\) say. G"
            ):
                build(rngs=value)


def test_heads_before_the_length_are_named():
    """[b, h, t, d] where [b, t, h, d] is meant."""
    query, key = jnp.ones((2, 4, 7, 3)), jnp.ones((2, 4, 5, 3))
    layout = r"in the layout \[B, length, heads, features\]\. Got 7 query heads, .*\(2, 4, 7, 3\)"
    with pytest.raises(ValueError, match=f"query heads must be a multiple of the 5 .*{layout}"):
        attn_jax.dot_product_attention(query, key, key)
    with pytest.raises(ValueError, match="same length and heads, in the layout"):
        attn_jax.dot_product_attention(query, key, key[:, :, :2])
