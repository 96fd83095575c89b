"""Several models that decode as one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_jax.checks import require, require_function
from attn_jax.decoding.logits import log_probabilities
from attn_jax.decoding.step import Step


def ensemble(steps: Sequence[Step]) -> Step:
    """Return a step function that averages the probabilities of several, and their weights.

    logits = log (1/m Σᵢ softmax(logitsᵢ)) for m step functions over one vocabulary. (Sutskever et
    al. 2014, §3.6.) The state is a tuple of their states. Weights are the mean over those that
    return any, which then must have one shape.

    >>> def constant(*p):
    ...     return lambda token, state: (jnp.log(jnp.array([p] * len(token))), state, None)
    >>> step = ensemble([constant(0.25, 0.75), constant(0.75, 0.25)])
    >>> jnp.exp(step(jnp.array([0]), (None, None))[0]).tolist()
    [[0.5, 0.5]]
    """
    steps = tuple(steps)
    require(len(steps) > 0, "steps", "hold at least one step function", steps)
    for each in steps:
        require_function(each, "steps", "functions (token, state) -> (logits, state, weights)")

    def step(
        token: Int[Array, " n"], states: tuple[Any, ...]
    ) -> tuple[Float[Array, "n v"], tuple[Any, ...], Float[Array, "n k"] | None]:
        fits = isinstance(states, tuple | list) and len(states) == len(steps)
        rule = f"be a tuple, one of each of the {len(steps)} step functions"
        require(fits, "state", rule, type(states).__name__)
        results = [each(token, state) for each, state in zip(steps, states, strict=True)]
        logits, after, weights = zip(*results, strict=True)
        shapes = {each.shape for each in logits}
        require(len(shapes) == 1, "steps", "share one vocabulary", f"logits of {sorted(shapes)}")
        every = jnp.stack(logits).astype(jnp.promote_types(jnp.result_type(*logits), jnp.float32))
        every = jax.vmap(lambda each: log_probabilities(each, each))(every)
        weights = [each for each in weights if each is not None]
        widths = {each.shape for each in weights}
        require(len(widths) < 2, "steps", "return weights of one shape", f"{sorted(widths)}")
        mean = sum(weights) / len(weights) if weights else None
        return jax.nn.logsumexp(every, axis=0) - jnp.log(float(len(steps))), after, mean

    return step
