"""thresholds.py: entmax compiles once, and masked rows pass where NaN and infinity are refused."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Entmax, attention, entmax, sparsemax
from attn_jax.thresholds import entmax_rows
from tests.tolerance import assert_close, assert_exactly_zero

SCORES = np.random.default_rng(3).normal(size=(5, 7))
compiled = collections.Counter()


def count(event, seconds, **_):
    compiled["programs"] += event.endswith("/backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(count)


def ways(function):
    """Called as it is, over a batch, and differentiated once and twice."""

    def slope(s):
        return jax.grad(lambda s: jnp.sum(jnp.sin(function(s)), axis=None))(s)

    yield lambda s: function(s)
    yield lambda s: jax.vmap(function)(s[None])
    yield slope
    yield lambda s: jax.jvp(slope, (s,), (s,))[1]


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3, 3.0, "array"])
def test_nothing_compiles_after_the_first_call(alpha):
    """Eagerly, in every order of derivative: other values of the same shape."""
    alpha = jnp.asarray(1.4) if alpha == "array" else alpha

    def run(scores):
        scores = jnp.asarray(scores)
        for of in (
            lambda s: entmax(s, alpha=alpha),
            lambda s: entmax(s, where=s > 0, alpha=alpha),
            lambda s: attention(s, s, s, normalizer=Entmax(alpha)),
        ):
            for way in ways(of):
                way(scores)

    run(SCORES)
    before = compiled["programs"]
    run(SCORES[::-1].copy() + 1.0)
    assert compiled["programs"] == before


def test_a_first_call_compiles():
    """So the count counts."""
    before = compiled["programs"]
    sparsemax(jnp.asarray(SCORES[:3, :2]))
    assert compiled["programs"] > before


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3, 3.0, "traced"])
def test_masked_rows_pass_where_nan_and_infinity_are_refused(alpha):
    scores = jnp.asarray(SCORES)
    allowed = np.random.default_rng(5).random(SCORES.shape) < 0.6
    allowed[2] = False
    cotangent = jnp.asarray(SCORES[::-1].copy())

    def loss(scores, alpha):
        weights = entmax_rows(scores, alpha, jnp.asarray(allowed))
        weights = jnp.where(allowed, weights, 0.0)
        return jnp.sum(weights * cotangent, axis=None), weights

    if alpha == "traced":
        run, arguments = jax.value_and_grad(loss, (0, 1), has_aux=True), (scores, 1.7)
    else:
        run, arguments = jax.value_and_grad(lambda s: loss(s, alpha), has_aux=True), (scores,)
    with jax.debug_nans(True), jax.debug_infs(True):
        (_, weights), gradients = run(*arguments)
    expected = entmax(scores, where=allowed, alpha=1.7 if alpha == "traced" else alpha)
    assert_close(weights, expected)
    slopes = jax.tree.leaves(gradients)[0]
    assert_exactly_zero(jnp.where(allowed, 0.0, slopes))
    assert np.isfinite(slopes).all()
