"""A module's slots, stored so that NNX sees their arrays as it sees a layer's kernel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.checks import require


class Fixed(nnx.Variable):
    """A parameter that training leaves alone."""


class Slots(nnx.Module):
    """Slots whose arrays are variables: `nnx.state`, `nnx.update` and checkpoints reach them.

    An array of floating-point numbers is an `nnx.Param`, so training changes it; booleans and
    integers, which have no derivative, are `Fixed`. A variable in a slot keeps its kind and its
    metadata: `Softmax(Fixed(jnp.array(0.5)))` is not trained. Python numbers and functions are
    constants. A module in a slot, or as one, is a module in this one.

    An array's path is the slot's name and its fields': slots / normalizer / sink. Arrays,
    variables and modules are copies, so modules that are given the same slot learn apart.

    >>> from attn_jax import Softmax
    >>> slots = Slots(normalizer=Softmax(jnp.array(0.5)), mask=None)
    >>> slots.normalizer["sink"][...].item(), slots["normalizer"].sink.item()
    (0.5, 0.5)
    """

    def __init__(self, **slots: Any):
        forms = {}
        for name, slot in slots.items():
            free = not name.startswith("_") and not hasattr(nnx.Module, name)
            require(free, "slots", "have names that nnx.Module leaves free", repr(name))
            forms[name], stored = _parts(slot)
            if stored is not None:
                setattr(self, name, nnx.data(stored))
        self._forms = nnx.static(tuple(forms.items()))

    def __getitem__(self, name: str) -> Any:
        """A slot with its arrays now."""
        structure, places = dict(self._forms)[name]
        stored = getattr(self, name, None)
        leaves = [_now(stored, keys) if keys is not None else leaf for keys, leaf in places]
        return jax.tree.unflatten(structure, leaves)


def _parts(slot: Any) -> tuple[Any, Any]:
    """A slot's form, what is constant in it included; and its variables in dictionaries, or None.

    The form is (structure, ((keys of a variable, None) or (None, constant) for each leaf)).
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(slot, is_leaf=_is_state)
    stored, places = {}, []
    for path, leaf in leaves:
        variable = _variable(leaf)
        if variable is None:
            places.append((None, leaf))
            continue
        keys, around = (_OWN, *map(_key, path)), stored
        for key in keys[:-1]:
            around = around.setdefault(key, {})
        around[keys[-1]] = variable
        places.append((keys[1:], None))
    return (structure, tuple(places)), stored.get(_OWN)


_OWN = ""  # stands before a path, so that a slot that is itself a leaf has one too


def _now(stored: Any, keys: tuple[str | int, ...]) -> Any:
    """The array, or the module, that is stored at these keys."""
    for key in keys:
        stored = stored[key]
    return stored.get_value() if isinstance(stored, nnx.Variable) else stored


def _key(key: Any) -> str | int:
    """A step of a path as NNX writes it: places in a sequence are integers."""
    found = getattr(key, "idx", getattr(key, "key", None))
    return found if isinstance(found, str | int) else jax.tree_util.keystr((key,), simple=True)


def _is_state(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable | nnx.Module)


def _variable(leaf: Any) -> nnx.Variable | nnx.Module | None:
    """What NNX keeps of a leaf; None for a constant."""
    if isinstance(leaf, nnx.Module):
        return nnx.clone(leaf)
    if isinstance(leaf, nnx.Variable):
        return leaf.copy(_array(leaf.get_value()))
    if not isinstance(leaf, jax.Array | np.ndarray):
        return None
    learned = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return (nnx.Param if learned else Fixed)(_array(leaf))


def _array(leaf: Any) -> jax.Array:
    """A copy, whose buffer may be donated; of a type that is not weak, which no file remembers."""
    leaf = jnp.asarray(leaf)
    return jnp.array(leaf, leaf.dtype)
