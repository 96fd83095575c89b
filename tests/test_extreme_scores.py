"""Finite scores of any size: weights that sum to one, in values and derivatives, as XLA optimizes.

The suite compiles without LLVM's optimizer. Here it is on: what is elementwise is then computed
again in each fusion, with other roundings, and a score of 1e10 differs by 1e3 from itself.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import (
    Alibi,
    Bias,
    Dot,
    Entmax,
    Kernel,
    ScaledDot,
    SoftCap,
    Softmax,
    Sparsemax,
    attention,
    chain,
)
from tests.compiler import HAS_OLD_EMITTERS

NORMALIZERS = [Softmax(), Softmax(sink=-1.0), Sparsemax(), Entmax(1.5), Entmax(1.3), Entmax(3.0)]
STREAMED = {"implementation": "streaming", "block_size": (2, 3)}
OPTIMIZED = {"xla_backend_optimization_level": 3}
if HAS_OLD_EMITTERS:  # the newer ones are what users run
    OPTIMIZED["xla_cpu_use_fusion_emitters"] = True
# (score, score_mod of an array [q, k] and the scores' size, features)
CASES = {
    "one feature": (ScaledDot(0.3), lambda array, size: None, 1),
    "one feature and a bias": (Dot(), lambda array, size: Bias(array * size), 1),
    "one feature and distances": (Dot(), lambda array, size: Alibi(size / 3), 1),
    "kernel": (Kernel(bandwidth=0.7), lambda array, size: None, 3),
    "a function": (lambda q, k: -jnp.abs(q - k.T), lambda array, size: None, 1),
    "products": (
        Dot(),
        lambda array, size: chain(Bias(array * size), SoftCap(3.3 * size)),
        2,
    ),
}


# each case under a softmax, with a sink or without, and each normalizer under some case
EVERYWHERE = [(case, Softmax()) for case in CASES if case != "one feature and distances"]
EVERYWHERE += [
    ("one feature and distances", Softmax(sink=-1.0)),
    ("one feature and a bias", Entmax(1.5)),
    ("one feature and a bias", Entmax(3.0)),
    ("kernel", Entmax(1.3)),
    ("products", Sparsemax()),
]


def arrays(size, q, k, d, seed):
    rng = np.random.default_rng(seed)
    query, key = (rng.normal(size=(n, d)) * np.sqrt(size) for n in (q, k))
    drawn = query, key, rng.normal(size=(q, k)), size, rng.normal(size=(q, 2))
    return [np.asarray(each, "float32") for each in drawn]


@pytest.mark.parametrize(("case", "normalizer"), EVERYWHERE, ids=str)
def test_weights_sum_to_one_at_any_size(case, normalizer):
    """The weights (the output for values 1 of each key) and those that the derivative uses."""
    score, mod, d = CASES[case]

    @functools.partial(jax.jit, compiler_options=OPTIMIZED)
    def results(query, key, array, size, cotangent):
        def attend(query, key, value):
            slots = {"score": score, "score_mod": mod(array, size), "normalizer": normalizer}
            return attention(query, key, value, **slots, **STREAMED)

        k = len(key)  # values 1 of each key, whose outputs no cotangent meets, and two of 0
        outputs, pull = jax.vjp(attend, query, key, jnp.eye(k, k + 2, dtype=query.dtype))
        by_query, by_key, by_value = pull(jnp.pad(cotangent, ((0, 0), (k, 0))))
        return outputs[:, :k], by_query, by_key, by_value[:, k:]

    for seed, size in enumerate((1e6, 1e10, 1e12, 1e26)):
        query, key, array, size, cotangent = arrays(size, 5, 7, d, seed)
        found = results(query, key, array, size, cotangent)
        weights, *others, of_values = jax.device_get(found)
        if normalizer != Softmax(sink=-1.0):
            np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=0, atol=1e-6)
        np.testing.assert_allclose(of_values, weights.T @ cotangent, rtol=0, atol=1e-4)
        assert all(np.all(np.isfinite(each)) for each in others)
        if size > 1e7 and case == "one feature":
            best = np.argmax(np.asarray(query, "float64") @ np.asarray(key.T, "float64"), axis=1)
            np.testing.assert_array_equal(weights, np.eye(7)[best])


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_one_key_too_many(normalizer):
    """The right value and a gradient of exactly zero where one key has all of the weight."""
    rng = np.random.default_rng(9)
    query = np.float32(rng.normal(size=(1, 1)) * 1e13)
    key = np.float32(rng.normal(size=(3, 1)) * 1e15)
    value = np.array([[1.0], [2.0], [3.0]], "float32")

    def attend(*arrays):
        slots = {"score": ScaledDot(0.3), "normalizer": normalizer}
        return attention(*arrays, **slots, implementation="streaming")[0, 0]

    both = jax.jit(jax.value_and_grad(attend, (0, 1, 2)), compiler_options=OPTIMIZED)
    output, gradients = both(query, key, value)
    assert output == 2.0
    for got, expected in zip(gradients, ([[0]], [[0]] * 3, [[0], [1], [0]]), strict=True):
        np.testing.assert_array_equal(got, expected)
