"""Slots: small frozen dataclasses whose arrays are pytree leaves.

`grad`, `vmap`, `jit` and Optax reach a learned bandwidth, an additive vector, a sink logit or
entmax's alpha because they are leaves. Three kinds of fields:

| field | written | in the pytree |
|---|---|---|
| number, array, other slot | `scale: float = 1.0` | leaf or subtree |
| function, flag | `kernel: Callable = static(default=gaussian)` | static: part of the structure |
| position, length | `offset: int = index(default=0)` | a Python int is static, an array is a leaf |

The annotation of a field, "... d", says how many axes its array has for one head (`ranks_of`).
One more axis in front holds an array for each head [h, …], two hold one for each example and head
[b, h, …], as `jax.vmap` makes them: `multi_head_attention` takes them apart.

Slots compare equal by their fields, so those that hold arrays neither compare nor hash.
A static position lets an implementation skip what a mask empties; a traced one serves decoding.
"""

import copy
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.checks import as_array, require
from attn_jax.precision import computable

T = TypeVar("T")


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """A field that belongs to the pytree's structure (hashable: a function, a flag)."""
    return dataclasses.field(default=default, metadata={"kind": "static"})


def index(*, default: Any = dataclasses.MISSING) -> Any:
    """A field for positions and lengths: static as a Python int, a leaf as an array."""
    return dataclasses.field(default=default, metadata={"kind": "index"})


