"""Decoding against enumeration and slow twins in NumPy, on a recurrent toy that forgets nothing."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.decoding import beam, beam_search, greedy, sample
from attn_jax.decoding.filters import nucleus
from tests.tolerance import assert_close

B, V, K, WIDTH = 7, 5, 3, 11
START, END = 0, 1
RNG = np.random.default_rng(5)
INPUT = RNG.normal(size=(V, WIDTH))
RECURRENT = RNG.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)
OUTPUT = 1.5 * RNG.normal(size=(WIDTH, V))
LOOK = RNG.normal(size=(WIDTH, K))
STATE = {"hidden": RNG.normal(size=(B, WIDTH)), "bias": RNG.normal(size=(B, V))}
LIMIT = np.array([11, 2, 7, 5, 11, 9, 3])
STATE["bias"][:, END] += 2
ALL = np.arange(B)


def toy(token, state, np=jnp):
    """Every token changes the hidden state for good; the bias is handed on untouched."""
    hidden = np.tanh(state["hidden"] @ RECURRENT + np.asarray(INPUT)[token])
    look = np.exp(hidden @ LOOK)
    weights = look / np.sum(look, axis=-1, keepdims=True)
    return hidden @ OUTPUT + state["bias"], {**state, "hidden": hidden}, weights


def rows(chosen):
    return {name: array[chosen] for name, array in STATE.items()}


@functools.cache
def after(example, tokens):
    """log P of each next token, the weights and the state behind some tokens, in NumPy."""
    state = after(example, tokens[:-1])[2] if tokens else rows(example)
    logits, state, weights = toy((START, *tokens)[-1], state, np=np)
    return logits - np.log(np.sum(np.exp(logits))), weights, state


def hypothesis(example, tokens, length_penalty):
    """(score, log P, tokens, weights)"""
    seen = [after(example, tokens[:t]) for t in range(len(tokens))]
    total = sum(steps[token] for (steps, *_), token in zip(seen, tokens, strict=True))
    score = total / ((5 + len(tokens)) / 6) ** length_penalty
    return score, total, tokens, np.reshape([weights for _, weights, _ in seen], (-1, K))


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


def example(decoded, i):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], decoded)


def decode(function, state, *, step=toy, **options):
    """Jitted; options that are arrays or floats are traced."""
    options = {"start": START, "end": END, "max_length": 11} | options
    traced = {n: o for n, o in options.items() if isinstance(o, float | np.ndarray | jax.Array)}
    static = {name: option for name, option in options.items() if name not in traced}
    run = jax.jit(lambda state, traced: function(step, state, **static, **traced))
    return run(state, traced)


def assert_same(got, expected):
    """The same tokens; numbers up to rounding, which depends on how many rows are multiplied."""
    for name in ("tokens", "lengths", "finished"):
        assert np.array_equal(getattr(got, name), getattr(expected, name)), name
    for name in ("scores", "weights", "log_probabilities"):
        assert_close(getattr(got, name), getattr(expected, name))


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


def scripted(token, state):
    """Logits by example and time, whatever the tokens."""
    logits = jnp.take_along_axis(state["script"], state["t"][:, None, None], axis=1)[:, 0]
    return logits, {**state, "t": state["t"] + 1}, None


def script(logits):
    return {"script": logits, "t": np.zeros(len(logits), np.int32)}


def failing():
    """Six examples of five steps, END impossible at the first and certain at the fourth."""
    logits = np.random.default_rng(4).normal(size=(6, 5, V))
    logits[:, 0, END] = -np.inf
    logits[:, 3, np.arange(V) != END] = -np.inf
    logits[1, 1, 2] = np.nan
    logits[2, 1] = -np.inf
    logits[3, 0, 4] = np.inf
    logits[4, 4] = np.nan
    logits[5, 0, [0, 2, 4]] = -np.inf
    return script(logits)


@pytest.mark.parametrize("function", [greedy, sample, beam_search])
def test_nan_and_impossible_tokens(function):
    options = {
        greedy: {},
        sample: {"rng": jax.random.split(jax.random.key(0), 6), "top_p": 0.9},
        beam_search: {"beam_size": 3, "n_best": 3},
    }[function]
    limit = np.array([5, 5, 5, 5, 5, 1])
    got = decode(function, failing(), step=scripted, limit=limit, **options)
    best = jax.tree.map(lambda leaf: leaf[:, 0], got) if function is beam_search else got
    fine, nan, stuck, infinite, late, short = (example(best, i) for i in range(6))
    assert fine.finished
    assert 1 < fine.lengths <= 4
    assert np.isfinite(fine.scores)
    assert nan.lengths == 1
    assert np.isnan(nan.scores)
    assert stuck.lengths == 1
    assert stuck.scores == stuck.log_probabilities == -np.inf
    assert infinite.lengths == 0
    assert np.isnan(infinite.log_probabilities)
    assert late.finished  # NaN behind the end is nobody's
    assert np.isfinite(late.scores)
    assert short.tokens[0] == 3
    assert np.isfinite(short.scores)
    assert not np.any(got.finished[np.array([1, 2, 3, 5])])
    if function is beam_search:
        assert np.all(np.isnan(got.scores[np.array([1, 3])]))
        assert got.lengths[5].tolist() == [1, 0, 0]  # there is only one possible token
        assert got.scores[5, 1:].tolist() == [-np.inf, -np.inf]


def test_a_nan_of_one_hypothesis_is_not_hidden_by_the_others():
    def step(token, state):
        broken = (token == 2)[:, None] & (jnp.arange(V) == 4)[None, :]
        return jnp.where(broken, jnp.nan, state), state, None

    decoded = decode(beam_search, np.zeros((1, V)), step=step, n_best=2, max_length=3)
    assert np.all(np.isnan(decoded.scores))
    assert not np.any(decoded.finished)


@pytest.mark.parametrize("function", [greedy, beam_search])
def test_what_a_step_says_behind_the_end_is_nobodys(function):
    def poisoned(token, state):
        logits, state, weights = toy(token, state)
        return jnp.where((token == END)[:, None], jnp.nan, logits), state, weights

    assert_same(
        decode(function, STATE, step=poisoned, limit=LIMIT),
        decode(function, STATE, limit=LIMIT),
    )


def test_a_low_temperature_is_greedy():
    rng = jax.random.key(4)
    for temperature in (1e-4, 1e-200, 1e-320):
        cold = decode(sample, STATE, rng=rng, temperature=temperature, top_p=0.9)
        assert_same(cold, decode(greedy, STATE))


def test_ties_go_to_the_lowest_token():
    state = script(np.zeros((2, 3, 4)))
    options = {"step": scripted, "end": 3, "max_length": 2}
    assert decode(greedy, state, **options).tokens.tolist() == [[0, 0]] * 2
    found = decode(beam_search, state, beam_size=4, n_best=3, length_penalty=0.0, **options)
    assert found.tokens.tolist() == [[[3, 3], [0, 3], [0, 0]]] * 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_precision(dtype):
    """Sums are in float32, and do not feel a large constant that all logits share."""
    logits = np.random.default_rng(6).normal(size=(2, 29, V)) + np.array([0, 1024])[:, None, None]
    logits = np.asarray(jnp.asarray(logits, dtype))
    for function in (greedy, beam_search):
        got = decode(function, script(logits), step=scripted, max_length=29, forbidden=(END,))
        wide = logits.astype(np.float64)
        wide -= np.max(wide, axis=-1, keepdims=True)
        wide -= np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
        total = np.sum(np.max(np.delete(wide, END, axis=-1), axis=-1), axis=1)
        got = got.log_probabilities.reshape(2)
        assert got.dtype == ("float64" if dtype == "float64" else "float32")
        assert_close(got, total)


def counting(step):
    """A step that counts how often it was run."""
    calls = []

    def counted(token, state):
        jax.debug.callback(lambda: calls.append(1))
        return step(token, state)

    return counted, calls


def test_the_loop_ends_when_all_is_done(monkeypatch):
    logits = np.full((2, 97, V), 0.0)
    logits[:, 2, END] = 9.0
    logits[1, 4, END] = 19.0

    def run(function, **options):
        step, calls = counting(scripted)
        decoded = decode(function, script(logits), step=step, max_length=97, **options)
        jax.block_until_ready(decoded)
        jax.effects_barrier()
        return decoded, len(calls)

    assert run(greedy)[1] == 3
    assert run(greedy, limit=np.array([0, 2]))[1] == 2
    # After three steps the best has 1/25 left to lose; a live one has lost 1/(9000 · 25).
    stopped, steps = run(beam_search, beam_size=3, n_best=1)
    assert 3 <= steps < 12
    monkeypatch.setattr(beam, "_can_win", lambda live, *_: jnp.any(live.real, axis=1))
    endless, steps = run(beam_search, beam_size=3, n_best=1)
    assert steps == 97
    for name in ("tokens", "lengths", "scores", "finished"):
        assert getattr(stopped, name).tolist() == getattr(endless, name).tolist()


def test_a_state_may_be_any_pytree():
    """Counters, booleans and PRNG keys are reordered too: log P is that of the tokens returned."""

    def step(token, state):
        rngs, (count, odd) = state
        rngs = jax.vmap(jax.random.fold_in)(rngs, token)
        logits = jax.vmap(lambda rng: jax.random.normal(rng, (V,)))(rngs)
        sign = jnp.where(odd, 1.0, -1.0) * count
        return logits * sign[:, None], (rngs, (count + 1, odd ^ (token > 2))), None

    start = jax.random.split(jax.random.key(2), 2), (np.ones(2, int), np.ones(2, bool))
    decoded = decode(beam_search, start, step=step, beam_size=3, max_length=5, forbidden=(END,))
    token, state, total = np.full(2, START), start, 0.0
    for t in range(5):
        logits, state, _ = step(token, state)
        token = decoded.tokens[:, 0, t]
        total += jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=1)[:, 0]
    assert_close(decoded.log_probabilities[:, 0], total)
    assert decoded.weights is None


def test_what_a_step_hands_on_is_not_moved():
    def touched(token, state):
        logits, state, weights = toy(token, state)
        return logits, {**state, "bias": state["bias"] + 0}, weights

    def gathers(step):
        options = {"start": START, "end": END, "max_length": 3}
        program = jax.make_jaxpr(lambda state: beam_search(step, state, **options))(STATE)
        return str(program).count("gather[")

    assert gathers(touched) == gathers(toy) + 1


MISTAKES = [
    ("beam_size", {"beam_size": 0}),
    ("beam_size", {"beam_size": 2.0}),
    ("n_best", {"n_best": 6}),
    ("n_best", {"n_best": 0}),
    ("length_penalty", {"length_penalty": -0.1}),
    ("length_penalty", {"length_penalty": np.inf}),
    ("max_length", {"max_length": 0}),
    ("min_length", {"min_length": -1}),
    ("min_length must be at most max_length=11", {"min_length": 12}),
    ("end must be an integer from 0 to 4", {"end": V}),
    ("end", {"end": None}),
    ("start", {"start": 0.5}),
    ("start", {"start": np.zeros((B, 1), int)}),
    ("state", {"start": np.zeros(B + 1, int)}),
    ("limit", {"limit": np.ones(B + 1, int)}),
    ("limit", {"limit": np.ones(B)}),
    ("forbidden", {"forbidden": [0]}),
    ("forbidden", {"forbidden": (V,)}),
    ("forbidden", {"forbidden": (0.5,)}),
    ("state", {"state": ()}),
    ("state", {"state": {"a": np.zeros(3), "b": np.zeros(2)}}),
    ("state", {"state": {"a": np.zeros(3), "b": 1.0}}),
    ("step", {"step": None}),
    ("step must return", {"step": lambda token, state: toy(token, state)[:2]}),
    (
        "step must return the state",
        {"step": lambda token, s: (*toy(token, s)[:1], s["bias"], None)},
    ),
    ("step must return real logits", {"step": lambda token, s: (s["bias"][0], s, None)}),
    ("step must return real logits", {"step": lambda token, s: (s["bias"] > 0, s, None)}),
    ("step must return real logits", {"step": lambda token, s: (None, s, None)}),
    ("step must return real weights", {"step": lambda token, s: (s["bias"], s, s["bias"][:1])}),
    ("rng", {"rng": np.zeros(2, np.uint32)}),
    ("rng", {"rng": jax.random.split(jax.random.key(0), 3)}),
    ("temperature must not be 0, where sampling becomes `greedy`", {"temperature": 0}),
    ("temperature", {"temperature": -1.0}),
    ("temperature", {"temperature": np.nan}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.1}),
    ("top_k", {"top_k": 0}),
    ("top_k", {"top_k": 2.5}),
]


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(("says", "mistake"), MISTAKES, ids=map(str, range(len(MISTAKES))))
def test_mistakes_are_named(says, mistake):
    beams = {"beam_size", "n_best", "length_penalty"} & mistake.keys()
    draws = {"rng", "temperature", "top_p", "top_k"} & mistake.keys()
    functions = [beam_search] if beams else [sample] if draws else [greedy, sample, beam_search]
    for function in functions:
        options = {"step": toy, "state": STATE, "start": START, "end": END, "max_length": 11}
        if function is sample:
            options["rng"] = jax.random.key(0)
        options |= mistake
        step, state = options.pop("step"), options.pop("state")
        with pytest.raises(ValueError, match=f"^{says}"):
            function(step, state, **options)
