"""Padded search: every source's hypotheses, in order, in few shapes, without padding."""

import jax.numpy as jnp
import numpy as np

from attn_jax.decoding import Decoded
from attn_jax.text import padded_search

SOURCES = [[5], [6, 7, 8, 9, 10, 11, 12], [], [13, 14, 15], [16] * 8]


def reversed_and_copied(shapes):
    """A search that finds a source backwards, finished, then the source cut to two, unfinished."""

    def search(source, length):
        shapes.append(source.shape)
        b, s = source.shape
        count = jnp.stack([length + 1, jnp.minimum(length, 2)], axis=1)
        backwards = np.zeros((b, s + 1), int)
        for row, n in enumerate(length):
            backwards[row, :n] = source[row, :n][::-1]
        tokens = np.stack([backwards, np.pad(source, ((0, 0), (0, 1)))], axis=1)
        weights = jnp.broadcast_to(1.0 + source[:, None, None, :], (b, 2, s + 1, s))
        score = jnp.asarray(np.stack([length, -length], axis=1), float)
        return Decoded(jnp.asarray(tokens), count, score, count > length[:, None], weights, score)

    return search


def test_hypotheses_come_in_order_and_without_padding():
    shapes = []
    options = {"batch_size": 4, "batch_positions": 16, "lengths": (4, 8)}
    found = padded_search(reversed_and_copied(shapes), SOURCES, **options)
    assert shapes == [(4, 4), (2, 8)]
    for source, (best, second) in zip(SOURCES, found, strict=True):
        assert best.ids == source[::-1]
        assert best.finished
        assert best.score == len(source)
        assert np.array_equal(best.weights, np.tile(1.0 + np.array(source), (len(source) + 1, 1)))
        assert second.ids == source[: min(len(source), 2) - second.finished]
        assert second.weights.shape == (min(len(source), 2), len(source))
        assert best.weights.base is None  # which would keep the batch


def test_a_few_sources_are_a_small_batch_and_greedy_finds_one_each():
    shapes = []
    both = reversed_and_copied(shapes)

    def first(source, length):
        found = both(source, length)._replace(weights=None)
        return Decoded(*(None if part is None else part[:, 0] for part in found))

    found = padded_search(first, SOURCES[:3])
    assert [[each.ids for each in one] for one in found] == [[each[::-1]] for each in SOURCES[:3]]
    assert found[0][0].weights is None
    assert shapes == [(4, 8)]
    assert padded_search(first, []) == []
