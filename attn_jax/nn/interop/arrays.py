"""How an array of a state dict becomes arrays of ours, and back: pairs of inverse functions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Arrays = Any  # NumPy's, or JAX's: what both can do


class Change(NamedTuple):
    """theirs -> ours, and ours -> theirs; several of ours are a tuple."""

    load: Callable[[Arrays], Any]
    save: Callable[[Any], Arrays]


class Row(NamedTuple):
    """One array of the state dict, under its name there, and where it is in our module."""

    theirs: str
    ours: str | tuple[str, ...]
    change: Change
    optional: bool = False  # in the state dict


def _transposed(array: Arrays) -> Arrays:
    return array.swapaxes(-1, -2)


SAME = Change(lambda array: array, lambda array: array)
TRANSPOSED = Change(_transposed, _transposed)
PLUS_ONE = Change(lambda array: array + 1, lambda array: array - 1)  # Gemma's norms: 1 + w
EVEN_AND_ODD = Change(
    lambda array: (array[..., ::2], array[..., 1::2]),
    lambda parts: np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1),
)


def side_by_side(count: int, change: Change = SAME) -> Change:
    """So many arrays joined along the last axis of ours, each changed."""
    return Change(
        lambda array: tuple(np.split(np.asarray(change.load(array)), count, axis=-1)),
        lambda parts: change.save(np.concatenate(parts, axis=-1)),
    )


def by_head(heads: int, change: Change = SAME) -> Change:
    """Query, key and value of each head side by side, [heads, 3, features] in the last axis."""

    def load(array: Arrays) -> tuple[Arrays, ...]:
        array = np.asarray(change.load(array))
        parts = array.reshape(*array.shape[:-1], heads, 3, -1)
        return tuple(parts[..., i, :].reshape(*array.shape[:-1], -1) for i in range(3))

    def save(parts: Sequence[Arrays]) -> Arrays:
        each = [part.reshape(*part.shape[:-1], heads, -1) for part in parts]
        return change.save(np.stack(each, axis=-2).reshape(*parts[0].shape[:-1], -1))

    return Change(load, save)


def without_rows(count: int) -> Change:
    """Without the first rows, which are never looked up: zeros on the way back."""
    return Change(
        lambda array: array[count:],
        lambda array: np.concatenate([np.zeros((count, array.shape[1]), array.dtype), array]),
    )


def first_row() -> Change:
    """An array whose leading axes, all 1, are left out."""
    return Change(
        lambda array: array.reshape(array.shape[-1]), lambda array: array.reshape(1, 1, -1)
    )


def patches(channels: int, patch: int) -> Change:
    """A convolution's kernel whose stride is its width, as a linear map of pixels."""
    return Change(
        lambda array: array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0]),
        lambda array: array.reshape(patch, patch, channels, -1).transpose(3, 2, 0, 1),
    )
