"""Sources that are arrays, frames or lines of pictures: batched, padded and searched as ids are."""

import numpy as np
import pytest

from attn_jax import text
from attn_jax.decoding import Decoded
from attn_jax.text.padding import padded_batches

RNG = np.random.default_rng(5)
FRAMES = [RNG.normal(size=(n, 3)).astype(np.float32) for n in (5, 9, 0, 4, 8, 8, 2)]
PICTURES = [RNG.integers(0, 256, (6, 4, 3)).astype(np.uint8) for _ in FRAMES]
TARGETS = [[4, 5], [6], [7, 8, 9], [4, 4], [5], [6], [8]]


@pytest.mark.parametrize("sources", [FRAMES, PICTURES], ids=["frames", "pictures"])
def test_every_row_is_what_was_given_and_zero_beyond(sources):
    batches = text.PairBatches(sources, TARGETS, batch_size=2, buckets=2)
    seen = []
    for _ in range(14):
        batch = next(batches)
        assert batch["source"].dtype == sources[0].dtype
        for row, length, target in zip(
            batch["source"], batch["source_length"], batch["target"], strict=True
        ):
            number = next(i for i, each in enumerate(sources) if np.array_equal(row[:length], each))
            assert [*TARGETS[number], text.END] == target[: len(TARGETS[number]) + 1].tolist()
            assert not row[length:].any()
            seen.append(number)
    assert set(seen) == set(range(7))


def test_a_position_belongs_to_these_arrays_alone():
    def batches(sources):
        return text.PairBatches(sources, TARGETS, batch_size=2, buckets=2)

    first = batches(FRAMES)
    next(first)
    again = batches(FRAMES)
    again.set_state(first.get_state())
    np.testing.assert_array_equal(next(again)["source"], next(first)["source"])
    changed = [each.copy() for each in FRAMES]
    changed[4][7, 2] += 1e-6
    with pytest.raises(ValueError, match="state must be a position in batches of"):
        batches(changed).set_state(first.get_state())


def test_each_array_once_in_order_and_weights_over_its_memory():
    made = padded_batches(FRAMES, batch_size=2)
    back = text.in_order(made, [each.batch["source"] for each in made])
    for given, padded in zip(FRAMES, back, strict=True):
        np.testing.assert_array_equal(padded[: len(given)], given)

    def search(source, length):  # the memory has half as many positions
        b, s = source.shape[:2]
        lengths = np.full(b, 2)
        weights = np.broadcast_to(np.arange(-(-s // 2)) + 1.0, (b, 2, -(-s // 2)))
        return Decoded(np.full((b, 2), 7), lengths, lengths * 1.0, lengths > 5, weights, lengths)

    found = text.padded_search(search, FRAMES, memory_length=lambda length: -(-length // 2))
    assert [each.weights.shape for (each,) in found] == [(2, -(-len(each) // 2)) for each in FRAMES]


@pytest.mark.parametrize("other", [np.zeros((2, 4), np.float32), np.zeros((2, 3))])
def test_arrays_of_several_kinds_are_refused(other, without_shape_hook):
    mixed = [*FRAMES[:-1], other]
    rule = "sources must have one shape of features and one dtype"
    with pytest.raises(ValueError, match=rule):
        text.PairBatches(mixed, TARGETS, batch_size=2)
    with pytest.raises(ValueError, match=rule):
        padded_batches(mixed)
