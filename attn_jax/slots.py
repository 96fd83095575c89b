"""Slots: small frozen dataclasses whose arrays are pytree leaves.

`grad`, `vmap`, `jit` and Optax reach a learned bandwidth, an additive vector, a sink logit or
entmax's alpha because they are leaves. Three kinds of fields:

| field | written | in the pytree |
|---|---|---|
| number, array, other slot | `scale: float = 1.0` | leaf or subtree |
| function, flag | `kernel: Callable = static(gaussian)` | static: part of the structure |
| position or length | `offset: int = index(0)` | a Python int is static, an array is a leaf |

Slots compare equal by their fields, so those that hold arrays neither compare nor hash.
A static position lets an implementation skip what a mask empties; a traced one serves decoding.
"""

import dataclasses
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.checks import as_array
from attn_jax.precision import computable


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field that belongs to the pytree's structure (hashable: a function, a flag)."""
    return dataclasses.field(default=default, metadata={"kind": "static"})


def index(default: Any = dataclasses.MISSING) -> Any:
    """A field for positions and lengths: static as a Python int, a leaf as an array."""
    return dataclasses.field(default=default, metadata={"kind": "index"})


@dataclass_transform(frozen_default=True, field_specifiers=(static, index))
def slot(cls: type) -> type:
    """Make a class a frozen dataclass and a pytree.

    `__post_init__` checks what a caller passes; JAX rebuilds slots without it, so leaves may be
    tracers or placeholders. Lists and NumPy arrays become JAX arrays, one integer of NumPy becomes
    Python's where that is static, and a leaf's int beyond int32, which JAX refuses, a float.
    """
    check = cls.__dict__.get("__post_init__")

    def __post_init__(self):  # noqa: N807 - dataclasses looks for this name
        for field in dataclasses.fields(self):
            kind = field.metadata.get("kind", "leaf")
            value = _stored(getattr(self, field.name), kind, field.name)
            object.__setattr__(self, field.name, value)
        if check is not None:
            check(self)

    cls.__post_init__ = __post_init__
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = [(f.name, f.metadata.get("kind", "leaf")) for f in dataclasses.fields(cls)]

    def is_static(value, kind):
        return kind == "static" or (kind == "index" and (value is None or type(value) is int))

    def flatten_with_keys(self):
        values = [(name, getattr(self, name), kind) for name, kind in fields]
        leaves = [(n, v) for n, v, kind in values if not is_static(v, kind)]
        meta = tuple((n, v) for n, v, kind in values if is_static(v, kind))
        children = [(jax.tree_util.GetAttrKey(n), v) for n, v in leaves]
        return children, (tuple(n for n, _ in leaves), meta)

    def unflatten(structure, leaves):
        names, meta = structure
        self = object.__new__(cls)
        for name, value in (*zip(names, leaves, strict=True), *meta):
            object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls


def _stored(value: Any, kind: str, name: str) -> Any:
    """What a field holds of what a caller passes."""
    one_integer = isinstance(value, (np.generic, np.ndarray)) and value.shape == ()
    if kind != "leaf" and one_integer and np.issubdtype(value.dtype, np.integer):
        return int(value)
    if kind != "static" and isinstance(value, (list, np.ndarray)):
        value = as_array(value, name)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, np.number):
        return computable(value)
    if kind == "leaf" and type(value) is int and 2**31 <= abs(value) < 2**1023:
        return float(value)
    return value


def is_pure(slot: Any) -> bool:
    """Whether a slot is made of the library's parts alone: its arrays decide all that it does.

    What someone else's function closes over may change, or be traced, from one call to the next.

    >>> is_pure((1.0, None)), is_pure(jnp.tanh)
    (True, False)
    """
    if isinstance(slot, tuple):
        return all(map(is_pure, slot))
    if slot is None or isinstance(slot, (int, float, jax.Array)):
        return True
    ours = str(getattr(slot, "__module__", "")).startswith("attn_jax.")
    return ours and all(map(is_pure, getattr(slot, "__dict__", {}).values()))
