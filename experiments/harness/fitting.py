"""Training as every experiment does it: options give its length, a failure is the user's line."""

from collections.abc import Callable
from typing import Any

from experiments.harness.errors import as_user_errors


def fit(model: Any, loss: Callable, batches: Any, options: Any, **how: Any) -> Any:
    """Return the `training.Fit` of `options.steps` steps from `options.seed`; `how` is its own."""
    from attn_jax import training

    with as_user_errors(training.CheckpointError, training.NonFiniteLoss):
        return training.fit(model, loss, batches, steps=options.steps, seed=options.seed, **how)
