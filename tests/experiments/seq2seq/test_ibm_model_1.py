"""IBM model 1 against expectation maximization written out with dictionaries."""

import math
from collections import defaultdict

import numpy as np
import pytest

from experiments.seq2seq import ibm_model_1

PAIRS = [([0, 1, 1], [0, 2]), ([3, 0], [1, 0, 0]), ([1, 3], [2, 1]), ([], [2]), ([2], [])]


def fit_slowly(pairs, iterations):
    """Brown et al. 1993, entry by entry: t[source or None, target] and each log-likelihood."""
    targets = {t for _, target in pairs for t in target}
    table = defaultdict(lambda: 1 / len(targets))
    likelihoods = []
    for _ in range(iterations):
        counts, totals, likelihood = defaultdict(float), defaultdict(float), 0.0
        for source, target in pairs:
            words = [None, *source]
            for t in target:
                whole = math.fsum(table[s, t] for s in words)
                likelihood += math.log(whole / len(words))
                for s in words:
                    counts[s, t] += table[s, t] / whole
                    totals[s] += table[s, t] / whole
        table = {pair: count / totals[pair[0]] for pair, count in counts.items()}
        likelihoods.append(likelihood)
    return table, likelihoods


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_fit_is_expectation_maximization(iterations):
    model = ibm_model_1.fit(PAIRS, iterations=iterations)
    table, likelihoods = fit_slowly(PAIRS, iterations)
    for source, target in PAIRS:
        expected = [[table[s, t] for s in (None, *source)] for t in target]
        got = model.table((source, target))
        np.testing.assert_allclose(got, np.reshape(expected, got.shape), rtol=1e-12)
    np.testing.assert_allclose(model.log_likelihoods, likelihoods, rtol=1e-12)
    assert np.all(np.diff(model.log_likelihoods) > 0)


def test_align_takes_the_most_probable_source_word():
    table, _ = fit_slowly(PAIRS, 7)
    model = ibm_model_1.fit(PAIRS, iterations=7)
    some = set()
    for source, target in PAIRS:
        words = [None, *source]
        best = [max(range(len(words)), key=lambda i, t=t: table[words[i], t]) for t in target]
        links = {(i - 1, j) for j, i in enumerate(best) if i > 0}
        assert model.align((source, target)) == links
        some |= links
    assert some


def test_words_never_seen_together_are_not_linked():
    model = ibm_model_1.fit([([0], [0]), ([1], [1])])
    assert model.align(([0, 1], [1, 0])) == {(1, 0), (0, 1)}
    assert model.align(([0], [1])) == set()
    assert model.align(([99], [99, 0])) == set()
    assert model.align(([], [0])) == model.align(([0], [])) == set()


def test_finds_a_dictionary():
    """Words translated one by one, in any order, with function words that nothing translates."""
    rng = np.random.default_rng(3)
    pairs, gold = [], []
    for _ in range(300):
        source = rng.choice(40, 7, replace=False)
        order = rng.permutation(7)
        target = [*(source[order] * 3 % 41), 41]
        pairs.append((source.tolist(), [int(t) for t in target]))
        gold.append({(int(s), j) for j, s in enumerate(order)})
    model = ibm_model_1.fit(pairs)
    got = [model.align(pair) for pair in pairs]
    found = sum(len(one & other) for one, other in zip(got, gold, strict=True))
    assert found / sum(map(len, gold)) > 0.99
    assert sum(map(len, got)) < 1.05 * sum(map(len, gold))


@pytest.mark.parametrize(
    ("pairs", "iterations", "message"),
    [
        (PAIRS, 0, "iterations must be at least 1. Got 0"),
        ([], 5, "pairs must hold a target word. Got 0"),
        ([([1], [])], 5, "pairs must hold a target word. Got 1"),
        ([([1], [-1])], 5, "pairs must hold ids that are not negative"),
        ([([-1], [1])], 5, "pairs must hold ids that are not negative"),
    ],
)
def test_fit_refuses(pairs, iterations, message):
    with pytest.raises(ValueError, match=message):
        ibm_model_1.fit(pairs, iterations=iterations)
