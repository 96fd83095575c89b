"""Many queries and keys: the same numbers and derivatives, a few queries at a time."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Entmax, Kernel, Sigmoid, Softmax, Sparsemax, kernels, masks, regression
from attn_jax.normalizers import softmax
from attn_jax.regression import chunks, kernel_regression
from tests.tolerance import assert_close

OUTSIDE = get_args(regression.Outside)
RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = RNG.normal(size=(11, 2)), RNG.normal(size=(13, 2)), RNG.normal(size=(13, 3))
ALONG = RNG.normal(size=(11, 3))
ROWS = np.array([7, 2, 12, 2, 0])


@pytest.fixture
def few_at_a_time(monkeypatch):
    """Chunks of two or three queries, the last one not full."""
    monkeypatch.setattr(chunks, "WHOLE", 1)
    monkeypatch.setattr(chunks, "CHUNK", 2 * 13)


def told(function, monkeypatch):
    """The function's result by chunks, and at once."""
    results = []
    for whole in (1, 2**20):
        monkeypatch.setattr(chunks, "WHOLE", whole)
        monkeypatch.setattr(chunks, "CHUNK", 3 * 13)
        results.append(function())
    return results


def odd_pairs(i, j):
    """No key for query 4; key 5 for nobody."""
    return ((i + j) % 3 != 0) & (i != 4) & (j != 5)


CASES = {
    "softmax": {},
    "softmax function": {"normalizer": softmax, "score": Kernel(bandwidth=jnp.array([0.7, 1.9]))},
    "compact": {"score": Kernel(kernels.biweight, 0.6)},
    "masked": {"mask": odd_pairs},
    "masked compact": {"mask": odd_pairs, "score": Kernel(kernels.boxcar, 0.8)},
    "sink": {"normalizer": Softmax(3.0)},
    "sparsemax": {"normalizer": Sparsemax(), "mask": masks.Causal(1)},
    "entmax": {"normalizer": Entmax(jnp.array(1.4)), "score": Kernel(kernels.tricube, 0.9)},
    "sigmoid": {"normalizer": Sigmoid(-0.4)},
    "lines": {"degree": 1},
    "compact lines": {"degree": 1, "score": Kernel(kernels.epanechnikov, 0.9)},
    "masked lines": {"degree": 1, "mask": odd_pairs, "normalizer": Sparsemax()},
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_are_the_smoother_and_its_derivatives(name, monkeypatch):
    score = Kernel(bandwidth=0.7)
    options = {"score": score} | CASES[name]
    kernel, bandwidth = options["score"].kernel, jnp.asarray(options.pop("score").bandwidth)

    def total(query, key, value, bandwidth):
        predicted = kernel_regression(query, key, value, score=Kernel(kernel, bandwidth), **options)
        return jnp.sum(predicted * ALONG), predicted

    def numbers():
        arguments = jnp.asarray(QUERY), jnp.asarray(KEY), jnp.asarray(VALUE), bandwidth
        return jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))(*arguments)

    ((_, got), got_slopes), ((_, expected), slopes) = told(numbers, monkeypatch)
    assert_close(got, expected)
    for one, other in zip(got_slopes, slopes, strict=True):
        assert_close(one, other)
