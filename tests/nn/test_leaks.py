"""What a position sees: dense and streaming, all at once and cached.

Every mask without positions, and every kind of position under the causal mask.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Causal, Dense, Prefix, Segments, Window
from attn_jax.nn import Embedding, MultiHeadAttention
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close

T, D, V = 7, 8, 11
RNG = np.random.default_rng(5)
TOKENS = RNG.integers(0, V, T)
IDS = np.array([0, 0, 0, 1, 1, 2, 2])
OTHERS = ~np.eye(T, dtype=bool)  # a position's own token changes what it asks
LENGTH = 5
MASKS = {
    "causal": Causal(),
    "window": Causal() & Window(2, 0),
    "prefix": Causal() | Prefix(3),
    "segments": Causal() & Segments(IDS, IDS),
    "dense": Causal() & Dense(RNG.random((T, T)) < 0.6),
    "padding": None,
}
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi")
CACHED = MASKS.keys() - {"prefix", "padding"}  # the others look ahead


@partial(jax.jit, static_argnums=0)
def attended(graphdef, state, rows, lengths):
    return nnx.merge(graphdef, state)(rows, lengths=lengths)


@partial(jax.jit, static_argnums=0)
def extended(graphdef, state, row, cache):
    return nnx.merge(graphdef, state).extend(row, cache)


def gentle(module):
    """Random parameters, small ones: large scores leave some weights no effect."""
    state = nnx.state(randomized(module), nnx.Param)
    nnx.update(module, jax.tree.map(lambda each: each * 0.4, state))
    return module


def each_changed():
    """The tokens, and each of them changed in turn [1 + T, T]."""
    changed = np.tile(TOKENS, (T + 1, 1))
    changed[np.arange(T) + 1, np.arange(T)] = (TOKENS + 1) % V
    return changed


EACH = [*((name, "none") for name in MASKS), *(("causal", each) for each in POSITIONS[1:])]


@pytest.mark.parametrize("implementation", ["dense", "streaming"])
@pytest.mark.parametrize(("name", "positions"), EACH)
def test_a_position_sees_what_its_mask_allows(name, positions, implementation):
    """And the cache, token by token, gives what all at once gives."""
    mask = MASKS[name]
    lengths = None if mask is not None else np.full(T + 1, LENGTH)
    allowed = np.arange(T)[None] < LENGTH if mask is None else mask.dense(T, T)
    allowed = np.broadcast_to(allowed, (T, T))
    embedding = Embedding(V, D, positions=positions, longest=T, rngs=nnx.Rngs(0))
    own = positions if positions in ("rotary", "alibi") else None
    how = {"mask": mask, "positions": own, "implementation": implementation}
    layer = MultiHeadAttention(D, 2, **how, rngs=nnx.Rngs(1))
    graphdef, state = nnx.split(gentle(layer))
    rows = gentle(embedding)(each_changed())
    outputs = attended(graphdef, state, rows, lengths)
    moved = np.abs(outputs[1:] - outputs[:1]).max(axis=-1).T > 1e-9  # [position, changed]
    np.testing.assert_array_equal(moved[OTHERS], allowed[OTHERS])
    if name in CACHED:
        cache, got = layer.cache(1, T + 2), []
        for t in range(T):
            row, cache = extended(graphdef, state, rows[:1, t : t + 1], cache)
            got.append(row)
        assert_close(jnp.concatenate(got, axis=1), outputs[:1])
