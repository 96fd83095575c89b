"""What a step's logits say: which token is best and how probable it is, and which are allowed."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_jax.decoding.step import Search


def allowed_only(
    search: Search, logits: Float[Array, "n v"], t: Int[Array, ""]
) -> Float[Array, "n v"]:
    """The logits with -inf at the tokens that step t (from 0) must not produce."""
    if not search.forbidden and search.min_length <= 1:
        return logits
    token = np.arange(logits.shape[1])
    allowed = ~np.isin(token, search.forbidden)
    allowed = allowed & ((token != search.end) | (t + 1 >= search.min_length))
    return jnp.where(allowed[None, :], logits, -jnp.inf)


def log_probabilities(
    logits: Float[Array, "n v"], chosen: Float[Array, "n c"]
) -> Float[Array, "n c"]:
    """log softmax(logits) at those logits that were chosen: chosen - log Σ exp(logits).

    -inf where a chosen logit, or all of the row, is -inf. NaN in a row that holds NaN or +inf.

    >>> log_probabilities(jnp.array([[1e4, -jnp.inf]]), jnp.array([[1e4, -jnp.inf]])).tolist()
    [[0.0, -inf]]
    """
    largest = jnp.max(logits, axis=-1, keepdims=True)
    largest = jnp.where(largest == -jnp.inf, 0.0, largest)
    log_sum = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1, keepdims=True))
    return jnp.where(log_sum == -jnp.inf, -jnp.inf, chosen - largest - log_sum)


def best_token(logits: Float[Array, "n v"]) -> Int[Array, " n"]:
    """The lowest token of the largest logit; in a row with NaN, any.

    >>> best_token(jnp.array([[0.0, 2.0, 2.0]])).tolist()
    [1]
    """
    # Two plain reductions: on CPUs an argmax is one slow one (at v = 10,000 seven times as slow).
    largest = jnp.max(logits, axis=-1, keepdims=True)
    token = jnp.arange(logits.shape[1], dtype=jnp.int32)
    last = logits.shape[1] - 1
    return jnp.min(jnp.where(logits == largest, token[None, :], last), axis=-1)
