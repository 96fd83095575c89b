"""primitive.py through streaming attention: batches, axis names, effects, what remat keeps."""

import functools

import jax
import jax.numpy as jnp
import pytest

from attn_jax import Entmax, Softmax, attention, streaming
from tests.members import inputs
from tests.tolerance import assert_close

stream = functools.partial(attention, implementation="streaming", block_size=(2, 3))
dense = functools.partial(attention, implementation="dense")


@pytest.mark.parametrize("normalizer", [Softmax(), Entmax(1.5)], ids=str)
def test_a_batch_of_values_shares_its_weights(normalizer):
    """What queries and keys decide is computed once, not for each example."""
    query, key, value = inputs()
    values = jnp.stack([value] * 64)

    def loss(function, query):
        return jnp.sum(
            jnp.sin(jax.vmap(lambda v: function(query, key, v, normalizer=normalizer))(values)),
            axis=None,
        )

    program = jax.jit(jax.grad(functools.partial(loss, stream)))
    assert_close(program(query), jax.grad(functools.partial(loss, dense))(query))
    before_values = jax.jit(functools.partial(loss, stream)).lower(query).as_text()
    assert "tensor<64x2x3xf64>" not in before_values  # the weights of a block


def test_slots_see_the_axes_around_them():
    query, key, value = inputs()
    queries = jnp.stack([query, 2 * query, 3 * query])

    def score(query, key):
        here = 1.0 + jax.lax.axis_index("b")
        return query @ key.T * here / jax.lax.psum(1.0, "b")

    def over(function):
        one = functools.partial(function, key=key, value=value, score=score)
        return jax.vmap(lambda q: jax.grad(lambda q: one(q).sum())(q), axis_name="b")(queries)

    assert_close(over(stream), over(dense))


def test_effects_of_slots_happen_in_order(capfd):
    def score(query, key):
        jax.debug.print("compared", ordered=True)
        return query @ key.T

    query, key, value = inputs()
    jax.block_until_ready(jax.jit(functools.partial(stream, score=score))(query, key, value))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("compared") >= 1


def test_a_policy_keeps_the_results_of_heads():
    """Also of batched ones: the backward pass does not attend once more."""
    query, key, value = inputs()
    policy = jax.checkpoint_policies.save_only_these_names(streaming.KEPT)

    def loss(query):
        heads = jax.vmap(lambda q: stream(q, key, value))
        return jnp.sum(jax.checkpoint(heads, policy=policy)(query), axis=None)

    program = str(jax.make_jaxpr(jax.grad(loss))(jnp.stack([query, query])))
    assert program.count("differentiable[") == 1
