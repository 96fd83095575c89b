"""Batches of text: each pair once, in few shapes that pad least, from any position again."""

import itertools
import json

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import text, training
from attn_jax.text import END, PAD, PairBatches, in_order, padded_batches
from attn_jax.text.shapes import choose_shapes, first_that_holds

PAIRS, BATCH, BUCKETS = 101, 7, 3


def pairs(number=PAIRS, seed=1, longest=13):
    """Targets that are all different and sources of about their length, some of them empty."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.25, number), longest)
    sources = [[10 + i] * (length - 1) for i, length in enumerate(lengths)]
    more = rng.integers(0, 3, number)
    targets = [
        [10 + i] * (length + n) for i, (length, n) in enumerate(zip(lengths, more, strict=True))
    ]
    return sources, targets


def batches(**options):
    sources, targets = pairs()
    return PairBatches(
        sources, targets, **({"batch_size": BATCH, "buckets": BUCKETS, "seed": 3} | options)
    )


def rows(batch):
    """The pairs of a batch as lists, after a look at all that is padding."""
    found = []
    for side in ("source", "target"):
        ids, lengths = batch[side], batch[f"{side}_length"]
        assert ids.dtype == lengths.dtype == np.int32
        assert ids.shape[:1] == lengths.shape
        assert np.all(ids[np.arange(ids.shape[1]) >= lengths[:, None]] == PAD)
        found.append([row[:n].tolist() for row, n in zip(ids, lengths, strict=True)])
    sources, targets = found
    assert all(target[-1] == END and END not in target[:-1] for target in targets)
    return [(tuple(s), tuple(t[:-1])) for s, t in zip(sources, targets, strict=True)]


def shape(batch):
    return (batch["source"].shape[1], *batch["target"].shape[::-1])


def take(source, number):
    return [next(source) for _ in range(number)]


def assert_same_batches(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


# Shapes


def padded_area(lengths, shapes):
    """All positions when each row takes the first shape that holds it, by loops."""
    return sum(
        sum(next(s for s in shapes if all(a <= b for a, b in zip(row, s, strict=True))))
        for row in lengths
    )


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("least", [1, 5])
def test_shapes_pad_least_of_all_nested_ones(sides, least):
    rng = np.random.default_rng(sides)
    lengths = rng.integers(1, 6, (23, sides)) + rng.integers(0, 2, (23, 1)) * 3
    sides_of = [np.unique(column).tolist() for column in lengths.T]
    largest = tuple(lengths.max(axis=0).tolist())
    best = []
    for count in range(3):
        for chosen in itertools.combinations(sorted(itertools.product(*sides_of)), count):
            shapes = [*chosen, largest]
            nested = all(np.all(np.less_equal(a, b)) for a, b in itertools.pairwise(shapes))
            held = np.bincount(first_that_holds(lengths, np.array(shapes)), minlength=count + 1)
            if nested and held.min() >= least:
                best.append(padded_area(lengths, shapes))
    found = choose_shapes(lengths, 3, lambda shapes: least)
    assert padded_area(lengths, found.tolist()) == min(best)
    assert np.bincount(first_that_holds(lengths, found)).min() >= least


def test_shapes_of_many_lengths_come_close_to_the_least_padding():
    lengths = np.random.default_rng(5).lognormal(3, 1, 2003).astype(int) + 1
    values, counts = np.unique(lengths, return_counts=True)
    assert len(values) > 120
    below = np.concatenate([[0], counts.cumsum()])
    least = below[1:] * values  # one shape for the first i + 1 lengths, then one more each time
    for most in range(1, 8):
        shapes = choose_shapes(lengths[:, None], most, lambda shapes: 1)
        fitting = first_that_holds(lengths[:, None], shapes)
        assert (lengths <= shapes[fitting, 0]).all()
        assert least[-1] <= shapes[fitting].sum() <= 1.02 * least[-1]
        more = [least[j] + (below[1:] - below[j + 1]) * values for j in range(len(values))]
        least = np.min(
            [np.where(np.arange(len(values)) > j, m, least) for j, m in enumerate(more)], 0
        )


# Each pair once, in few shapes


def test_every_batch_has_a_shape_of_few_and_every_shuffle_every_pair_once():
    source = batches()
    assert len(source.shapes) == BUCKETS
    taken = take(source, 60)
    assert {shape(batch) for batch in taken} == set(source.shapes)
    assert {len(batch["source"]) for batch in taken} == {BATCH}
    streams = {s: [r for b in taken if shape(b) == s for r in rows(b)] for s in source.shapes}
    seen = set()
    for stream in streams.values():
        size = len(set(stream))
        cycles = [stream[i : i + size] for i in range(0, len(stream) - size + 1, size)]
        assert len(cycles) > 2
        assert all(len(set(cycle)) == size for cycle in cycles)
        assert cycles[0] != cycles[1]
        seen |= set(stream)
    expected = {(tuple(s), tuple(t)) for s, t in zip(*pairs(), strict=True)}
    assert seen == expected
    assert min(len(s) for s, _ in expected) == 0  # an empty source is an example
    assert source.batches_per_epoch == pytest.approx(PAIRS / BATCH)


def test_what_is_padding_is_counted():
    source = batches()
    sides = [list(map(len, side)) for side in pairs()]
    real = sum(sides[0]) + sum(sides[1]) + PAIRS
    lengths = np.stack([sides[0], np.array(sides[1]) + 1], axis=-1)
    padded = padded_area(lengths, [s[:2] for s in source.shapes])
    assert source.real_fraction == pytest.approx(real / padded)
    fractions = [batches(buckets=n).real_fraction for n in (1, 2, 3, 4)]
    assert fractions == sorted(fractions)
    assert fractions[0] < fractions[-1] - 0.2


def test_batches_by_tokens_hold_more_short_pairs():
    source = batches(batch_size=None, batch_tokens=131)
    sizes = [size for _, _, size in source.shapes]
    assert sizes == [n // 8 * 8 if (n := 131 // t) >= 8 else n for _, t, _ in source.shapes]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert {shape(batch) for batch in take(source, 40)} == set(source.shapes)


def test_without_shuffling_pairs_keep_their_order():
    source = batches(buckets=1, shuffle=False)
    taken = [row for batch in take(source, 29) for row in rows(batch)]
    expected = [(tuple(s), tuple(t)) for s, t in zip(*pairs(), strict=True)]
    assert taken == (expected * 3)[: 29 * BATCH]


def test_shapes_are_mixed_within_an_epoch():
    order = [shape(batch) for batch in take(batches(), PAIRS // BATCH)]
    assert order != sorted(order)
    assert order != sorted(order, reverse=True)
    even = PairBatches([[5]] * 8 + [[5] * 9] * 8, [[6]] * 16, batch_size=2, buckets=2)
    epochs = [[shape(batch) for batch in take(even, 8)] for _ in range(5)]
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert {tuple(sorted(epoch)) for epoch in epochs} == {((1, 2, 2),) * 4 + ((9, 2, 2),) * 4}
    unshuffled = [shape(batch) for batch in take(batches(shuffle=False), PAIRS // BATCH - 2)]
    assert unshuffled == sorted(unshuffled)


def test_all_sources_empty_is_a_shape_too():
    source = PairBatches([[], [], []], [[5], [6], [7]], batch_size=2)
    assert source.shapes == [(1, 2, 2)]
    assert next(source)["source_length"].tolist() == [0, 0]


# What does not fit


def test_pairs_without_a_target_are_left_out_and_counted():
    source = PairBatches([[5], [], [7], [8]], [[], [6], [], [9]], batch_size=2, shuffle=False)
    assert (source.size, source.without_target, source.too_long) == (2, 2, 0)
    assert rows(next(source)) == [((), (6,)), ((8,), (9,))]


@pytest.mark.parametrize(
    ("too_long", "kept"),
    [
        ("drop", [((5, 6), (7,)), ((8,), (9, 10))]),
        ("cut", [((5, 6), (7,)), ((5, 6), (4,)), ((8,), (9, 10)), ((), (7, 8))]),
    ],
)
def test_long_pairs_are_left_out_or_cut_and_counted(too_long, kept):
    sources = [[5, 6], [5, 6, 7], [8], []]
    targets = [[7], [4], [9, 10], [7, 8, 9]]
    options = {"max_length": 2, "too_long": too_long, "shuffle": False, "buckets": 1}
    source = PairBatches(sources, targets, batch_size=len(kept), **options)
    assert (source.too_long, source.without_target) == (2, 0)
    assert rows(next(source)) == kept
    assert source.shapes == [(2, 3, len(kept))]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"targets": [[1]]}, "targets must be as many as the 2 sources. Got 1"),
        ({"batch_size": None}, "batch_size must be given, or batch_tokens in its place"),
        ({"batch_tokens": 9}, "in its place. Got batch_size=1, batch_tokens=9"),
        ({"batch_size": 0}, "batch_size must give 1 to 2 rows, .* Got 0: 0 rows"),
        ({"batch_size": 3}, "batch_size must give 1 to 2 rows, the number of pairs.* Got 3: 3"),
        ({"batch_size": None, "batch_tokens": 2}, "batch_tokens must give 1 to .* Got 2: 0 rows"),
        ({"batch_size": None, "batch_tokens": 24}, "batch_tokens must give .* Got 24: 8 rows"),
        ({"buckets": 0}, "buckets must be at least 1. Got 0"),
        ({"max_length": 0}, "max_length must be at least 1. Got 0"),
        ({"too_long": "omit"}, "too_long must be 'drop' or 'cut'. Got 'omit'"),
        ({"sources": [], "targets": []}, "targets must leave at least one pair. Got 0: 0 without"),
        ({"targets": [[], []]}, "at least one pair. Got 2: 2 without a target, 0 too long"),
    ],
)
def test_mistakes_are_answered(options, told, without_shape_hook):
    defaults = {"sources": [[5], [6]], "targets": [[7], [8, 9]], "batch_size": 1}
    with pytest.raises(ValueError, match=told):
        PairBatches(**(defaults | options))


# Positions


def test_the_position_is_exact_wherever_it_is_taken():
    expected = take(batches(), 70)
    for position in (0, 1, 13, 14, 15, 37, 69):
        ahead = batches()
        take(ahead, position)
        state = json.loads(json.dumps(ahead.get_state()))
        assert state["position"] == position
        fresh = batches()
        take(fresh, 5)
        fresh.set_state(state)
        assert_same_batches(take(fresh, 70 - position), expected[position:])
    backwards = batches()
    for position in reversed(range(70)):
        backwards.set_state(backwards.get_state() | {"position": position})
        assert_same_batches([next(backwards)], [expected[position]])


def test_far_positions_are_reached_at_once():
    source = batches(batch_size=None, batch_tokens=131)
    source.set_state(source.get_state() | {"position": 10**9})
    assert {shape(batch) for batch in take(source, 30)} == set(source.shapes)


def test_iterating_begins_anew_and_disturbs_nobody():
    source = batches()
    take(source, 4)
    assert_same_batches(itertools.islice(iter(source), 6), take(batches(), 6))
    assert source.get_state()["position"] == 4


def test_another_seed_is_another_order():
    first, other = [[rows(b) for b in take(batches(seed=s), 14)] for s in (3, 4)]
    assert first != other


@pytest.mark.parametrize("other", ["seed", "batch_size", "buckets", "shuffle", "data"])
def test_positions_in_other_batches_are_refused(other):
    if other == "data":
        sources, targets = pairs()
        targets[-1][0] += 1
        source = PairBatches(sources, targets, batch_size=BATCH, buckets=BUCKETS, seed=3)
    else:
        value = {"seed": 4, "batch_size": 6, "buckets": 2, "shuffle": False}[other]
        source = batches(**{other: value})
    with pytest.raises(ValueError, match="state must be a position in batches of"):
        source.set_state(batches().get_state())


def test_the_protocol_is_that_of_grain():
    protocol = {"__iter__", "__next__", "get_state", "set_state"}
    assert protocol <= {*dir(grain.DatasetIterator)}
    assert protocol <= {*dir(PairBatches)}


class Bag(nnx.Module):
    """The mean of embeddings: the smallest model that sees every source and every target."""

    def __init__(self):
        self.vectors = nnx.Embed(200, 3, rngs=nnx.Rngs(0))

    def __call__(self, ids, lengths):
        real = jnp.arange(ids.shape[1])[None, :] < lengths[:, None]
        return jnp.sum(self.vectors(ids) * real[:, :, None], axis=1)


def loss(model, batch, rng):
    sides = [model(batch[side], batch[f"{side}_length"]) for side in ("source", "target")]
    return jnp.mean((sides[0] - sides[1]) ** 2)


def test_training_resumes_exactly_in_the_middle_of_an_epoch(tmp_path):
    def train(directory, steps):
        options = {"steps": steps, "log_every": 1, "progress": False, "directory": directory}
        return training.fit(Bag(), loss, batches(buckets=2), **options)

    train(tmp_path / "cut", 9)
    resumed, whole = train(tmp_path / "cut", 19), train(tmp_path / "whole", 19)
    assert [r["loss"] for r in resumed.history] == [r["loss"] for r in whole.history]
    for one, other in zip(
        *(jax.tree.leaves(nnx.state(run.model)) for run in (resumed, whole)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


# Each row once, in order again


@pytest.mark.parametrize("number", [1, 6, 7, 50])
def test_results_come_back_in_the_order_of_the_input(number):
    sources, targets = pairs(number)
    targets[0] = []
    made = padded_batches(sources, targets, batch_size=BATCH, buckets=BUCKETS)
    assert len(made) == -(-number // BATCH)
    assert len({shape(padded.batch) for padded in made}) <= BUCKETS
    assert {len(padded.rows) for padded in made} == {BATCH}
    results = []
    for padded in made:
        real = padded.rows >= 0
        for side in ("source", "target"):
            assert padded.batch[f"{side}_length"][~real].tolist() == [0] * (~real).sum()
        results.append([*rows({k: v[real] for k, v in padded.batch.items()}), *[None] * BATCH])
        results[-1] = results[-1][:BATCH]
    expected = [(tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True)]
    assert in_order(made, results) == expected


# From files to batches and back


def test_files_become_batches_and_lines_again(tmp_path):
    lines = {
        "de": ["Ein Hund, der läuft.", "", "Zwei!", "fehlt"],
        "en": ["A dog.", "-", "Two!", ""],
    }
    for language, side in lines.items():
        (tmp_path / language).write_bytes(
            "".join(f"{line}\r\n" for line in side).encode("utf-8-sig")
        )
    sides = text.read_parallel(tmp_path / "de", tmp_path / "en")
    vocabularies = [text.Vocabulary.train(side, kind="word") for side in sides]
    encoded = [v.encode_batch(side) for v, side in zip(vocabularies, sides, strict=True)]
    source = PairBatches(*encoded, batch_size=3, buckets=1, shuffle=False)
    batch = next(source)
    assert source.without_target == 1
    assert [vocabularies[0].decode(row) for row in batch["source"]] == lines["de"][:3]
    assert [vocabularies[1].decode(row) for row in batch["target"]] == lines["en"][:3]
