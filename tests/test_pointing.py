"""Penalties on weights, and weights beside the regions that they should attend to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import metrics
from tests.tolerance import assert_close

RNG = np.random.default_rng(11)
WEIGHTS = RNG.dirichlet(np.ones(5), (3, 4))
TIMES = np.arange(4) < np.array([[4], [2], [0]])
POSITIONS = np.arange(5) < np.array([[5], [3], [4]])


def test_penalties_count_what_is_real_alone():
    once = again = 0.0
    for weights, times, positions in zip(WEIGHTS, TIMES, POSITIONS, strict=True):
        real = weights[times]
        if len(real):
            once += ((1 - real[:, positions].sum(0)) ** 2).sum()
        again += sum(np.minimum(real[t], real[:t].sum(0)).sum() for t in range(len(real)))
    hostile = np.where(TIMES[:, :, None], WEIGHTS, np.nan)

    @jax.jit
    @jax.value_and_grad
    def both(weights):
        penalty = metrics.doubly_stochastic(weights, TIMES, POSITIONS)
        return penalty + 10 * metrics.coverage(weights, TIMES)

    value, slope = both(jnp.asarray(hostile))
    assert_close(value, once + 10 * again)
    assert np.isfinite(slope).all()


def test_pointing_is_what_a_loop_says():
    gold = RNG.random((3, 4, 5)) < 0.4
    gold[0, 0], gold[1, 1] = False, True  # regions of nothing and of everything say nothing
    rows = [
        (w, g) for ws, gs in zip(WEIGHTS, gold, strict=True) for w, g in zip(ws, gs, strict=True)
    ]
    rows = [(w, g) for w, g in rows if g.any() and not g.all()]
    got = metrics.pointing(list(WEIGHTS), list(gold))
    assert got.steps == len(rows)
    assert_close(got.hit, np.mean([g[w.argmax()] for w, g in rows]))
    assert_close(got.mass, np.mean([w[g].sum() for w, g in rows]))
    assert_close(got.chance, np.mean([g.mean() for _, g in rows]))
    assert_close(got.entropy, np.mean([-(w * np.log(w)).sum() for w, _ in rows]))
    assert got.zeros == 0


def test_uniform_weights_point_by_chance_and_no_weights_not_at_all():
    gold = np.array([[True, False, False, False], [False, True, True, False]])
    uniform = metrics.pointing([np.full((2, 4), 0.25)], [gold])
    assert uniform.hit == uniform.mass == uniform.chance == 0.375
    nothing = metrics.pointing([np.zeros((2, 4))], [gold])
    assert nothing.steps == 0
    assert np.isnan(nothing.hit)


@pytest.mark.parametrize(
    ("gold", "told"),
    [
        ([], "gold must be of 1 examples"),
        ([np.ones((2, 3), bool)], "gold must have shape"),
        ([np.ones((2, 4))], "gold must be booleans"),
    ],
)
def test_mistakes_are_answered(gold, told, without_shape_hook):
    with pytest.raises(ValueError, match=told):
        metrics.pointing([np.ones((2, 4))], gold)
