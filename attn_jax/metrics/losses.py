"""Cross-entropy of tokens, in the memory of the logits and their gradient alone.

With q the label's distribution, smoothed or not, and p = softmax(logits):

    loss = logsumexp(logits) - Σ_v q_v · logits_v,        dloss = Σ_v (p_v - q_v) · dlogits_v

The second equation is the rule that JAX differentiates by, in either mode and to any order. Its
p - q is written where the gradient goes, in one loop, and XLA puts that in the logits' own place:
log-probabilities, one-hot labels and the like are never stored.

- A token that is not real (`where` is False) has loss 0 and gradient 0, whatever its label and its
  logits (NaN included): masked = deleted.
- A logit of -inf is an impossible token: p = 0. An impossible label has loss +inf, and so has any
  label where smoothing asks for the impossible token; gradients stay finite.
- NaN and +inf among a real token's logits show, whatever its label: its loss is NaN, and so is
  its gradient.
- Half-precision logits are summed, and their losses returned, in float32.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Integer, Num

from attn_jax.checks import concrete, require
from attn_jax.precision import accumulate


def mean_cross_entropy(
    logits: Float[ArrayLike, "*rows v"],
    labels: Integer[ArrayLike, "*rows"],
    *,
    where: Bool[ArrayLike, "*rows"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], dict[str, Integer[Array, ""]]]:
    """Sum of `cross_entropy` over real tokens / number of real tokens, and that number.

    How a batch was padded does not change it. Without real tokens the loss and its gradient are 0.

    >>> loss, counts = mean_cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 3, 2]))
    >>> round(float(jnp.exp(loss)), 5), int(counts["tokens"])
    (4.0, 3)
    """
    losses = cross_entropy(logits, labels, where=where, label_smoothing=label_smoothing)
    tokens = jnp.asarray(losses.size) if where is None else jnp.sum(where)
    return jnp.sum(losses) / jnp.maximum(tokens, 1), {"tokens": tokens}


def cross_entropy(
    logits: Float[ArrayLike, "*rows v"],
    labels: Integer[ArrayLike, "*rows"],
    *,
    where: Bool[ArrayLike, "*rows"] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Array, "*rows"]:
    """Each token's -Σ_v q_v log p_v, 0 where it is not real; p = softmax(logits).

    q is 1 at the label. With smoothing ε it is 1 - ε there, and ε is spread evenly over the whole
    vocabulary, the label included. (Szegedy et al. 2016, section 7.) A traced label that is no
    token gives NaN.

    >>> cross_entropy(jnp.log(jnp.array([[0.25, 0.75]])), jnp.array([1])).round(4).tolist()
    [0.2877]
    """
    smoothing = checked_smoothing(label_smoothing)
    (logits,) = accumulate(logits)
    require(logits.ndim > 0 and logits.shape[-1] > 0, "logits", "have an axis of tokens", logits)
    labels, real = checked_labels(labels, where, logits.shape[:-1], logits.shape[-1])
    return token_losses(smoothing, logits, labels, real)


def perplexity(loss_sum: Num[ArrayLike, ""], tokens: Num[ArrayLike, ""]) -> float:
    """exp(loss_sum / tokens) of losses without smoothing; inf where that overflows.

    >>> round(perplexity(3 * np.log(2), 3), 6)
    2.0
    """
    require(tokens > 0, "tokens", "be positive", tokens)
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(loss_sum) / tokens))


def checked_smoothing(label_smoothing: Any) -> float:
    """The smoothing, if it is one."""
    number = isinstance(label_smoothing, int | float | np.integer | np.floating)
    proper = number and 0 <= label_smoothing < 1
    require(proper, "label_smoothing", "be a number, at least 0 and below 1", label_smoothing)
    return float(label_smoothing)


def checked_labels(
    labels: ArrayLike, where: ArrayLike | None, rows: tuple[int, ...], vocabulary: int
) -> tuple[Array, Array]:
    """The labels of rows of logits, and which are real, written out."""
    rule = "be integers, one for each row of logits"
    labels = jnp.asarray(labels)
    integers = jnp.issubdtype(labels.dtype, jnp.integer) and labels.shape == rows
    got = f"{labels.dtype}{list(labels.shape)}, rows {rows}"
    require(integers, "labels", rule, got)
    real = jnp.ones(rows, bool) if where is None else jnp.asarray(where)
    fits = real.dtype == bool and real.shape == rows
    require(fits, "where", "be booleans, one for each row of logits", real)
    _require_tokens(labels, real, vocabulary)
    # small integers could not count the vocabulary
    return labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels, real


def _require_tokens(labels: Array, real: Array, vocabulary: int) -> None:
    known, where = concrete(labels), concrete(real)
    if known is not None and where is not None:
        wrong = known[where & ((known < 0) | (known >= vocabulary))]
        rule = f"be tokens, 0 to {vocabulary - 1} here, where they are real"
        require(wrong.size == 0, "labels", rule, f"{wrong[:1]}")


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def token_losses(smoothing: float, logits: Array, labels: Array, real: Array) -> Array:
    """`cross_entropy` of what is checked."""
    # a negative index would count from the end
    index = jnp.where(labels < 0, logits.shape[-1], labels)[..., None]
    at_label = jnp.take_along_axis(logits, index, axis=-1, mode="fill")[..., 0]
    expected = at_label
    if smoothing:
        expected = (1 - smoothing) * at_label + smoothing * jnp.mean(logits, axis=-1)
    top, log_sum = _parts_of_logsumexp(logits)
    losses = top - expected + log_sum  # a confident token's small loss keeps its digits
    impossible = (at_label == -jnp.inf) & ~jnp.isnan(log_sum)
    return jnp.where(real, jnp.where(impossible, jnp.inf, losses), 0.0)


@token_losses.defjvp
def _token_losses_jvp(smoothing, primals, tangents):
    change = _sum_where_real(_slopes(smoothing, *primals), tangents[0], primals[2])
    return token_losses(smoothing, *primals), change


def _slopes(smoothing: float, logits: Array, labels: Array, real: Array) -> Array:
    """p - q; of rows that are not real anything."""
    hit = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]
    even = smoothing / logits.shape[-1]
    expected = jnp.where(hit, 1 - smoothing + even, even)
    return _probabilities(logits, _logsumexp(logits, real), real) - expected


def token_slopes(smoothing: float, logits: Array, labels: Array, real: Array) -> Array:
    """The gradient of the sum of `token_losses` in the logits."""
    return jnp.where(real[..., None], _slopes(smoothing, logits, labels, real), 0.0)


@jax.custom_jvp
def _logsumexp(logits: Array, real: Array) -> Array:
    top, log_sum = _parts_of_logsumexp(logits)
    return jnp.where(real, top + log_sum, 0.0)


@_logsumexp.defjvp
def _logsumexp_jvp(primals, tangents):
    logits, real = primals
    value = _logsumexp(logits, real)
    return value, _sum_where_real(_probabilities(logits, value, real), tangents[0], real)


def _parts_of_logsumexp(logits: Array) -> tuple[Array, Array]:
    """The greatest logit (0 where all are -inf), and log Σ exp(logits - greatest)."""
    top = jnp.max(logits, axis=-1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    return top[..., 0], jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1))


def _probabilities(logits: Array, logsumexp: Array, real: Array) -> Array:
    """exp(logits - logsumexp); 0 where all is impossible or the row is not real."""
    possible = (real & (logsumexp != -jnp.inf))[..., None]
    exponent = jnp.where(possible, logits - logsumexp[..., None], 0.0)
    return jnp.where(possible, jnp.exp(exponent), 0.0)


def _sum_where_real(slope: Array, tangent: Array, real: Array) -> Array:
    """Σ_v slope · tangent; a row that is not real takes no tangent, so none of its NaN either."""
    return jnp.sum(slope * jnp.where(real[..., None], tangent, 0.0), axis=-1)
