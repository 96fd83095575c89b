"""Inside `jax.shard_map`: which mesh axes an array varies over.

A loop's carry has to vary over the same axes before and after a step, so what it starts from is
made to vary over the axes of all that enters it.
"""

from typing import Any

import jax


def axes_of(tree: Any) -> frozenset:
    """The manual mesh axes over which some array of the tree varies; none outside shard_map."""
    leaves = jax.tree.leaves(tree)
    return frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in leaves))


def varying(tree: Any, axes: frozenset) -> Any:
    """The tree's arrays, varying over these axes."""

    def one(x):
        missing = tuple(axes - jax.typeof(x).manual_axis_type.varying)
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(one, tree) if axes else tree
