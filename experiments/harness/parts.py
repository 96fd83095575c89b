"""A function of many rows in parts: progress and Ctrl-C between them, memory for one part."""

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from attn_jax.training import progress

PAIRS = 2**27  # of rows and data, in a part: about a second of a softmax on two CPU cores
SECONDS = 10  # what takes longer shows its progress


def in_parts(model: nnx.Module, function: Callable, *data: np.ndarray) -> Callable[[Any], Any]:
    """Return rows -> function(model, rows, *data), whose results have a row for each of the rows.

    What was compiled for one model serves others of its structure.
    """
    graph, state = nnx.split(model)
    data = tuple(map(jax.numpy.asarray, data))

    def of_rows(rows: np.ndarray) -> Any:
        size = min(len(rows), 2 ** int(math.log2(max(PAIRS / len(data[0]), 1))))
        starts = range(0, len(rows), size)
        results, shown, began = [], None, time.perf_counter()
        with contextlib.ExitStack() as stack:
            for done, start in enumerate(starts, 1):
                part = rows[start : start + size]
                missing = [(0, size - len(part))] + [(0, 0)] * (part.ndim - 1)
                full = np.pad(part, missing, mode="edge")
                results.append(jax.device_get(_call(graph, function, state, full, data)))
                left = (time.perf_counter() - began) / done * (len(starts) - done)
                if shown is None and left >= SECONDS:
                    shown = stack.enter_context(progress.show(len(starts), done, True))
                if shown is not None:
                    shown.stepped(done, len(part))
                    shown.reported(done, {})
        return jax.tree.map(lambda *each: np.concatenate(each)[: len(rows)], *results)

    return of_rows


@partial(jax.jit, static_argnums=(0, 1))
def _call(graph: Any, function: Callable, state: Any, rows: Any, data: tuple) -> Any:
    return function(nnx.merge(graph, state), rows, *data)
