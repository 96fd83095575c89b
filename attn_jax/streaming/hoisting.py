"""Functions made pure: what they close over becomes an argument.

A score that closes over a weight, or a slot that holds one, has to be differentiated in it, so the
weight must be an input of the function that carries the differentiation rule.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.jax_versions import evaluate, manual_axes, subjaxprs
from attn_jax.meshes import varying
from attn_jax.precision import accumulation_dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Hoisted:
    """`function(*x)` as `hoisted(arrays, *x)`, and the shapes and dtypes of what it returns."""

    call: Callable
    shapes: Any

    def __call__(self, arrays: list[Any], *arguments: Any) -> Any:
        return self.call(arrays, *arguments)


class Hoisting:
    """Makes functions pure; `arrays` is what they close over, each array once.

    Half-precision arrays are handed out in float32: what a loop adds to their derivative is then
    rounded once, at its end.
    """

    def __init__(self):
        self._constants: list[Any] = []

    @property
    def arrays(self) -> list[Array]:
        """What all hoisted functions get as their first argument."""
        return [widened(each) for each in self._constants]

    def __call__(self, function: Callable, *examples: Any) -> Hoisted:
        """Trace a function at arguments like the examples.

        Inside `jax.shard_map` no argument may vary over more axes than its example.
        """
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
        structure = jax.tree.structure(shapes)

        def of_arrays(arrays, *arguments):
            return evaluate(closed.jaxpr, arrays, *jax.tree.leaves(arguments))

        # once more, with arrays for what it closes over: a jaxpr of JAX 0.12 keeps its constants
        jaxpr = jax.make_jaxpr(of_arrays)(closed.consts, *examples).jaxpr
        places = [self._place(each) for each in closed.consts]
        dtypes = [jnp.result_type(each) for each in closed.consts]
        axes = [manual_axes(each) for each in closed.in_avals]

        def call(arrays, *arguments):
            own = [
                arrays[place].astype(dtype) if is_float(arrays[place]) else arrays[place]
                for place, dtype in zip(places, dtypes, strict=True)
            ]
            arguments = map(varying, jax.tree.leaves(arguments), axes)
            leaves = evaluate(jaxpr, [], *own, *arguments)
            return structure.unflatten(leaves)

        return Hoisted(call, shapes)

    def _place(self, constant: Any) -> int:
        for place, each in enumerate(self._constants):
            if each is constant:
                return place
        self._constants.append(constant)
        return len(self._constants) - 1


def numbers_per_pair(score: Callable, query: Any, key: Any) -> int:
    """How many numbers of each pair the score's largest array has: d for [q, k, d], else 1."""
    n = max(128, query.shape[1], key.shape[1])
    many = [jax.ShapeDtypeStruct((n, each.shape[1]), each.dtype) for each in (query, key)]
    return max(1, _largest(jax.make_jaxpr(score)(*many).jaxpr) // n**2)


def _largest(jaxpr: Any) -> int:
    sizes = [each.aval.size for equation in jaxpr.eqns for each in equation.outvars]
    return max([*sizes, *map(_largest, subjaxprs(jaxpr))], default=0)


def is_float(array: Any) -> bool:
    """Whether an array can be differentiated in."""
    return jnp.issubdtype(jnp.result_type(array), jnp.floating)


def widened(array: Any) -> Array:
    """A half-precision array in float32, any other as it is."""
    if not is_float(array):
        return jnp.asarray(array)
    return jnp.asarray(array, accumulation_dtype(array))
