"""A recurrent toy that forgets nothing, for decoding, and what it says in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

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


def scripted(token, state):
    """Logits by example and time, whatever the tokens."""
    logits = jnp.take_along_axis(state["script"], state["t"][:, None, None], axis=1)[:, 0]
    return logits, {**state, "t": state["t"] + 1}, None


def script(logits):
    return {"script": logits, "t": np.zeros(len(logits), np.int32)}
