"""A module's method as one program: called as it is, each operation of each shape compiles."""

import functools

import jax
from flax import nnx


def compiled(module, method=None):
    """`module(...)`, or its method of that name, with the parameters that it has now."""
    graphdef, state = nnx.split(module)

    @jax.jit
    def run(state, *arguments, **options):
        merged = nnx.merge(graphdef, state)
        return (merged if method is None else getattr(merged, method))(*arguments, **options)

    return functools.partial(run, state)
