"""A model asked about many rows, in parts: progress and Ctrl-C between them, memory for one."""

import contextlib
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PAIRS = 2**27  # of rows and data, in a part: about a second of a softmax on two CPU cores
SECONDS = 10  # what takes longer shows its progress


def in_parts(model: Any, question: Callable, *data: np.ndarray) -> Callable[[np.ndarray], Any]:
    """Return a function of rows: question(model, rows, *data), where results have a row for each.

    What was compiled for one model serves others of its structure, asked the same question.
    """
    import jax
    from flax import nnx

    graph, state = nnx.split(model)
    data = [jax.numpy.asarray(each) for each in data]

    def ask(rows: np.ndarray) -> Any:
        size = min(len(rows), 2 ** int(math.log2(max(PAIRS / len(data[0]), 1))))
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        answers = []
        with contextlib.ExitStack() as stack:
            shown, began = None, time.perf_counter()
            for done, part in enumerate(parts, start=1):
                missing = [(0, size - len(part))] + [(0, 0)] * (part.ndim - 1)
                full = np.pad(part, missing, mode="edge")
                answers.append(jax.device_get(_compiled()(graph, question, state, full, data)))
                shown = shown or _shown(stack, done, len(parts), time.perf_counter() - began)
                if shown:
                    shown.stepped(done, len(part))
                    shown.reported(done, {})
        return jax.tree.map(lambda *each: np.concatenate(each)[: len(rows)], *answers)

    return ask


@functools.cache
def _compiled() -> Callable:
    import jax
    from flax import nnx

    def answer(graph, question, state, rows, data):
        return question(nnx.merge(graph, state), rows, *data)

    return jax.jit(answer, static_argnums=(0, 1))


def _shown(stack: contextlib.ExitStack, done: int, parts: int, seconds: float) -> Any:
    """Return the progress from here on, where the rest takes its time."""
    from attn_jax.training import progress

    if seconds / done * (parts - done) < SECONDS:
        return None
    return stack.enter_context(progress.show(parts, done, True))
