"""Two walks over a grid of blocks mean the same: a few large ones one by one, many in a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax import Causal, Entmax, Padding, Sigmoid, Softmax, Window, attention
from attn_jax.heads import choose_for_heads
from attn_jax.streaming.grid import default_size, make_grid
from tests.tolerance import assert_trees_close

Q, K, SIZE = 130, 190, (64, 80)  # 3 x 3 blocks, of which the last ones reach beyond
CASES = {  # normalizer, mask of the lengths that are known at run time only
    "causal": (Softmax(sink=0.3), lambda lengths: Causal()),
    "window": (Entmax(1.5), lambda lengths: Window(30, 9)),
    "lengths": (Softmax(), lambda lengths: Padding(lengths)),
    "all": (Sigmoid(), lambda lengths: None),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_one_by_one_are_dense(name):
    normalizer, mask_of = CASES[name]
    rng = np.random.default_rng(3)
    arrays = [jnp.asarray(rng.normal(size=shape)) for shape in ((Q, 3), (K, 3), (K, 2))]
    moved = [jnp.asarray(rng.normal(size=each.shape)) for each in arrays]
    along = jnp.asarray(rng.normal(size=(Q, 2)))

    def outcome(implementation, size):
        def attend(lengths, *arrays):
            slots = {"normalizer": normalizer, "mask": mask_of(lengths)}
            how = {"implementation": implementation, "block_size": size}
            return attention(*arrays, **slots, **how)

        @jax.jit
        def run(lengths):
            def function(*arrays):
                return attend(lengths, *arrays)

            output, pull = jax.vjp(function, *arrays)
            return output, pull(along), jax.jvp(function, tuple(arrays), tuple(moved))[1]

        return run(jnp.array(77))

    assert make_grid(Q, K, SIZE, mask_of(77))[0].unrolls
    assert_trees_close(outcome("streaming", SIZE), outcome("dense", None))


def test_small_blocks_and_many_blocks_are_a_loop():
    assert not make_grid(Q, K, (32, 64), None)[0].unrolls  # small
    assert not make_grid(2048, 2048, (512, 256), None)[0].unrolls  # many


def test_default_blocks():
    """Half of the pairs' sides where that leaves some out, never less than 128."""
    of = {"online": True, "numbers_per_pair": 1}
    assert default_size(512, 512, None, **of) == (512, 512)
    assert default_size(512, 512, Causal(), **of) == (256, 256)
    assert default_size(200, 200, Causal(), **of) == (100, 100)
    assert default_size(4096, 4096, Causal(), **of) == (1024, 512)
    assert default_size(512, 512, Padding(jnp.array(3)), **of) == (512, 512)


def test_heads_stream_sooner_than_one_head(monkeypatch):
    softmax = Softmax()

    def chosen(n, normalizer=softmax, implementation="auto", heads=4):
        queries = jnp.zeros((2, n, heads, 3))
        return choose_for_heads(implementation, normalizer, queries, queries)

    assert chosen(255) == ("dense", None, 0)
    assert chosen(256) == ("streaming", None, 2)
    assert chosen(513) == ("streaming", None, 1)
    assert chosen(513, Entmax(1.5)) == ("dense", None, 0)
    assert chosen(1024, Entmax(1.5)) == ("streaming", None, 1)
    assert chosen(1024, implementation="cudnn", heads=999) == ("cudnn", None, 0)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert chosen(513) == ("dense", None, 0)
    assert chosen(1024, heads=4) == ("streaming", (1024, 512), 0)
    assert chosen(1024, heads=999).block_size == (256, 128)
