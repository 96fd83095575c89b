"""Inside a caller's mesh: which axes an array varies over, and how it is sharded.

Inside `jax.shard_map` a loop's carry has to vary over the same axes before and after a step, and
so have the results of a branch: what starts from a constant is made `varying`.

On an explicit mesh (what `jax.make_mesh` makes) every array's type has its sharding, and a gather,
a scatter or a sort over a sharded axis has none that JAX could derive: `automatic` lets the
compiler find one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from attn_jax.jax_versions import manual_axes


def axes_of(tree: Any) -> frozenset:
    """The manual mesh axes over which some array of the tree varies; none outside shard_map."""
    return frozenset().union(*map(_axes, jax.tree.leaves(tree)))


def _axes(x: Any) -> frozenset:
    return manual_axes(jax.typeof(x))


def varying(tree: Any, axes: frozenset) -> Any:
    """The tree's arrays, varying over these axes."""

    def one(x):
        missing = tuple(axes - _axes(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree


def alike(tree: Any, other: Any) -> Any:
    """The tree's arrays, varying over the axes of the other's and sharded as they are.

    >>> alike(jnp.ones(2), jax.ShapeDtypeStruct((2,), "float32")).tolist()
    [1.0, 1.0]
    """

    def one(x, like):
        x = varying(x, _axes(like))
        sharding = jax.typeof(like).sharding
        if not sharding.mesh.explicit_axes or jax.typeof(x).sharding == sharding:
            return x
        return jax.sharding.reshard(x, sharding)

    return jax.tree.map(one, tree, other)


def settled(step: Callable[[Any], Any], carry: Any) -> Any:
    """The first carry of a loop, typed as its steps, carry -> carry, leave it.

    >>> settled(lambda x: x + 1.0, jnp.zeros(1)).tolist()
    [0.0]
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.manual_axes or mesh.explicit_axes:
        for _ in mesh.axis_names:  # each time one more at least, or it is done
            carry = alike(carry, jax.eval_shape(step, carry))
    return carry


def spec(array: Any, axis: int = 0) -> Any:
    """What an explicit mesh shards this axis of an array over; None: nothing."""
    sharding = jax.typeof(array).sharding
    return sharding.spec[axis] if sharding.mesh.explicit_axes and sharding.spec else None


def automatic(function: Callable, *arguments: Any, specs: Any) -> Any:
    """function(*arguments), where on an explicit mesh XLA finds the shardings inside.

    The results are sharded as `specs` says, a tree of PartitionSpecs or a prefix of it. The
    function gets all its arrays as arguments: those that it closes over stay explicit.

    >>> automatic(jnp.sort, jnp.array([2, 1]), specs=PartitionSpec()).tolist()
    [1, 2]
    """
    mesh = _explicit_mesh(arguments)
    if mesh is None:
        return function(*arguments)
    is_spec = {"is_leaf": lambda each: isinstance(each, PartitionSpec)}
    shardings = jax.tree.map(lambda each: NamedSharding(mesh, each), specs, **is_spec)
    run = jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=shardings)
    return run(*jax.tree.map(jnp.asarray, arguments))


def is_explicit(tree: Any) -> bool:
    """Whether the arrays are on an explicit mesh."""
    return _explicit_mesh(tree) is not None


def specs_of(tree: Any) -> Any:
    """How an explicit mesh shards each array of the tree."""
    return jax.tree.map(lambda x: jax.typeof(x).sharding.spec, tree)


def _explicit_mesh(tree: Any) -> Any:
    """The explicit mesh that is set, or else that of the arrays; None without one."""
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(tree)]
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def beside(arrays: Sequence[Array]) -> list[Array]:
    """The arrays, their first axes sharded as that of the first that is: vmap needs one way."""
    axis = next((spec(each) for each in arrays if spec(each) is not None), None)
    if axis is None:
        return list(arrays)

    def placed(array):
        others = (spec(array, n) for n in range(1, array.ndim))
        own = [None if set(_names(axis)).intersection(_names(each)) else each for each in others]
        return automatic(lambda array: array, array, specs=PartitionSpec(axis, *own))

    return [each if spec(each) == axis else placed(each) for each in arrays]


def regrouped(array: Array, shape: tuple[int, ...]) -> Array:
    """array.reshape(shape), the first axis sharded as before: groups of rows become one axis."""
    by_row = PartitionSpec(spec(array))
    return automatic(lambda array: array.reshape(shape), array, specs=by_row)


def repeated(array: Array, copies: int) -> Array:
    """Each row so many times, one after the other, sharded as before."""
    if copies == 1:
        return array
    by_row = PartitionSpec(spec(array))
    return automatic(lambda array: jnp.repeat(array, copies, axis=0), array, specs=by_row)


def everywhere(array: Array) -> Array:
    """The array, not sharded over an explicit mesh: what any index may reach."""
    return automatic(lambda array: array, array, specs=PartitionSpec())


def gathered(table: Array, index: Array) -> Array:
    """table[index], sharded as the index and, where that leaves axes, as the table's features."""
    mesh = _explicit_mesh((table, index))
    if mesh is None:
        return table[index]
    by_index = [spec(index, axis) for axis in range(index.ndim)]
    taken = {name for each in by_index for name in _names(each)}
    features = [spec(table, axis) for axis in range(1, table.ndim)]
    free = [None if taken.intersection(_names(each)) else each for each in features]
    sharding = NamedSharding(mesh, PartitionSpec(*by_index, *free))
    return table.at[index].get(out_sharding=sharding)


def spread_over(array: Array, name: str, axis: int) -> Array:
    """On an explicit mesh the array with this axis, and no other, sharded over this mesh axis."""
    if not is_explicit(array):
        return array
    parts = [spec(array, n) for n in range(array.ndim)]
    parts = [None if name in _names(each) else each for each in parts]
    parts[axis] = name
    return automatic(lambda array: array, array, specs=PartitionSpec(*parts))


def sharded_as(given: Array, array: Array) -> Array:
    """On an explicit mesh the array sharded as the given one, but for its last axis."""
    if not is_explicit(array):
        return array
    parts = [spec(given, n) for n in range(given.ndim - 1)]
    return automatic(lambda array: array, array, specs=PartitionSpec(*parts, None))


def _names(part: Any) -> tuple:
    """The mesh axes of one array axis."""
    return () if part is None else part if isinstance(part, tuple) else (part,)