@dataclass_transform(frozen_default=True, field_specifiers=(static, index))
def slot(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree.

    `__post_init__` checks what a caller passes; JAX rebuilds slots without it, so leaves may be
    tracers or placeholders. Lists and NumPy arrays become JAX arrays, one integer of NumPy becomes
    Python's where that is static, and a leaf's int beyond int32, which JAX refuses, a float.
    """
    check = cls.__dict__.get("__post_init__")
    ranks = {name: _ranks(hint) for name, hint in cls.__annotations__.items()}

    def __post_init__(self):  # noqa: N807 - dataclasses looks for this name
        for field in dataclasses.fields(self):
            kind = field.metadata.get("kind", "leaf")
            value = _stored(getattr(self, field.name), kind, field.name)
            object.__setattr__(self, field.name, value)
        if check is not None:
            for one in _heads(self, ranks):
                check(one)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined] # dataclasses looks for it
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
    cls.field_ranks = ranks  # type: ignore[attr-defined] # `ranks_of` looks for it
    if (call := cls.__dict__.get("__call__")) is not None:

        @functools.wraps(call)
        def of_one_head(self, *arguments, **options):
            require_one_head(self)
            return call(self, *arguments, **options)

        cls.__call__ = of_one_head
    return cls


def _ranks(hint: Any) -> frozenset[int]:
    """How many axes the arrays of an annotation may have; none where it names no array."""
    arrays = [each for each in (hint, *typing.get_args(hint)) if hasattr(each, "dim_str")]
    return frozenset(sum(axis != "..." for axis in each.dim_str.split()) for each in arrays)


def extra_axes(array: Any, ranks: frozenset[int]) -> int:
    """How many axes an array, or Flax's variable of one, has in front of those of one head."""
    array = array.get_value() if hasattr(array, "get_value") else array
    if not ranks or not isinstance(array, (jax.Array, np.ndarray)):
        return 0
    one = max(ranks)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        one = min(ranks)  # a raw key is an array of numbers
    return max(array.ndim - one, 0)


def _heads(self: Any, ranks: dict[str, frozenset[int]]) -> Iterator[Any]:
    """A slot for each head, as its class checks them; the slot itself where it is of one."""
    leading = {name: extra_axes(getattr(self, name), each) for name, each in ranks.items()}
    leading = {name: count for name, count in leading.items() if count in (1, 2)}
    if not leading:
        yield self
        return
    shapes = {name: getattr(self, name).shape[:count] for name, count in leading.items()}
    known = all(isinstance(size, int) for shape in shapes.values() for size in shape)
    if not known:  # symbolic in `jax.export`: one stands for all
        shapes = {name: (1,) * len(shape) for name, shape in shapes.items()}
    for place in np.ndindex(*np.broadcast_shapes(*shapes.values())):
        one = copy.copy(self)
        for name, shape in shapes.items():
            own = place[len(place) - len(shape) :]
            at = tuple(i if size != 1 else 0 for i, size in zip(own, shape, strict=True))
            object.__setattr__(one, name, getattr(self, name)[at])
        yield one


def ranks_of(slots: Any) -> list[frozenset[int]]:
    """How many axes each leaf of a tree of slots has for one head; none where nobody says.

    >>> from attn_jax import Alibi, Bias
    >>> ranks_of((Bias(jnp.zeros((2, 3))), Alibi(0.5), jnp.zeros(3)))
    [frozenset({2}), frozenset({0}), frozenset()]
    """

    def of(path):
        *above, last = path
        owner = slots
        for key in above:
            if isinstance(key, jax.tree_util.GetAttrKey):
                owner = getattr(owner, key.name)
            elif isinstance(key, jax.tree_util.SequenceKey):
                owner = owner[key.idx]
            elif isinstance(key, jax.tree_util.DictKey):
                owner = owner[key.key]
            else:  # of somebody else's tree
                return frozenset()
        ranks = getattr(owner, "field_ranks", {})
        return ranks.get(getattr(last, "name", None), frozenset())

    return [of(path) for path, _ in jax.tree_util.tree_leaves_with_path(slots) if path]


def has_heads(slots: Any) -> bool:
    """Whether a tree of slots holds an array for each head."""
    leaves = jax.tree.leaves(slots)
    return any(map(extra_axes, leaves, ranks_of(slots)))


def require_one_head(slots: Any) -> None:
    """Refuse arrays of several heads where there is one."""
    leaves = jax.tree_util.tree_leaves_with_path(slots)
    for (path, leaf), ranks in zip(leaves, ranks_of(slots), strict=True):
        if extra_axes(leaf, ranks):
            name = jax.tree_util.keystr(path[-1:], simple=True)
            rule = f"have {max(ranks)} axes for one head (multi_head_attention takes one per head)"
            require(False, name, rule, leaf)


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

    What a function closes over may change, or be traced, from one call to the next. Only functions
    that a module of the library holds under their own name close over nothing that could.

    >>> is_pure((1.0, None)), is_pure(is_pure), is_pure(jnp.tanh)
    (True, True, False)
    """
    if isinstance(slot, dict):
        return all(map(is_pure, slot.values()))
    if isinstance(slot, (tuple, list)):
        return all(map(is_pure, slot))
    if slot is None or isinstance(slot, (int, float, str, np.generic, np.ndarray, jax.Array)):
        return True
    if isinstance(slot, jax.tree_util.Partial):
        return is_pure((slot.func, slot.args, slot.keywords))
    if isinstance(slot, types.FunctionType):
        there = sys.modules.get(slot.__module__)
        for name in slot.__qualname__.split("."):
            there = getattr(there, name, None)
        return _is_ours(slot.__module__) and there is slot
    return _is_ours(type(slot).__module__) and all(map(is_pure, vars(slot).values()))


def _is_ours(module: Any) -> bool:
    return str(module).startswith("attn_jax.")


def compiled(function: Callable, *fixed: Any, as_they_are: tuple[type, ...] = ()) -> Callable:
    """`function(*arguments, *fixed)` as a function of the arguments, compiled.

    Once for equal shapes and an equal structure: arrays and floating-point numbers are traced, all
    else is part of the program, and so are the numbers of slots of the types `as_they_are`. Where a
    function of somebody else's is among the fixed ones it is compiled anew by each call of
    `compiled`: its surroundings may have changed.

    >>> float(compiled(jnp.multiply, 2.0)(3.0))
    6.0
    """

    def is_leaf(x):
        return isinstance(x, as_they_are) and not any(
            isinstance(each, (jax.Array, np.ndarray)) for each in jax.tree.leaves(x)
        )

    leaves, structure = jax.tree.flatten(fixed, is_leaf=is_leaf)
    arrays, plain = apart(leaves)
    static = function, plain, structure
    if is_pure((function, fixed)):
        return lambda *arguments: _run(arguments, arrays, static)
    own = jax.jit(lambda arguments, arrays: _call(arguments, arrays, static))
    return lambda *arguments: own(arguments, arrays)


def apart(leaves: Sequence[Any], *, known: bool = False) -> tuple[list[Any], tuple[Any, ...]]:
    """Leaves that may be traced, and those that stay as they are, each with None for the others.

    Floating-point numbers are traced, so that each value does not compile again, unless they have
    to be `known`: entmax chooses its iteration by alpha.
    """
    leaves = [each.item() if isinstance(each, np.generic) else each for each in leaves]
    traced = [
        isinstance(x, (jax.Array, np.ndarray)) or (type(x) is float and not known) for x in leaves
    ]
    arrays = [
        (jnp.asarray(x) if isinstance(x, np.ndarray) else x) if traces else None
        for x, traces in zip(leaves, traced, strict=True)
    ]
    return arrays, tuple(None if traces else x for x, traces in zip(leaves, traced, strict=True))


def together(arrays: Sequence[Any], plain: Sequence[Any]) -> list[Any]:
    """The leaves that were set apart."""
    return [one if other is None else other for one, other in zip(arrays, plain, strict=True)]


def _call(arguments: tuple, arrays: list[Any], static: tuple) -> Any:
    function, plain, structure = static
    return function(*arguments, *structure.unflatten(together(arrays, plain)))


_run = jax.jit(_call, static_argnums=2)
