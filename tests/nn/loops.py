"""Recurrent layers and decoders in float64 loops: one example, its own length, no padding.

Each takes the module under test for its parameters alone.
"""

import numpy as np

from attn_jax import Entmax, Softmax, Sparsemax
from tests import oracles

NORMALIZERS = {
    Softmax: lambda slot: oracles.Softmax(),
    Sparsemax: lambda slot: oracles.Sparsemax(),
    Entmax: lambda slot: oracles.Entmax(slot.alpha),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def value(variable):
    return np.asarray(variable[...], np.float64)


def layer(module, inputs, state=None, reverse=False):
    """Shown states [t, h], the last state: h for a GRU, (h, c) for an LSTM."""
    h, is_lstm = module.features, module.gates == 4
    state = state if state is not None else ((np.zeros(h), np.zeros(h)) if is_lstm else np.zeros(h))
    shown = np.zeros((len(inputs), h))
    for t in range(len(inputs))[:: -1 if reverse else 1]:
        state = step(module, inputs[t], state)
        shown[t] = state[0] if is_lstm else state
    return shown, state


def step(module, x, state, fed=0):
    """One step, with what is fed beside the inputs."""
    projected = x @ value(module.input_kernel) + value(module.input_bias) + fed
    kernels = np.split(value(module.recurrent_kernel), module.gates, axis=1)
    inputs = np.split(projected, module.gates)
    if module.gates == 3:
        r, z = (sigmoid(inputs[i] + state @ kernels[i]) for i in (0, 1))
        n = np.tanh(inputs[2] + r * (state @ kernels[2] + value(module.recurrent_bias)))
        return (1 - z) * n + z * state
    hidden, cell = state
    i, f, o = (sigmoid(inputs[k] + hidden @ kernels[k]) for k in (0, 1, 2))
    cell = f * cell + i * np.tanh(inputs[3] + hidden @ kernels[3])
    return o * np.tanh(cell), cell


def encoder(module, inputs):
    """Memory [s, e] and summary of one source."""
    outputs, ends = inputs, [np.zeros(module.summary_features)]
    for level, directions in enumerate(module.layers):
        both = [layer(each, outputs, reverse=bool(i)) for i, each in enumerate(directions)]
        above = np.concatenate([shown for shown, _ in both], axis=1)
        outputs = above + outputs if level and module.residual else above
        ends = [
            final[0] if each.gates == 4 else final
            for each, (_, final) in zip(directions, both, strict=True)
        ]
    return outputs, np.concatenate(ends)


def score(module, query, keys, known=0):
    """Scores [s] of one query against a memory [s, c]; keys also know something [s, a]."""
    if module.key_kernel is not None:
        keys = keys @ value(module.key_kernel)
    keys = keys + known
    if module.name == "additive":
        query = query @ value(module.query_kernel)
        return np.tanh(query + keys + value(module.key_bias)) @ value(module.weight)
    if module.name == "bilinear":
        return keys @ (query @ value(module.weight))
    products = keys @ query
    if module.name == "scaled_dot":
        return products / np.sqrt(len(query))
    if module.name == "cosine":
        norms = np.linalg.norm(keys, axis=1) * np.linalg.norm(query)
        return value(module.weight) * products / norms
    return products


def attend(module, query, memory, history=None, past=()):
    """Context and weights [s]; `past` are the weights of the steps before."""
    if len(memory) == 0:
        return np.zeros(memory.shape[1]), np.zeros(0)
    normalizer = NORMALIZERS[type(module.normalizer)](module.normalizer)
    known, near = 0, np.ones(len(memory), bool)
    if history is not None:
        known, near = look_back(history, [np.zeros(len(memory)), *past])
    weights = np.zeros(len(memory))
    weights[near] = np.array(normalizer(score(module, query, memory, known)[near]))
    return weights @ memory, weights


def look_back(module, past):
    """What keys know [s, a] of the weights before, and which of them come next [s]."""
    last, known, near = past[-1], 0, np.ones(len(past[-1]), bool)
    if module.filters is not None:
        filters = value(module.filters)
        half = len(filters) // 2
        found = [
            [
                sum(
                    last[j + o] * filters[o + half, r]
                    for o in range(-half, half + 1)
                    if 0 <= j + o < len(last)
                )
                for r in range(filters.shape[1])
            ]
            for j in range(len(last))
        ]
        known = known + np.array(found) @ value(module.location)
    if module.coverage is not None:
        known = known + np.outer(np.sum(past, axis=0), value(module.coverage)[0])
    if module.window is not None:
        median = next((j for j in range(len(last)) if last[: j + 1].sum() >= last.sum() / 2), 0)
        left, right = module.window
        near = np.array([median - left <= j <= median + right for j in range(len(last))])
    return known, near


def decoder(module, tokens, memory, summary):
    """Logits [t, v] and weights [t, s] of one target."""
    is_lstm = module.layers[0].gates == 4
    states = []
    for initial in module.initial:
        hidden = np.tanh(summary @ value(initial.kernel) + value(initial.bias))
        states.append((hidden, np.zeros_like(hidden)) if is_lstm else hidden)
    top = lambda: states[-1][0] if is_lstm else states[-1]  # noqa: E731
    feed = np.zeros(module.readout.out_features)
    first = module.order == "attend_then_step"
    logits, alignment = [], []

    def look():
        if module.attention is None:
            return summary, None
        context, weights = attend(module.attention, top(), memory, module.history, alignment)
        if module.gate is not None:
            opened = top() @ value(module.gate.kernel) + value(module.gate.bias)
            context = context * sigmoid(opened)
        return context, weights

    for token in tokens:
        embedded = value(module.embedding)[token]
        fed = 0
        if first:
            context, weights = look()
            fed = context @ value(module.feed_kernel)
        elif module.feeds:
            fed = feed @ value(module.feed_kernel)
        below, shown = embedded, 0
        for level, each in enumerate(module.layers):
            states[level] = step(each, below, states[level], fed if level == 0 else 0)
            above = states[level][0] if is_lstm else states[level]
            below = shown = above + (shown if level else 0)
        if not first:
            context, weights = look()
        parts = [shown, context] + ([embedded] if first else [])
        kernel = value(module.readout.kernel)
        feed = np.tanh(np.concatenate(parts) @ kernel + value(module.readout.bias))
        output = value(module.embedding).T if module.tied else value(module.output_kernel)
        logits.append(feed @ output + value(module.output_bias))
        alignment.append(weights)
    return np.array(logits), None if module.attention is None else np.array(alignment)
