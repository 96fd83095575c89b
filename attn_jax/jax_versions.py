"""What is used of JAX beside its public interface, where its versions differ: 0.10 to 0.12.

The primitive's rules (`attn_jax/primitive.py`) use `jax.interpreters` besides.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.extend.core

Primitive = jax.extend.core.Primitive


def evaluate(jaxpr: Any, constants: Sequence[Any], *arguments: Any) -> list[Any]:
    """The outputs of a jaxpr that is not closed."""
    return jax.core.eval_jaxpr(jaxpr, constants, *arguments)


def subjaxprs(jaxpr: Any) -> Iterator[Any]:
    """The jaxprs that a jaxpr's equations call."""
    return jax.extend.core.subjaxprs(jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an input of an equation is a constant written in it, and no variable."""
    return isinstance(atom, jax.extend.core.Literal)


def manual_axes(aval: Any) -> frozenset:
    """The manual mesh axes over which an array of this type varies, inside `jax.shard_map`."""
    return aval.manual_axis_type.varying


def wait_for_processes(name: str, seconds: float) -> None:
    """Wait until all processes of `jax.distributed` wait under this name."""
    from jax._src import distributed

    distributed.global_state.client.wait_at_barrier(name, int(1000 * seconds))
