"""A function with a differentiation rule that partial evaluation keeps.

Where JAX computes a part of a program ahead of the rest, as reverse mode does with the body of a
`lax.scan`, it replaces a `jax.custom_jvp` function by what it calls: a second derivative would then
differentiate the loops of the forward pass. A primitive stays itself, so its rule serves every
order, inside `scan`, `jax.checkpoint` and their combinations.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from attn_jax.jax_versions import Primitive, evaluate, is_literal

_function_p = Primitive("differentiable")
_function_p.multiple_results = True


@dataclasses.dataclass(frozen=True, eq=False)
class Differentiable:
    """`call(*arrays) -> outputs` and its rule, pure functions of lists of arrays.

    `tangent(arrays, outputs, tangents)` gives the tangents of the outputs: linear in `tangents`,
    which are None where they are zero, with None for an output of integers. `linear` numbers the
    arrays in which the function is linear. `name` is that of the outputs, which a policy of
    `jax.checkpoint` may keep so that they are not computed once more.
    """

    call: Callable[..., list[Array]]
    tangent: Callable[[Sequence[Array], Sequence[Array], Sequence[Any]], list[Any]]
    linear: frozenset[int] = frozenset()
    name: str | None = None

    def __call__(self, *arrays: Any) -> list[Array]:
        traced = _Traced(jax.make_jaxpr(self.call)(*arrays))
        return _function_p.bind(*arrays, traced=traced, function=self)


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """The jaxpr of a call, wrapped: JAX transforms what it finds in a primitive's parameters."""

    jaxpr: Any


def _jvp(arrays: Any, tangents: Any, *, traced: _Traced, function: Differentiable) -> Any:
    outputs = _function_p.bind(*arrays, traced=traced, function=function)
    if function.name is not None:
        outputs = [checkpoint_name(each, function.name) for each in outputs]
    moving = [None if _is_zero(each) else each for each in tangents]
    changes = function.tangent(arrays, outputs, moving)
    return outputs, [
        ad.Zero(jax.typeof(each).to_tangent_aval()) if change is None else change
        for each, change in zip(outputs, changes, strict=True)
    ]


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _batch(axis: Any, arrays: Any, axes: Any, *, traced: _Traced, function: Differentiable) -> Any:
    """The function of a batch; an output that no batched array reaches stays one of all."""
    reached = _reached(traced.jaxpr.jaxpr, [each is not None for each in axes])
    out_axes = [0 if each else None for each in reached]
    named = {"axis_size": axis.size, "spmd_axis_name": axis.spmd_name}
    if isinstance(axis.name, str):
        named["axis_name"] = axis.name

    def call(*arrays):
        return jax.vmap(function.call, tuple(axes), out_axes, **named)(*arrays)

    def tangent(arrays, outputs, tangents):
        moving = [n for n, each in enumerate(tangents) if each is not None]

        def one(arrays, outputs, changes):
            filled = [None] * len(tangents)
            for n, change in zip(moving, changes, strict=True):
                filled[n] = change
            return function.tangent(arrays, outputs, filled)

        changes = [tangents[n] for n in moving]
        in_axes = list(axes), out_axes, [axes[n] for n in moving]
        of_outputs = jax.vmap(one, in_axes, out_axes, **named)
        return of_outputs(list(arrays), list(outputs), changes)

    outputs = dataclasses.replace(function, call=call, tangent=tangent)(*arrays)
    return outputs, out_axes


def _transpose(cotangents: Any, *arrays: Any, traced: _Traced, function: Differentiable) -> Any:
    """In arrays in which the function is linear: its derivative there, at zero, transposed."""
    moving = [n for n, each in enumerate(arrays) if ad.is_undefined_primal(each)]
    assert function.linear.issuperset(moving), "linear_transpose of what is not linear"

    def of_moving(*values):
        filled = list(arrays)
        for n, value in zip(moving, values, strict=True):
            filled[n] = value
        return _function_p.bind(*filled, traced=traced, function=function)

    zeros = [ad.zeros_like_aval(arrays[n].aval) for n in moving]
    _, pull = jax.vjp(of_moving, *zeros)
    pulled = iter(pull(list(map(ad.instantiate_zeros, cotangents))))
    return [next(pulled) if n in moving else None for n in range(len(arrays))]


def _reached(jaxpr: Any, batched: list[bool]) -> list[bool]:
    """Which outputs depend on an input that is batched."""
    found = {variable for variable, is_in in zip(jaxpr.invars, batched, strict=True) if is_in}
    for equation in jaxpr.eqns:
        if any(not is_literal(each) and each in found for each in equation.invars):
            found.update(equation.outvars)
    return [not is_literal(each) and each in found for each in jaxpr.outvars]


def _evaluate(*arrays: Any, traced: _Traced, function: Differentiable) -> list[Array]:
    del function
    return evaluate(traced.jaxpr.jaxpr, traced.jaxpr.consts, *arrays)


def _types(*arrays: Any, traced: _Traced, function: Differentiable) -> Any:
    del arrays, function
    return traced.jaxpr.out_avals, traced.jaxpr.effects


_function_p.def_impl(_evaluate)
_function_p.def_effectful_abstract_eval(_types)
ad.primitive_jvps[_function_p] = _jvp
ad.primitive_transposes[_function_p] = _transpose
batching.fancy_primitive_batchers[_function_p] = _batch
mlir.register_lowering(_function_p, mlir.lower_fun(_evaluate, multiple_results=True))
