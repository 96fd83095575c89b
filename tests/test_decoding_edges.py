"""Decoding at its edges: NaN, ends, ties, half precision, states of any kind, mistakes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_jax.decoding import beam, beam_search, greedy, sample
from attn_jax.decoding.step import prepare
from tests.decoding_toy import (
    END,
    LIMIT,
    START,
    STATE,
    B,
    V,
    assert_same,
    decode,
    example,
    script,
    scripted,
    toy,
)
from tests.tolerance import assert_close


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


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (np.array([2**31, 2**32 + 1, -(2**32) + 5, 3, 0, 299, 301]), [300, 300, 0, 3, 0, 299, 300]),
        (np.full(B, 2**63, np.uint64), [300] * B),
        (np.full(B, 255, np.uint8), [255] * B),
        ([2] * B, [2] * B),
    ],
    ids=["int64", "uint64", "uint8", "list"],
)
def test_limits_of_any_integers(limit, expected):
    def limits(limit):
        how = {"end": END, "max_length": 300, "min_length": 0, "forbidden": ()}
        return prepare(toy, STATE, start=[START] * B, limit=limit, **how).limit

    assert limits(limit).tolist() == expected
    if not isinstance(limit, list):
        assert jax.jit(limits)(limit).tolist() == expected


MISTAKES = [
    ("beam_size", {"beam_size": 0}),
    ("beam_size", {"beam_size": 2.0}),
    ("n_best", {"n_best": 6}),
    ("n_best", {"n_best": 0}),
    ("length_penalty", {"length_penalty": -0.1}),
    ("length_penalty", {"length_penalty": np.inf}),
    ("length_penalty must be finite in float32", {"length_penalty": 1e39}),
    ("max_length", {"max_length": 0}),
    ("max_length", {"max_length": 2**31}),
    ("min_length", {"min_length": -1}),
    ("min_length must be at most max_length=11", {"min_length": 12}),
    ("end must be an integer from 0 to 4", {"end": V}),
    ("end", {"end": None}),
    ("start", {"start": 0.5}),
    ("start", {"start": np.zeros((B, 1), int)}),
    ("start must be tokens, 0 to 2147483647. Got 4294967297", {"start": 2**32 + 1}),
    ("start", {"start": np.full(B, 2**32 + 1)}),
    ("start", {"start": -1}),
    ("start", {"start": "a"}),
    ("start", {"start": None}),
    ("state", {"start": [START]}),
    ("limit", {"limit": [2]}),
    ("limit", {"limit": ["a"] * B}),
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
