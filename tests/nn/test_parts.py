"""What a block is composed of: norms and where they stand, activations, biases, experts, layers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Causal, Window
from attn_jax.nn import Block, Experts, FeedForward, LanguageModel, MultiHeadAttention, Stack
from attn_jax.nn.parts import Gated
from tests.tolerance import assert_close

X = np.random.default_rng(0).normal(size=(2, 6, 8))


def kernels_of(module):
    """Which linear maps have a bias."""
    return {
        path[-1]
        for path, each in nnx.iter_modules(module)
        if isinstance(each, nnx.Linear) and each.bias is not None
    }


@pytest.mark.parametrize("places", [{"query", "value", "up"}, set(), {"out", "gate", "down"}])
def test_biases_are_where_they_are_asked_for(places):
    block = Block(8, 2, bias=places, activation="swiglu", rngs=nnx.Rngs(0))
    assert kernels_of(block) == places


def test_norms_are_made_as_they_are_given():
    block = Block(8, 2, norm=partial(nnx.RMSNorm, epsilon=0.1), rngs=nnx.Rngs(0))
    assert isinstance(block.attention_norm, nnx.RMSNorm)
    assert block.attention_norm.epsilon == 0.1
    for given, kind in ((True, nnx.LayerNorm), ("layer", nnx.LayerNorm), ("rms", nnx.RMSNorm)):
        attention = MultiHeadAttention(8, 2, normalize_query_key=given, rngs=nnx.Rngs(0))
        assert type(attention.query_norm) is kind
        assert getattr(attention.query_norm, "bias", None) is None


@pytest.mark.parametrize(
    ("activation", "units"),
    [
        ("gelu_exact", lambda up, gate: partial(jax.nn.gelu, approximate=False)(up)),
        ("geglu", lambda up, gate: up * jax.nn.gelu(gate)),
        (jnp.sin, lambda up, gate: jnp.sin(up)),
        (Gated(jnp.sin), lambda up, gate: up * jnp.sin(gate)),
    ],
    ids=["name", "gated name", "function", "gated function"],
)
def test_activations_are_names_or_functions(activation, units):
    layer = FeedForward(8, 5, activation=activation, bias=True, rngs=nnx.Rngs(0))
    gate = None if layer.gate is None else layer.gate(X)
    assert_close(layer(jnp.asarray(X)), layer.down(units(layer.up(X), gate)))


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "sandwich_norm", "parallel"])
def test_a_block_adds_its_parts_in_the_order_of_its_residual(residual):
    block = Block(8, 2, residual=residual, mask=Causal(), rngs=nnx.Rngs(0))
    x, f, g = jnp.asarray(X), block.attention, block.forward
    before, after = block.attention_norm, block.forward_norm
    if residual == "pre_norm":
        x = x + f(before(x))
        expected = x + g(after(x))
    elif residual == "post_norm":
        x = before(x + f(x))
        expected = after(x + g(x))
    elif residual == "parallel":
        expected = x + f(before(x)) + g(after(x))
    else:
        x = x + block.after["attention"](f(before(x)))
        expected = x + block.after["forward"](g(after(x)))
    assert_close(block(jnp.asarray(X))[0], expected)


def test_a_stack_repeats_its_pattern():
    pattern = [{"mask": Window(1, 0)}, {"mask": Causal(), "normalize_query_key": "rms"}]
    stack = Stack(8, 2, 4, pattern=pattern, rngs=nnx.Rngs(0))
    x, weights = jnp.asarray(X), []
    for block in stack.layers():
        weights.append(block.attention.weights(block.attention_norm(x)))
        x, _ = block(x)
    found = stack.inspect(lambda block, queries, _: block.attention.weights(queries.own), X)
    assert_close(found[0], stack.norm(x))
    assert_close(found[1], jnp.stack(weights))
    zeros = (np.asarray(found[1]) == 0).mean(axis=(1, 2, 3, 4))
    assert zeros[0] == zeros[2] > zeros[1] == zeros[3]
    assert_close(stack.unrolled()(X), stack(X))
    state = nnx.split(stack)[1]
    assert {len(leaf) for leaf in jax.tree.leaves(state["blocks"])} == {2}
    with pytest.raises(ValueError, match=r"pattern must have a length that divides layers, 3\. G"):
        Stack(8, 2, 3, pattern=pattern, rngs=nnx.Rngs(0))


def test_a_pattern_is_one_program_whose_size_does_not_grow_with_the_layers():
    def length(layers):
        stack = Stack(8, 2, layers, pattern=[{"mask": Window(1, 0)}, {}], rngs=nnx.Rngs(0))
        return len(str(jax.make_jaxpr(stack)(X)))

    assert length(8) < 1.1 * length(4)


def test_experts_are_the_sum_of_the_best_few():
    experts = Experts(8, hidden=5, count=4, chosen=2, rngs=nnx.Rngs(1))
    logits = np.asarray(experts.router(X))
    outputs = [
        np.asarray(Experts.__call__(_only(experts, number), jnp.asarray(X))) for number in range(4)
    ]
    expected = np.zeros_like(X)
    for place in np.ndindex(X.shape[:2]):
        best = np.argsort(-logits[place])[:2]
        shares = np.exp(logits[place][best]) / np.exp(logits[place][best]).sum()
        expected[place] = sum(s * outputs[e][place] for s, e in zip(shares, best, strict=True))
    assert_close(experts(jnp.asarray(X)), expected)
    with pytest.raises(ValueError, match=r"chosen must be at most count, 4\. Got 5"):
        Experts(8, hidden=5, count=4, chosen=5, rngs=nnx.Rngs(1))


def _only(experts, number):
    """One of the experts, by itself."""
    one = Experts(8, hidden=5, count=1, chosen=1, rngs=nnx.Rngs(0))
    for name in ("up", "gate", "down"):
        for part in ("kernel", "bias"):
            array = getattr(experts, f"{name}_{part}")[...]
            getattr(one, f"{name}_{part}")[...] = array[number : number + 1]
    return one


# Positions and padding


def test_padding_before_the_rows_changes_nothing():
    """NaN in it neither: outputs and gradients are those of the rows alone."""
    stack = Stack(8, 2, 2, mask=Causal(), positions="rotary", rngs=nnx.Rngs(0))
    padded = np.full((2, 8, 8), np.nan)
    padded[0, 2:], padded[1, 5:] = X[0], X[1, :3]
    padding = np.array([2, 5])

    def total(stack, rows, padding, start):
        outputs = stack(rows, padding=padding)
        return jnp.sum(jnp.sin(outputs[:, start:]), axis=None)

    gradient = nnx.grad(total)
    one = gradient(stack, padded[:1], padding[:1], 2), gradient(stack, padded[1:], padding[1:], 5)
    alone = gradient(stack, X[:1], None, 0), gradient(stack, X[1:, :3], None, 0)
    for got, expected in zip(one, alone, strict=True):
        jax.tree.map(assert_close, *(jax.tree.map(lambda x: x, each) for each in (got, expected)))
    outputs = stack(padded, padding=padding)
    assert_close(outputs[0, 2:], stack(X[:1])[0])
    assert_close(outputs[1, 5:], stack(X[1:, :3])[0])


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
def test_positions_of_ones_own(positions):
    """Two texts in one row, each with positions from 0 on, and far ones."""
    model = LanguageModel(7, 8, 2, 1, positions=positions, longest=64, rngs=nnx.Rngs(0))
    tokens = np.array([[1, 2, 3, 4]])
    assert_close(model(tokens, positions=np.arange(4)), model(tokens))
    far = model(tokens, positions=np.arange(40, 44)[None])
    if positions == "rotary":
        assert_close(far, model(tokens))
    else:
        assert np.abs(np.asarray(far - model(tokens))).max() > 1e-3
    with pytest.raises(ValueError, match=r"positions must be integers \[4\] or \[1, 4\]"):
        model(tokens, positions=np.arange(3))
    with pytest.raises(ValueError, match="positions must not be negative"):
        model(tokens, positions=np.array([-1, 0, 1, 2]))


@pytest.mark.parametrize("sizes", [(1,) * 7, (7,), (3, 1, 3), (5, 2)])
@pytest.mark.parametrize("left", [0, 2, 4])
def test_a_rolling_cache_is_the_full_forward_and_goes_on_for_ever(left, sizes):
    rows = np.random.default_rng(3).normal(size=(2, 7, 8))
    slots = {"mask": Window(left, 0), "positions": "alibi"}
    attention = MultiHeadAttention(8, 2, **slots, rngs=nnx.Rngs(0))
    cache = attention.cache(2, 6)
    assert cache.key.shape[2] == max(left, 1)
    outputs, start = [], 0
    extend = nnx.jit(lambda module, rows, cache: module.extend(rows, cache))
    for size in sizes:
        new, cache = extend(attention, rows[:, start : start + size], cache)
        outputs.append(new)
        start += size
    assert_close(jnp.concatenate(outputs, axis=1), attention(rows))
    assert cache.used.tolist() == [7, 7]


def test_soft_caps_scales_and_types_of_an_embedding():
    options = {"scale": 2.0, "logit_cap": 1.5, "types": 2, "norm": "layer", "output_bias": False}
    model = LanguageModel(7, 8, 2, 1, positions="none", embedding=options, rngs=nnx.Rngs(0))
    tokens, embedding = np.array([[1, 2]]), model.embedding
    rows = embedding.tokens[...][tokens] * 2.0 + embedding.types[...][np.array([[1, 0]])]
    assert_close(embedding(tokens, types=np.array([[1, 0]])), embedding.norm(rows))
    logits = model.outputs(tokens) @ embedding.tokens[...].T
    assert_close(model(tokens), 1.5 * jnp.tanh(logits / 1.5))
    loss, counts = model.loss(np.array([[1, 2, 3]]))
    expected = -jax.nn.log_softmax(model(tokens))[0, [0, 1], [2, 3]].mean()
    assert_close(loss, expected)
    assert counts["tokens"] == 2
    assert 0 <= counts["accuracy"] <= 1
    with pytest.raises(ValueError, match=r"logit_cap must be positive or None\. Got -1"):
        LanguageModel(7, 8, 2, 1, embedding={"logit_cap": -1.0}, rngs=nnx.Rngs(0))
