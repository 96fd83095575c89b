"""Rows to decode or evaluate: each once, in batches whose size is bounded, in order again."""

import numpy as np
import pytest

from attn_jax.text import in_order, padded_batches


def test_batches_to_decode_have_sources_only_and_little_padding():
    sources = [[5] * n for n in (9, 1, 1, 8, 2, 0, 1)]
    made = padded_batches(sources, batch_size=3, buckets=2)
    shapes = [padded.batch["source"].shape for padded in made]
    assert shapes == [(3, 1), (3, 9), (3, 9)]
    assert [padded.batch.keys() for padded in made] == [{"source", "source_length"}] * 3
    lengths = in_order(made, [padded.batch["source_length"] for padded in made])
    assert lengths == [9, 1, 1, 8, 2, 0, 1]
    assert padded_batches([]) == []
    assert in_order([], []) == []


def test_a_stream_keeps_to_given_lengths():
    for longest, expected in ((0, 3), (3, 3), (4, 5), (6, 10), (21, 40)):
        (padded,) = padded_batches([[5] * longest], batch_size=2, lengths=(3, 5))
        assert padded.batch["source"].shape == (2, expected)


def test_long_rows_come_in_small_batches_of_few_shapes():
    """One long line must not decide what a batch of short ones costs."""
    lengths = [*np.random.default_rng(0).integers(0, 6, 23), 40, 7, 11, 80, 9]
    sources = [[5 + i] * n for i, n in enumerate(lengths)]
    made = padded_batches(sources, batch_size=8, batch_positions=32, lengths=(4, 8))
    shapes = [padded.batch["source"].shape for padded in made]
    assert {*shapes} == {(8, 4), (4, 8), (2, 16), (1, 64), (1, 128)}
    assert all(shape[0] == len(padded.rows) for shape, padded in zip(shapes, made, strict=True))
    found = [
        [row[:n].tolist() for row, n in zip(*padded.batch.values(), strict=True)] for padded in made
    ]
    assert in_order(made, found) == sources
    pairs = padded_batches([[5], [6] * 3], [[7] * 30, [8]], batch_size=8, batch_positions=32)
    assert {len(padded.rows) for padded in pairs} <= {1, 8}
    assert max(padded.batch["target"].size for padded in pairs) <= 32


def test_mistakes_in_batches_to_decode_are_answered(without_shape_hook):
    for lengths in ((), (3, 3), (0, 2)):
        with pytest.raises(ValueError, match="lengths must be positive and rise"):
            padded_batches([[5]], lengths=lengths)
    with pytest.raises(ValueError, match="lengths must be None where there are targets"):
        padded_batches([[5]], [[6]], lengths=(3,))
    with pytest.raises(ValueError, match="targets must be as many as the 1 sources"):
        padded_batches([[5]], [])
    with pytest.raises(ValueError, match=r"batch_size must be at least 1\. Got 0"):
        padded_batches([[5]], batch_size=0)
    with pytest.raises(ValueError, match=r"batch_positions must be at least 1\. Got 0"):
        padded_batches([[5]], batch_positions=0)
    with pytest.raises(ValueError, match="buckets must be at least 1"):
        padded_batches([[5]], buckets=0)
