"""How many tokens, and how many whole sequences, are right."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from attn_jax.checks import require


def token_accuracy(
    predictions: Integer[ArrayLike, "*rows"] | Float[ArrayLike, "*rows v"],
    labels: Integer[ArrayLike, "*rows"],
    *,
    where: Bool[ArrayLike, "*rows"] | None = None,
) -> Float[Array, ""]:
    """Real tokens that are predicted right / real tokens; 0 without any.

    Logits predict their greatest entry, the first of several; a row with a NaN is wrong.

    >>> token_accuracy(jnp.array([3, 5, 0, 1]), jnp.array([3, 4, 0, 1])).item()
    0.75
    >>> token_accuracy(jnp.array([[0.1, 0.9], [0.8, 0.2]]), jnp.array([1, 1])).item()
    0.5
    """
    predictions, labels = jnp.asarray(predictions), jnp.asarray(labels)
    logits = jnp.issubdtype(predictions.dtype, jnp.floating)
    shape = predictions.shape[:-1] if logits else predictions.shape
    rule = "be tokens of the labels' shape, or logits with one more axis"
    got = f"predictions {shape} (without an axis of logits), labels {labels.shape}"
    require(shape == labels.shape, "predictions", rule, got)
    real = jnp.ones(labels.shape, bool) if where is None else jnp.asarray(where)
    fits = real.dtype == bool and real.shape == labels.shape
    require(fits, "where", "be booleans, one for each label", real)
    right = on_top(predictions, labels) if logits else predictions == labels
    return jnp.sum(right & real) / jnp.maximum(jnp.sum(real), 1)


def on_top(
    logits: Float[Array, "*rows v"], labels: Integer[Array, "*rows"]
) -> Bool[Array, "*rows"]:
    """Whether the label is the greatest entry, the first of several; False where one is NaN.

    A comparison with each entry and a sum: on CPUs an argmax takes twice to eight times as long.
    """
    at_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    below = jnp.where(index < labels[..., None], logits < at_label, logits <= at_label)
    return jnp.sum(jnp.where(below, 0.0, 1.0), axis=-1) == 0


def exact_matches(
    tokens: Integer[ArrayLike, "*rows t"],
    labels: Integer[ArrayLike, "*rows u"],
    *,
    length: Integer[ArrayLike, "*rows"],
    label_length: Integer[ArrayLike, "*rows"],
) -> Bool[Array, "*rows"]:
    """Which sequences equal their labels: as long, and the same tokens; padding does not count.

    >>> tokens, labels = jnp.array([[3, 1, 9], [3, 1, 2]]), jnp.array([[3, 1], [3, 1]])
    >>> two, three = jnp.array([2, 2]), jnp.array([2, 3])
    >>> exact_matches(tokens, labels, length=three, label_length=two).tolist()
    [True, False]
    """
    tokens, labels = jnp.asarray(tokens), jnp.asarray(labels)
    length, label_length = jnp.asarray(length), jnp.asarray(label_length)
    shapes = {tokens.shape[:-1], labels.shape[:-1], length.shape, label_length.shape}
    got = f"{tokens.shape}, {labels.shape}, {length.shape}, {label_length.shape}"
    rule = "have one row for each row of labels, and both one length a row"
    require(len(shapes) == 1, "tokens", rule, got)
    shared = min(tokens.shape[-1], labels.shape[-1])
    position = jnp.arange(shared).reshape((1,) * length.ndim + (shared,))
    same = tokens[..., :shared] == labels[..., :shared]
    return (length == label_length) & jnp.all(same | (position >= length[..., None]), axis=-1)


def exact_match(hypotheses: Sequence[Any], references: Sequence[Any]) -> float:
    """The share of hypotheses that equal their reference: strings, or sequences of tokens.

    >>> exact_match(["2024-05-17", "2023-01-01"], ["2024-05-17", "2023-01-07"])
    0.5
    """
    require(not isinstance(hypotheses, str), "hypotheses", "be a list", hypotheses)
    require(len(hypotheses) > 0, "hypotheses", "not be empty", "0 of them")
    got = f"{len(hypotheses)} hypotheses, {len(references)} references"
    require(len(hypotheses) == len(references), "references", "be one for each hypothesis", got)
    pairs = zip(hypotheses, references, strict=True)
    return sum(_plain(ours) == _plain(theirs) for ours, theirs in pairs) / len(hypotheses)


def _plain(sequence: Any) -> Any:
    """A list of tokens, be it a tuple or an array; a string as it is."""
    return sequence if isinstance(sequence, str) else list(sequence)
