"""Training as every experiment does it: options give its length, a failure is the user's line."""

from collections.abc import Callable
from typing import Any

from experiments.harness.errors import as_user_errors


def fit(model: Any, loss: Callable, batches: Any, options: Any, **how: Any) -> Any:
    """Return the `training.Fit` of `options.steps` steps from `options.seed`; `how` is its own.

    An interrupted training raises KeyboardInterrupt, after it has said how it goes on.
    """
    from attn_jax import training

    with as_user_errors(training.CheckpointError, training.NonFiniteLoss):
        found = training.fit(model, loss, batches, steps=options.steps, seed=options.seed, **how)
    if found.stopped == "interrupted":
        if how.get("directory") is not None:
            print("interrupted: the same command with --resume goes on here")
        raise KeyboardInterrupt
    return found


def warmup_cosine(peak: float, steps: int, *, warmup: int, end: float) -> Callable[[Any], Any]:
    """Return step -> rate: a straight line from 0 to `peak`, then a cosine down to `end` · peak.

    Without warm-up it begins at `peak`. (Loshchilov & Hutter 2017, eq. 5, without restarts.)
    """
    import optax

    start = 0.0 if warmup else peak
    longest = max(steps, warmup + 1)
    return optax.warmup_cosine_decay_schedule(start, peak, warmup, longest, end * peak)
