"""A model's training step as it is timed: compiled, and repeated on one batch."""

from collections.abc import Callable
from typing import Any

import optax
from flax import nnx

from attn_jax.training import step


def compiled(
    model: nnx.Module, loss: Callable, optimizer: optax.GradientTransformation, seed: int = 0
) -> tuple[Callable, step.State]:
    """Return the jitted step (state, batch) -> (state, metrics), and its first state."""
    function = step.make_step(step.split(model)[0], loss, optimizer, None)
    return function, step.initial_state(model, optimizer, seed)


def repeated(function: Callable, state: step.State, batch: Any) -> Callable[[], float]:
    """Return a call that does one more step on the same batch; it returns the loss before it."""

    def call() -> float:
        nonlocal state
        state, numbers = function(state, batch)
        return float(numbers["loss"])

    return call
