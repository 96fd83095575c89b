import functools

import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import Causal, Entmax, Kernel, RelativeBias, Softmax, chain, kernels, masks, slots
from attn_jax.nn.blocks import Block
from attn_jax.regression import effective_neighbours, others
from attn_jax.slots import is_pure
from tests.members import ROWS


def of_a_user(i, j):
    return i != j


def closure_of_ours():
    """What a module of the library could make: its name says the library, its cell a caller's."""
    held = jnp.ones(3)

    def local(i, j):
        return held[i] < held[j]

    local.__module__ = masks.__name__
    return local


PURE = {
    **{str(member): member.slot() for _, member in ROWS},
    "kernel": kernels.tricube,
    "function of a module": effective_neighbours,
    "method": Block.alignment,
    "plain normalizer": attn_jax.entmax15,
    "rows": masks.Rows(others & Causal(), np.array([1, 0])),
    "shifted": masks.Shifted(Causal(), jnp.array(3)),
    "containers": {"score": [Kernel(), (1.0, None, "nearest")]},
}
IMPURE = {
    "function": of_a_user,
    "lambda": lambda i, j: i < j,
    "closure of ours": closure_of_ours(),
    "lifted": attn_jax.pairwise(jnp.dot),
    "in a kernel": Kernel(lambda u: -u),
    "in a mask": Causal() & of_a_user,
    "in rows": masks.Rows(of_a_user, np.array([1, 0])),
    "in a chain": chain(RelativeBias(jnp.zeros(8)), lambda scores, i, j: scores),
    "partial": functools.partial(kernels.gaussian),
    "another module's": jnp.tanh,
}


@pytest.mark.parametrize("name", PURE)
def test_pure(name):
    assert is_pure(PURE[name])


@pytest.mark.parametrize("name", IMPURE)
def test_impure(name):
    """It may hold, or hide, what differs between two calls."""
    assert not is_pure(IMPURE[name])


def test_compiled_knows_the_numbers_it_is_told_to():
    """An array is traced whatever holds it; a number of a type that stays is another program."""
    scores, traced = jnp.array([[0.3, 0.1, 2.0]]), []

    def call(scores, normalizer):
        traced.append(normalizer)
        return normalizer(scores)

    for normalizer in (Entmax(1.5), Entmax(jnp.array(1.5)), Softmax(0.5)):
        run = slots.compiled(call, normalizer, as_they_are=(Entmax,))
        assert (run(scores) == run(scores)).all()
    assert len(traced) == 3  # each of them once
    assert traced[0] == Entmax(1.5)
    assert type(traced[1].alpha) is type(traced[2].sink) is not float
