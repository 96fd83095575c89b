"""Decoding against enumeration and slow twins in NumPy: searches, samples, independence."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.decoding import beam_search, ensemble, greedy, sample
from attn_jax.decoding.filters import nucleus
from tests.decoding_toy import (
    ALL,
    END,
    LIMIT,
    START,
    STATE,
    B,
    V,
    after,
    assert_same,
    decode,
    example,
    hypothesis,
    rows,
    toy,
)
from tests.tolerance import assert_close


def ranked(finished, live, n_best):
    return (sorted(finished, key=lambda h: -h[0]) + sorted(live, key=lambda h: -h[0]))[:n_best]


def slow_beam(example, *, limit, beam_size, n_best, length_penalty, min_length=0, forbidden=()):
    """Beam search with lists of hypotheses, which never stops early."""
    live, finished = [hypothesis(example, (), length_penalty)], []
    for t in range(limit):
        allowed = [w for w in range(V) if w not in forbidden and (w != END or t + 1 >= min_length)]
        longer = [(*h[2], token) for h in live for token in allowed]
        candidates = [hypothesis(example, tokens, length_penalty) for tokens in longer]
        best = sorted(candidates, key=lambda h: -h[1])[:beam_size]
        finished += [h for h in best if h[2][-1] == END]
        live = [h for h in best if h[2][-1] != END]
    return ranked(finished, live, n_best)


def enumerated(example, *, limit, n_best, length_penalty, min_length):
    """All sequences that there are."""
    finished, live = [], []
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(V), repeat=length):
            if END in tokens[:-1]:
                continue
            if tokens[-1] == END and length >= min_length:
                finished.append(hypothesis(example, tokens, length_penalty))
            elif tokens[-1] != END and length == limit:
                live.append(hypothesis(example, tokens, length_penalty))
    return ranked(finished, live, n_best)


def assert_decoded(decoded, expected):
    """One example [n, ...] against a list of (score, log P, tokens, weights)."""
    n, t = decoded.tokens.shape
    assert n >= len(expected) > 0
    assert np.all(decoded.scores[len(expected) :] == -np.inf)
    assert np.all(decoded.lengths[len(expected) :] == 0)
    for i, (score, total, tokens, weights) in enumerate(expected):
        assert decoded.tokens[i].tolist() == [*tokens, *[END] * (t - len(tokens))]
        assert decoded.lengths[i] == len(tokens)
        assert decoded.finished[i] == (tokens[-1:] == (END,))
        assert_close(decoded.scores[i], score)
        assert_close(decoded.log_probabilities[i], total)
        assert_close(decoded.weights[i, : len(tokens)], weights)
        assert not np.any(decoded.weights[i, len(tokens) :])


def test_a_penalty_may_be_so_large_that_scores_vanish():
    """In float32 scores of long hypotheses are 0 then, and those of short ones -inf beside them."""
    options = {"beam_size": 4, "n_best": 3}

    def half(token, state):
        logits, state, weights = toy(token, state)
        return logits.astype(jnp.float32), state, weights

    @jax.jit
    def search(length_penalty):
        how = {"start": START, "end": END, "max_length": 11, "limit": LIMIT}
        return beam_search(half, STATE, length_penalty=length_penalty, **how, **options)

    for length_penalty in (30.0, 700.0):
        decoded = search(length_penalty)
        assert not np.any(np.isnan(decoded.scores))
        for i in ALL:
            one = example(decoded, i)
            rest = {"limit": LIMIT[i], "length_penalty": length_penalty}
            for place, found in enumerate(slow_beam(i, **rest, **options)):
                length = len(found[2])
                assert one.tokens[place, :length].tolist() == list(found[2])
                assert (one.lengths[place], one.finished[place]) == (length, found[2][-1] == END)


@pytest.mark.parametrize("min_length", [0, 3])
def test_a_wide_beam_is_exhaustive_search(min_length):
    options = {"n_best": 13, "min_length": min_length}
    limit = np.array([4, 3, 2])
    wide = V * (V - 1) ** 3  # every continuation at the last of four steps
    run = jax.jit(
        lambda penalty: beam_search(
            toy,
            rows(ALL[:3]),
            start=START,
            end=END,
            max_length=4,
            limit=limit,
            beam_size=wide,
            length_penalty=penalty,
            **options,
        )
    )
    for penalty in (0.0, 0.6, 1.7):
        decoded = run(penalty)
        for i in range(3):
            expected = enumerated(i, limit=limit[i], length_penalty=penalty, **options)
            assert_decoded(example(decoded, i), expected)


NARROW = {
    "plain": {"beam_size": 3, "n_best": 3},
    "lengths": {"beam_size": 4, "n_best": 2, "min_length": 4, "forbidden": (0, 3)},
    "endless": {"beam_size": 2, "n_best": 1, "forbidden": (END,)},
    "greedy": {"beam_size": 1, "n_best": 1, "min_length": 2},
}


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_beam_is_its_slow_twin(name):
    """Which stops for nothing: neither does stopping early change anything."""
    for penalty in (0.0, 1.3):
        options = {"length_penalty": penalty, **NARROW[name]}
        decoded = decode(beam_search, STATE, limit=LIMIT, **options)
        for i in range(B):
            assert_decoded(example(decoded, i), slow_beam(i, limit=LIMIT[i], **options))


def test_a_beam_of_one_is_greedy():
    options = {"limit": LIMIT, "min_length": 2, "forbidden": (3,)}
    one = decode(beam_search, STATE, beam_size=1, length_penalty=0.0, **options)
    got = decode(greedy, STATE, **options)
    assert_same(got, jax.tree.map(lambda leaf: leaf[:, 0], one))
    assert 1 < np.sum(got.finished) < B  # both kinds of end were there


def test_n_best_are_sorted_and_distinct():
    decoded = decode(beam_search, STATE, limit=LIMIT, beam_size=4, n_best=4)
    for i in range(B):
        one = example(decoded, i)
        real = one.scores > -np.inf
        paths = {(n, *tokens) for n, tokens in zip(one.lengths, one.tokens.tolist(), strict=True)}
        assert len(paths) >= np.sum(real) >= 3
        assert np.all(np.diff(one.finished.astype(int)) <= 0)
        for kind in (one.finished, ~one.finished):
            assert np.all(one.scores[kind][1:] <= one.scores[kind][:-1])


@pytest.mark.parametrize("function", [greedy, sample, beam_search])
def test_results_do_not_depend_on_the_batch(function):
    """Other examples, their order, and padding: an example that may produce nothing."""
    rngs = jax.random.split(jax.random.key(3), B)

    def run(chosen, limit, state):
        options = {"rng": rngs[chosen]} if function is sample else {}
        return decode(function, state, start=chosen % V, limit=limit, **options)

    everything = run(ALL, LIMIT, STATE)
    chosen = np.array([4, 0, 2, 1])
    state = rows(chosen)
    state["hidden"][3] = np.nan
    some = run(chosen, np.where(chosen == 1, 0, LIMIT[chosen]), state)
    for place, i in enumerate(chosen[:3]):
        assert_same(example(some, place), example(everything, i))
    padding = example(some, 3)
    assert padding.lengths == 0
    assert padding.log_probabilities == 0
    assert not padding.finished
    assert not np.any(padding.weights)


def test_draws_depend_on_the_key_and_the_place():
    rng = jax.random.key(8)
    everything = decode(sample, STATE, rng=rng)
    assert_same(
        decode(sample, rows(ALL[:3]), rng=rng), jax.tree.map(lambda leaf: leaf[:3], everything)
    )
    alike = decode(sample, rows(np.zeros(B, int)), rng=rng, temperature=3.0)
    assert len({tuple(tokens) for tokens in alike.tokens.tolist()}) > 3


def slow_filter(log_probabilities, temperature=1.0, top_k=None, top_p=1.0):
    """The distribution that is drawn from, entry by entry."""
    tempered = np.exp(log_probabilities / temperature)
    kept = sorted(range(len(tempered)), key=lambda token: -tempered[token])[:top_k]
    total, mass, result = sum(tempered[kept]), 0.0, np.zeros(len(tempered))
    for token in kept:
        if mass < top_p:
            result[token] = tempered[token] / total
            mass += result[token]
    return result / mass


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.7},
        {"temperature": 1.5, "top_k": 4, "top_p": 0.6},
    ],
    ids=str,
)
def test_frequencies_are_the_exact_distribution(filters):
    n = 20_011
    state = rows(np.zeros(n, int))
    decoded = decode(sample, state, rng=jax.random.key(1), max_length=2, **filters)
    first = slow_filter(after(0, ())[0], **filters)
    exact = {(END, END): first[END]}
    for token in {*range(V)} - {END}:
        second = slow_filter(after(0, (token,))[0], **filters)
        exact |= {(token, last): first[token] * second[last] for last in range(V)}
    assert sum(exact.values()) == pytest.approx(1)
    drawn, where, counts = np.unique(decoded.tokens, axis=0, return_index=True, return_counts=True)
    counted = {tuple(tokens): count for tokens, count in zip(drawn.tolist(), counts, strict=True)}
    for tokens, probability in exact.items():
        deviation = np.sqrt(n * probability * (1 - probability))
        assert abs(counted.pop(tokens, 0) - n * probability) <= 4 * deviation + 1, tokens
    assert not counted
    for tokens, i in zip(drawn.tolist(), where, strict=True):
        expected = hypothesis(0, tuple(tokens[: decoded.lengths[i]]), 0.0)
        assert_close(decoded.scores[i], expected[0])  # neither tempered nor filtered
        assert_close(decoded.weights[i, : len(expected[3])], expected[3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_nucleus_is_the_one_found_by_sorting(dtype):
    logits = np.random.default_rng(2).normal(size=(5, 101)) * [[0.1], [1], [3], [9], [40]]
    for top_p in (1e-9, 0.3, 0.9, 0.999, 1.0):
        got = nucleus(jnp.asarray(logits, dtype), top_p)
        for row, log_probabilities in zip(got, logits, strict=True):
            expected = slow_filter(log_probabilities - log_probabilities.max(), top_p=top_p) > 0
            assert row.tolist() == (expected | (top_p == 1)).tolist()
    equal = nucleus(jnp.zeros((1, 4), dtype), 0.3)
    assert np.all(equal)


def test_a_low_temperature_is_greedy():
    rng = jax.random.key(4)
    for temperature in (1e-4, 1e-200, 1e-320):
        cold = decode(sample, STATE, rng=rng, temperature=temperature, top_p=0.9)
        assert_same(cold, decode(greedy, STATE))


def flat(token, state):
    """Another model, in half precision, without weights; some tokens are impossible.

    From state 3 on all are: it adds nothing there.
    """
    logits = jnp.where(state[:, None] < 3, jnp.sin(state[:, None] + jnp.arange(V)[None]), -jnp.inf)
    return logits.at[:, 2].set(-jnp.inf).astype(jnp.bfloat16), state + 1, None


def test_an_ensemble_averages_probabilities_and_weights():
    steps = [
        toy,
        flat,
        lambda token, state: (*toy(token + 1, state)[:2], toy(token, state)[2] ** 2),
    ]
    states = (STATE, ALL.astype(np.float32), STATE)
    token = np.array([0, 3, 1, 2, 0, 2, 1])
    logits, after, weights = jax.jit(ensemble(steps))(token, states)
    parts = [step(token, state) for step, state in zip(steps, states, strict=True)]
    each = [np.exp(np.asarray(part[0], np.float64)) for part in parts]
    each = [p / np.where(p.any(-1), p.sum(-1), 1)[:, None] for p in each]
    assert_close(np.exp(logits), sum(each) / 3)
    assert_close(weights, (parts[0][2] + parts[2][2]) / 2)
    assert_close(after[1], states[1] + 1)
    assert_close(after[0]["hidden"], parts[0][1]["hidden"])


def test_an_ensemble_of_one_model_decodes_as_it():
    options = {"beam_size": 2, "length_penalty": 0.6}
    alone = decode(beam_search, STATE, limit=LIMIT, **options)
    found = decode(beam_search, (STATE, STATE), step=ensemble([toy, toy]), limit=LIMIT, **options)
    assert_same(found, alone)


@pytest.mark.parametrize(
    ("says", "steps"),
    [
        ("steps must hold at least one", []),
        ("steps must be functions", [toy, None]),
        (
            "steps must return weights of one shape",
            [
                toy,
                lambda token, state: (*toy(token, state)[:2], toy(token, state)[2][:, 1:]),
            ],
        ),
        (
            "steps must share one vocabulary",
            [toy, lambda token, state: (toy(token, state)[0][:, 1:], state, None)],
        ),
    ],
)
def test_an_ensemble_names_mistakes(says, steps, without_shape_hook):
    with pytest.raises(ValueError, match=says):
        ensemble(steps)(jnp.array(ALL % V), (STATE,) * len(steps))


@pytest.mark.parametrize("states", [None, (STATE,), STATE], ids=["none", "one", "no tuple"])
def test_an_ensemble_has_a_state_for_each(states, without_shape_hook):
    with pytest.raises(ValueError, match="state must be a tuple, one of each of the 2 step"):
        ensemble([toy, toy])(jnp.array(ALL % V), states)
