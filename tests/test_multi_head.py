"""Heads with slots of their own are those heads one by one, in every implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    Causal,
    Dense,
    Dropout,
    Entmax,
    Kernel,
    Padding,
    Prefix,
    RelativeBias,
    ScaledDot,
    Segments,
    Sigmoid,
    SoftCap,
    Softmax,
    Sparsemax,
    Window,
    attention,
    chain,
    multi_head_attention,
)
from tests.tolerance import assert_close

B, T, S, H, G, D, E = 2, 5, 7, 6, 3, 4, 2
RNG = np.random.default_rng(17)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape))


QUERY, KEY, VALUE = normal(B, T, H, D), normal(B, S, G, D), normal(B, S, G, E)
LENGTHS = jnp.array([3, 7])
POSITIVE, BIAS = jnp.abs(normal(H)) + 0.5, normal(B, H, T, S)
SINKS, TABLES, WEIGHTS = normal(H), normal(H, 8), normal(H, D)
KEYS = jax.random.split(jax.random.key(0), (B, H))
# slots of all heads, and those of example i and head n
CASES = {
    "the same for all": ({"mask": Causal(1)}, lambda i, n: {"mask": Causal(1)}),
    "sinks": ({"normalizer": Softmax(SINKS)}, lambda i, n: {"normalizer": Softmax(SINKS[n])}),
    "sinks by vmap": (
        {"normalizer": jax.vmap(Softmax)(SINKS)},
        lambda i, n: {"normalizer": Softmax(SINKS[n])},
    ),
    "slopes, tables, biases of each example": (
        {"score_mod": chain(Alibi(POSITIVE), RelativeBias(TABLES), Bias(BIAS), SoftCap(3.0))},
        lambda i, n: {
            "score_mod": chain(
                Alibi(POSITIVE[n]), RelativeBias(TABLES[n]), Bias(BIAS[i, n]), SoftCap(3.0)
            )
        },
    ),
    "bandwidths, alphas": (
        {"score": Kernel(bandwidth=POSITIVE), "normalizer": Entmax(POSITIVE + 1)},
        lambda i, n: {
            "score": Kernel(bandwidth=POSITIVE[n]),
            "normalizer": Entmax(POSITIVE[n] + 1),
        },
    ),
    "bandwidths of features": (
        {"score": Kernel(bandwidth=jnp.abs(WEIGHTS) + 1), "normalizer": Sparsemax()},
        lambda i, n: {
            "score": Kernel(bandwidth=jnp.abs(WEIGHTS[n]) + 1),
            "normalizer": Sparsemax(),
        },
    ),
    "additive weights, scales of each example": (
        {"score": Additive(WEIGHTS), "normalizer": Sigmoid(BIAS[:, :, 0, 0])},
        lambda i, n: {"score": Additive(WEIGHTS[n]), "normalizer": Sigmoid(BIAS[i, n, 0, 0])},
    ),
    "lengths of examples, windows of heads": (
        {"mask": Padding(LENGTHS[:, None]) & (Window(jnp.arange(H), 1) | Prefix(1))},
        lambda i, n: {"mask": Padding(LENGTHS[i]) & (Window(n, 1) | Prefix(1))},
    ),
    "masks and segments": (
        {
            "mask": Dense(BIAS > -1)
            & Segments(jnp.arange(B * T).reshape(B, 1, T) % 2, jnp.arange(S) % 2)
        },
        lambda i, n: {
            "mask": Dense(BIAS[i, n] > -1)
            & Segments((jnp.arange(B * T).reshape(B, T) % 2)[i], jnp.arange(S) % 2)
        },
    ),
    "dropout": (
        {"dropout": Dropout(0.4, KEYS)},
        lambda i, n: {"dropout": Dropout(0.4, KEYS[i, n])},
    ),
}


def one_by_one(slots, query=QUERY, key=KEY, value=VALUE):
    group = query.shape[2] // key.shape[2]
    return jnp.stack(
        [
            jnp.stack(
                [
                    attention(
                        query[i, :, n],
                        key[i, :, n // group],
                        value[i, :, n // group],
                        implementation="dense",
                        **slots(i, n),
                    )
                    for n in range(query.shape[2])
                ],
                axis=1,
            )
            for i in range(B)
        ]
    )


@pytest.mark.parametrize("name", CASES)
def test_heads_with_their_own_slots_are_those_heads(name):
    slots, of_head = CASES[name]

    @jax.jit
    def both(query, slots):
        def value_and_slopes(implementation):
            def total(query, slots):
                output = multi_head_attention(
                    query, KEY, VALUE, implementation=implementation, **slots
                )
                return jnp.sum(jnp.sin(output)), output

            leaves, structure = jax.tree.flatten(slots)
            moves = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

            def of_floats(query, floats):
                rest = iter(floats)
                filled = [
                    next(rest) if move else leaf for move, leaf in zip(moves, leaves, strict=True)
                ]
                return total(query, structure.unflatten(filled))

            floats = [leaf for move, leaf in zip(moves, leaves, strict=True) if move]
            slopes, output = jax.grad(of_floats, (0, 1), has_aux=True)(query, floats)
            return output, slopes

        return value_and_slopes("dense"), value_and_slopes("streaming")

    (dense, slopes), (streamed, others) = both(QUERY, slots)
    assert_close(dense, one_by_one(of_head))
    assert_close(streamed, dense)
    for one, other in zip(jax.tree.leaves(slopes), jax.tree.leaves(others), strict=True):
        assert_close(one, other)
        assert np.isfinite(one).all()
        assert np.abs(one).max() > 0


def test_without_a_batch_and_with_other_widths():
    weights = normal(H, D, 3)
    key = normal(S, G, 3)
    output = multi_head_attention(QUERY[0], key, VALUE[0], score=Bilinear(weights))
    expected = [
        attention(QUERY[0, :, n], key[:, n // 2], VALUE[0, :, n // 2], score=Bilinear(weights[n]))
        for n in range(H)
    ]
    assert_close(output, jnp.stack(expected, axis=1))
    assert_close(multi_head_attention(QUERY, KEY, VALUE)[1], multi_head_attention(*last()))


def last():
    return QUERY[1], KEY[1], VALUE[1]


def test_a_block_size_is_heeded():
    how = {"implementation": "streaming", "mask": Causal(2)}
    small = multi_head_attention(QUERY, KEY, VALUE, block_size=(2, 3), **how)
    assert_close(small, multi_head_attention(QUERY, KEY, VALUE, **how))
    with pytest.raises(ValueError, match="block_size must be two positive integers"):
        multi_head_attention(QUERY, KEY, VALUE, block_size=(0, 3), **how)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("slots", "told"),
    [
        (lambda: {"normalizer": Softmax(jnp.ones(H - 1))}, "sink must have in front .* 6, .*Got"),
        (lambda: {"normalizer": Softmax(jnp.ones((3, H)))}, "sink must have in front .*Got"),
        (lambda: {"normalizer": Softmax(jnp.ones((1, B, H)))}, "sink must be one real number"),
        (lambda: {"normalizer": Entmax(jnp.array([1.5] * 5 + [0.5]))}, "alpha must be .*Got 0.5"),
        (lambda: {"score": Kernel(bandwidth=-jnp.ones((H, 1)))}, "bandwidth must be positive"),
        (lambda: {"score_mod": Bias(jnp.ones((H, T, T)))}, "bias must have one entry for each"),
        (lambda: {"mask": lambda i, j: 1}, "mask must return booleans"),
        (lambda: {"score": "dot"}, "score must be a function"),
    ],
)
def test_what_fits_no_head_is_refused_by_name(slots, told):
    with pytest.raises(ValueError, match=told):
        multi_head_attention(QUERY, KEY, VALUE, **slots())


@pytest.mark.usefixtures("without_shape_hook")
def test_a_bandwidth_for_each_head_or_each_feature_is_asked_for():
    square = (QUERY[:, :, :D], KEY[:, :, :2], VALUE[:, :, :2])
    with pytest.raises(ValueError, match=r"bandwidth must be \[heads, 1\] or"):
        multi_head_attention(*square, score=Kernel(bandwidth=jnp.ones(D)))
    wide = multi_head_attention(*square, score=Kernel(bandwidth=POSITIVE[:D, None]))
    slots = lambda i, n: {"score": Kernel(bandwidth=POSITIVE[n])}  # noqa: E731
    assert_close(wide, one_by_one(slots, *square))


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    "use",
    [
        lambda: attention(QUERY[0, 0], KEY[0, :, 0], VALUE[0, :, 0], normalizer=Softmax(SINKS)),
        lambda: attention(
            *(each[0, :, 0] for each in (QUERY, KEY, VALUE)),
            normalizer=Softmax(SINKS),
            implementation="streaming",
        ),
        lambda: Softmax(SINKS)(jnp.ones(3)),
    ],
    ids=["dense", "streaming", "called"],
)
def test_one_head_takes_no_slot_of_several(use):
    with pytest.raises(ValueError, match=r"sink must have 0 axes for one head .*Got float64\[6"):
        use()


@pytest.mark.usefixtures("without_shape_hook")
def test_layouts_are_named():
    with pytest.raises(ValueError, match="query heads must be a multiple of the 4 key heads"):
        multi_head_attention(QUERY, normal(B, S, 4, D), normal(B, S, 4, E))
    with pytest.raises(ValueError, match="query must have shape"):
        multi_head_attention(QUERY[0, :, 0], KEY, VALUE)
    with pytest.raises(ValueError, match="query and key must have the same number of features"):
        multi_head_attention(QUERY, normal(B, S, G, 3), VALUE, score=ScaledDot())
