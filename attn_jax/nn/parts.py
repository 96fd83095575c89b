"""Parts that a block is composed of: norms, activations, and which linear maps have a bias.

A part is a name, or a function that makes one: a norm is what `norm(features, param_dtype=…,
dtype=…, rngs=…)` returns, so `functools.partial(nnx.RMSNorm, epsilon=1e-5)` is one; an activation
is a function of an array, `jax.nn.silu` say, or `Gated` one.
"""

import dataclasses
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Num

from attn_jax.checks import require, require_function
from attn_jax.matmul import affine
from attn_jax.nn.arguments import require_flags

Norm = str | Callable[..., nnx.Module]
Bias = bool | Collection[str]

NORMS = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}
PLACES = ("query", "key", "value", "out", "up", "gate", "down")


@dataclasses.dataclass(frozen=True)
class Gated:
    """One linear map times the activation of another one. (Shazeer 2020, eq. 5.)"""

    function: Callable[[Array], Array]

    def __post_init__(self):
        require_function(self.function, "function", "a function of an array")


Activation = str | Gated | Callable[[Array], Array]

ACTIVATIONS: dict[str, Any] = {
    "gelu": jax.nn.gelu,  # its approximation by tanh, as in GPT-2
    "gelu_exact": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swiglu": Gated(jax.nn.silu),
    "geglu": Gated(jax.nn.gelu),
}


def activation_part(activation: Activation) -> Any:
    """The activation of this name, or the one given."""
    if isinstance(activation, str):
        known = f"be one of {list(ACTIVATIONS)}, a function or Gated(function)"
        require(activation in ACTIVATIONS, "activation", known, repr(activation))
        return ACTIVATIONS[activation]
    if not isinstance(activation, Gated):
        require_function(activation, "activation", "a name, a function or Gated(function)")
    return activation


def norm_part(name: str, norm: Norm, features: int, dtype: Any, rngs: nnx.Rngs) -> nnx.Module:
    """A norm of so many features, by its name or by what makes it.

    >>> norm_part("norm", "rms", 4, None, nnx.Rngs(0))(jnp.full((1, 4), 2.0)).round(3).tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    """
    known = callable(norm) or (isinstance(norm, str) and norm in NORMS)
    require(known, name, f"be one of {list(NORMS)}, or make a norm", repr(norm))
    make = NORMS[norm] if isinstance(norm, str) else norm
    return make(features, param_dtype=float, dtype=dtype, rngs=rngs)


def places_with_bias(bias: Bias) -> tuple[str, ...]:
    """The linear maps that have a bias.

    >>> places_with_bias(False), places_with_bias({"out"})
    ((), ('out',))
    """
    if isinstance(bias, tuple | list | set | frozenset):
        known = f"be True, False or names of {list(PLACES)}"
        require(all(each in PLACES for each in bias), "bias", known, list(bias))
        return tuple(bias)
    require_flags(bias=bias)
    return PLACES if bias else ()


def linear(
    layer: nnx.Linear, inputs: Num[Array, "*n d"], dtype: Any = None
) -> Float[Array, "*n g"]:
    """A linear layer as one product of matrices, in `dtype`; None: what its arrays promote to."""
    kernel = layer.kernel[...]
    dtype = jnp.result_type(inputs, kernel) if dtype is None else dtype
    bias = None if layer.bias is None else layer.bias[...].astype(dtype)
    return affine(inputs.astype(dtype), kernel.astype(dtype), bias)
