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
import jax.extend.core
from jax.ad_checkpoint import checkpoint_name
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

_function_p = jax.extend.core.Primitive("differentiable")
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
        jaxpr = jax.make_jaxpr(self.call)(*arrays)
        return _function_p.bind(*arrays, jaxpr=jaxpr, function=self)


def _jvp(arrays: Any, tangents: Any, *, jaxpr: Any, function: Differentiable) -> Any:
    outputs = _function_p.bind(*arrays, jaxpr=jaxpr, function=function)
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


def _batch(arrays: Any, axes: Any, *, jaxpr: Any, function: Differentiable) -> Any:
    del jaxpr

    def tangent(arrays, outputs, tangents):
        moving = [n for n, each in enumerate(tangents) if each is not None]

        def one(arrays, outputs, changes):
            filled = [None] * len(tangents)
            for n, change in zip(moving, changes, strict=True):
                filled[n] = change
            return function.tangent(arrays, outputs, filled)

        changes = [tangents[n] for n in moving]
        in_axes = list(axes), 0, [axes[n] for n in moving]
        return jax.vmap(one, in_axes=in_axes)(list(arrays), list(outputs), changes)

    batched = Differentiable(jax.vmap(function.call, in_axes=tuple(axes)), tangent, function.linear)
    outputs = batched(*arrays)
    return outputs, [0] * len(outputs)


def _transpose(cotangents: Any, *arrays: Any, jaxpr: Any, function: Differentiable) -> Any:
    """In arrays in which the function is linear: its derivative there, at zero, turned around."""
    moving = [n for n, each in enumerate(arrays) if ad.is_undefined_primal(each)]
    assert function.linear.issuperset(moving), "linear_transpose of what is not linear"

    def of_moving(*values):
        filled = list(arrays)
        for n, value in zip(moving, values, strict=True):
            filled[n] = value
        return _function_p.bind(*filled, jaxpr=jaxpr, function=function)

    zeros = [ad.zeros_like_aval(arrays[n].aval) for n in moving]
    _, pull = jax.vjp(of_moving, *zeros)
    pulled = iter(pull(list(map(ad.instantiate_zeros, cotangents))))
    return [next(pulled) if n in moving else None for n in range(len(arrays))]


def _evaluate(*arrays: Any, jaxpr: Any, function: Differentiable) -> list[Array]:
    del function
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arrays)


_function_p.def_impl(_evaluate)
_function_p.def_abstract_eval(lambda *arrays, jaxpr, function: jaxpr.out_avals)
ad.primitive_jvps[_function_p] = _jvp
ad.primitive_transposes[_function_p] = _transpose
batching.primitive_batchers[_function_p] = _batch
mlir.register_lowering(_function_p, mlir.lower_fun(_evaluate, multiple_results=True))
