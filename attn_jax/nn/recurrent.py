"""Recurrent layers over padded batches: GRU and LSTM.

An example's result, and every gradient, depends on its own `length` entries alone: padding may hold
NaN, outputs on it are zero, the backward direction starts at the true end, and a length of 0 gives
zeros and the initial state.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int

from attn_jax.matmul import affine
from attn_jax.nn.arguments import (
    lengths_of,
    require_flags,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.recurrence import LSTMState, gru, lstm, over_time, real_times

CellName = Literal["gru", "lstm"]


class GRU(nnx.Module):
    """A layer of gated recurrent units. (Cho et al. 2014; see `attn_jax.recurrence.gru`.)

    Args:
      in_features: d of the inputs.
      features: h, the units.
      rngs: a seed for the parameters.

    >>> layer = GRU(2, 3, rngs=nnx.Rngs(0))
    >>> outputs, final = layer(jnp.ones((1, 5, 2)), jnp.array([4]))
    >>> outputs.shape, bool(outputs[0, 4].any()), bool((outputs[0, 3] == final[0]).all())
    ((1, 5, 3), False, True)
    """

    gates = 3

    def __init__(self, in_features: int, features: int, *, rngs: nnx.Rngs):
        in_features, features = sizes_of(in_features=in_features, features=features)
        require_rngs(rngs)
        self.features = features
        self.input_kernel, self.input_bias = _input(in_features, features, self.gates, rngs)
        self.recurrent_kernel = _recurrent(features, self.gates, rngs)
        self.recurrent_bias = nnx.Param(jnp.zeros(features))

    def project(self, inputs: Float[Array, "*n d"]) -> Float[Array, "*n g"]:
        """The part of a step that sees the inputs alone, for all times at once."""
        return affine(inputs, self.input_kernel[...], self.input_bias[...])

    def step(self, projected: Float[Array, "b g"], state: Any) -> Any:
        """The next state."""
        return gru(projected, state, self.recurrent_kernel[...], self.recurrent_bias[...])

    def initial(self, hidden: Float[Array, "b h"]) -> Any:
        """The first state with these hidden units."""
        return hidden

    def hidden(self, state: Any) -> Float[Array, "b h"]:
        """The hidden units of a state: the layer's output."""
        return state

    def __call__(
        self,
        inputs: Float[ArrayLike, "b t d"],
        length: Int[ArrayLike, " b"] | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[Float[Array, "b t h"], Any]:
        """The hidden units at each time, and the last state; from zeros on."""
        require_flags(reverse=reverse)
        inputs, real = rows_of("inputs", inputs, self.input_kernel.shape[0]), None
        if length is not None:
            length = lengths_of("length", length, *inputs.shape[:2])
            inputs, real = without_padding(inputs, length), real_times(length, inputs.shape[1])
        outputs, final = run(self, jnp.swapaxes(inputs, 0, 1), real, reverse=reverse)
        return jnp.swapaxes(outputs, 0, 1), final


class LSTM(GRU):
    """A layer of long short-term memory. (Hochreiter & Schmidhuber 1997.)

    The forget gate's bias starts at 1 (Jozefowicz et al. 2015). Arguments as for `GRU`.

    >>> LSTM(2, 3, rngs=nnx.Rngs(0))(jnp.ones((1, 5, 2)))[1].cell.shape
    (1, 3)
    """

    gates = 4

    def __init__(self, in_features: int, features: int, *, rngs: nnx.Rngs):
        in_features, features = sizes_of(in_features=in_features, features=features)
        require_rngs(rngs)
        self.features = features
        self.input_kernel, self.input_bias = _input(in_features, features, self.gates, rngs)
        self.input_bias[...] = self.input_bias[...].at[features : 2 * features].set(1.0)
        self.recurrent_kernel = _recurrent(features, self.gates, rngs)

    def step(self, projected: Float[Array, "b g"], state: LSTMState) -> LSTMState:
        """The next state."""
        return lstm(projected, state, self.recurrent_kernel[...])

    def initial(self, hidden: Float[Array, "b h"]) -> LSTMState:
        """The first state with these hidden units, and a cell of zeros."""
        return LSTMState(hidden, jnp.zeros_like(hidden))

    def hidden(self, state: LSTMState) -> Float[Array, "b h"]:
        """The hidden units of a state: the layer's output."""
        return state.hidden


CELLS = {"gru": GRU, "lstm": LSTM}


def run(
    layer: GRU, inputs: Float[Array, "t b d"], real: Array | None, *, reverse: bool = False
) -> tuple[Float[Array, "t b h"], Any]:
    """A layer over [t, b, d] from zeros on: the hidden units at each time, and the last state."""

    def step(projected, state):
        state = layer.step(projected, state)
        return state, layer.hidden(state)

    projected = layer.project(inputs)  # its type: half-precision inputs meet wider parameters
    zeros = jnp.zeros((inputs.shape[1], layer.features), projected.dtype)
    return over_time(step, projected, layer.initial(zeros), real, reverse=reverse)


def _input(d: int, h: int, gates: int, rngs: nnx.Rngs) -> tuple[nnx.Param, nnx.Param]:
    """W [d, gates h] and b: each gate by Glorot's rule."""
    glorot = jax.nn.initializers.glorot_uniform()
    kernels = [glorot(rngs.params(), (d, h), float) for _ in range(gates)]
    return nnx.Param(jnp.concatenate(kernels, axis=1)), nnx.Param(jnp.zeros(gates * h))


def _recurrent(h: int, gates: int, rngs: nnx.Rngs) -> nnx.Param:
    """U [h, gates h]: each gate an orthogonal matrix."""
    orthogonal = jax.nn.initializers.orthogonal()
    kernels = [orthogonal(rngs.params(), (h, h), float) for _ in range(gates)]
    return nnx.Param(jnp.concatenate(kernels, axis=1))
