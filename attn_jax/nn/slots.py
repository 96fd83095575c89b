"""A module's slots, held so that NNX sees their arrays as it sees a layer's kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Fixed(nnx.Variable):
    """A parameter that training leaves alone."""


class Slots(nnx.Module):
    """Slots whose arrays are variables: `nnx.state`, `nnx.update` and checkpoints reach them.

    An array of floating-point numbers is an `nnx.Param`, so training changes it; booleans and
    integers, which have no derivative, are `Fixed`. A variable in a slot keeps its kind:
    `Softmax(Fixed(jnp.array(0.5)))` is not trained. Python numbers and functions are constants.

    An array's path is the slot's name and its fields': slots / normalizer / sink. It is a copy, so
    modules that are given the same slot learn apart.

    >>> from attn_jax import Softmax
    >>> slots = Slots(normalizer=Softmax(jnp.array(0.5)), mask=None)
    >>> slots.normalizer["sink"][...].item(), slots["normalizer"].sink.item()
    (0.5, 0.5)
    """

    def __init__(self, **slots: Any):
        leaves, form = jax.tree_util.tree_flatten_with_path(slots, is_leaf=_is_state)
        held, places = {}, []
        for path, leaf in leaves:
            state = _state(leaf)
            keys = tuple(map(_name, path))
            places.append((keys, None if state is not None else leaf))
            if state is not None:
                around = held
                for key in keys[:-1]:
                    around = around.setdefault(key, {})
                around[keys[-1]] = state
        self._form = nnx.static((form, tuple(places)))
        for name, state in held.items():
            setattr(self, name, nnx.data(state))

    def __getitem__(self, name: str) -> Any:
        """A slot with its arrays now."""
        form, places = self._form
        leaves = [self._now(keys) if constant is None else constant for keys, constant in places]
        return jax.tree.unflatten(form, leaves)[name]

    def _now(self, keys: tuple[str | int, ...]) -> Any:
        found = getattr(self, keys[0])
        for key in keys[1:]:
            found = found[key]
        return found.get_value() if isinstance(found, nnx.Variable) else found


def _name(key: Any) -> str | int:
    """A step of a path as NNX writes it: places in a sequence are integers."""
    name = jax.tree_util.keystr((key,), simple=True)
    return int(name) if name.isdecimal() else name


def _is_state(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable | nnx.Module)


def _state(leaf: Any) -> nnx.Variable | nnx.Module | None:
    """What NNX keeps of a leaf; None for a constant."""
    if isinstance(leaf, nnx.Module):
        return leaf
    if isinstance(leaf, nnx.Variable):
        return type(leaf)(_array(leaf.get_value()))
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    learned = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return (nnx.Param if learned else Fixed)(_array(leaf))


def _array(leaf: Any) -> jax.Array:
    """A copy, whose buffer may be donated; of a type that is not weak, which no file remembers."""
    leaf = jnp.asarray(leaf)
    return jnp.array(leaf, leaf.dtype)
