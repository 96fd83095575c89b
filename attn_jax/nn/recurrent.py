"""Recurrent layers and encoders of padded batches: GRU, LSTM, both directions, deep, convolutional.

An example's result, and every gradient, depends on its own `length` entries alone: padding may hold
NaN, outputs on it are zero, the backward direction starts at the true end, and a length of 0 gives
zeros and the initial state.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax.checks import require, require_scalar
from attn_jax.dropout import drop_units
from attn_jax.matmul import affine
from attn_jax.nn.arguments import (
    lengths_of,
    require_flags,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.position_encodings import sinusoids
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
        """The state that shows these units."""
        return hidden

    def shown(self, state: Any) -> Float[Array, "b h"]:
        """What a state shows."""
        return state

    def __call__(
        self,
        inputs: Float[ArrayLike, "b t d"],
        length: Int[ArrayLike, " b"] | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[Float[Array, "b t h"], Any]:
        """What each time shows, and the last state; from zeros on."""
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
        """The state that shows these units, with an empty memory."""
        return LSTMState(hidden, jnp.zeros_like(hidden))

    def shown(self, state: LSTMState) -> Float[Array, "b h"]:
        """What a state shows."""
        return state.hidden


CELLS = {"gru": GRU, "lstm": LSTM}


def run(
    layer: GRU, inputs: Float[Array, "t b d"], real: Array | None, *, reverse: bool = False
) -> tuple[Float[Array, "t b h"], Any]:
    """A layer over [t, b, d] from zeros on: what each time shows, and the last state."""

    def step(projected, state):
        state = layer.step(projected, state)
        return state, layer.shown(state)

    projected = layer.project(inputs)  # its type: half-precision inputs meet wider parameters
    zeros = jnp.zeros((inputs.shape[1], layer.features), projected.dtype)
    return over_time(step, projected, layer.initial(zeros), real, reverse=reverse)


class Encoded(NamedTuple):
    """What a decoder gets to see of a source."""

    memory: Float[Array, "b s e"]  # zero on padding
    length: Int[Array, " b"]
    summary: Float[Array, "b c"]  # one vector for the whole


def averaged(outputs: Float[Array, "b s e"], length: Int[Array, " b"]) -> Encoded:
    """The outputs as a memory, and their mean as its summary."""
    memory = without_padding(outputs, length)
    count = jnp.maximum(length, 1)[:, None].astype(memory.dtype)
    return Encoded(memory, length, memory.sum(axis=1) / count)


class RecurrentEncoder(nnx.Module):
    """Layers of GRU or LSTM over a source, in both directions or in one. (Bahdanau et al. 2014.)

    Args:
      in_features: of the inputs.
      features: of each direction.
      layers: how many, one on the other.
      cell: "gru" or "lstm".
      bidirectional: whether a second layer beside each reads from the end.
      residual: whether each layer from the second on adds its input to its output.
      dropout: rate between layers.
      rngs: a seed for the parameters.

    The summary is what the first direction shows at the end and the second one at the start.

    >>> encoder = RecurrentEncoder(2, 3, rngs=nnx.Rngs(0))
    >>> [each.shape for each in encoder(jnp.ones((1, 5, 2)), jnp.array([4]))]
    [(1, 5, 6), (1,), (1, 6)]
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        layers: int = 1,
        cell: CellName = "gru",
        bidirectional: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        require(cell in CELLS, "cell", f"be one of {sorted(CELLS)}", repr(cell))
        in_features, features, layers = sizes_of(
            in_features=in_features, features=features, layers=layers
        )
        require_flags(bidirectional=bidirectional, residual=residual)
        require_rngs(rngs)
        require_rate(dropout)
        directions = 2 if bidirectional else 1
        self.memory_features = self.summary_features = directions * features
        self.residual, self.dropout = residual, dropout
        self.layers = nnx.List(
            nnx.List(
                CELLS[cell](self.memory_features if level else in_features, features, rngs=rngs)
                for _ in range(directions)
            )
            for level in range(layers)
        )

    def __call__(
        self,
        inputs: Float[ArrayLike, "b s d"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode; with `rng`, in training, some units are dropped."""
        inputs = rows_of("inputs", inputs, self.layers[0][0].input_kernel.shape[0])
        length = lengths_of("length", length, *inputs.shape[:2])
        real = real_times(length, inputs.shape[1])
        outputs = jnp.swapaxes(without_padding(inputs, length), 0, 1)
        for level, layer in enumerate(self.layers):
            below = outputs
            if level:
                outputs = drop_units(outputs, self.dropout, fold(rng, level))
            both = [
                run(direction, outputs, real, reverse=bool(number))
                for number, direction in enumerate(layer)
            ]
            outputs = jnp.concatenate([each for each, _ in both], axis=-1)
            if level and self.residual:
                outputs = outputs + below
        ends = [cell.shown(final) for cell, (_, final) in zip(layer, both, strict=True)]
        return Encoded(jnp.swapaxes(outputs, 0, 1), length, jnp.concatenate(ends, axis=-1))


class ConvolutionalEncoder(nnx.Module):
    """Gated convolutions over a source, each added to its input. (Gehring et al. 2017.)

    Positions are added as sines and cosines (Vaswani et al. 2017, §3.5): a convolution knows none.
    The summary is the mean over the source.

    Args:
      in_features: of the inputs.
      features: of the memory.
      layers: how many convolutions.
      width: how many neighbours, an odd number, each one sees.
      dropout: rate before each convolution.
      rngs: a seed for the parameters.

    >>> encoder = ConvolutionalEncoder(2, 4, rngs=nnx.Rngs(0))
    >>> [each.shape for each in encoder(jnp.ones((1, 5, 2)), jnp.array([4]))]
    [(1, 5, 4), (1,), (1, 4)]
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        layers: int = 4,
        width: int = 3,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        in_features, features, layers, width = sizes_of(
            in_features=in_features, features=features, layers=layers, width=width
        )
        require_rngs(rngs)
        require(width % 2 == 1, "width", "be odd", width)
        require_rate(dropout)
        self.memory_features = self.summary_features = features
        self.dropout = dropout
        self.inputs = nnx.Linear(in_features, features, param_dtype=float, rngs=rngs)
        self.convolutions = nnx.List(
            nnx.Conv(features, 2 * features, (width,), param_dtype=float, rngs=rngs)
            for _ in range(layers)
        )

    def __call__(
        self,
        inputs: Float[ArrayLike, "b s d"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode; with `rng`, in training, some units are dropped."""
        inputs = rows_of("inputs", inputs, self.inputs.in_features)
        length = lengths_of("length", length, *inputs.shape[:2])
        outputs = self.inputs(without_padding(inputs, length))
        outputs = outputs + sinusoids(inputs.shape[1], self.memory_features)[None]
        for level, convolution in enumerate(self.convolutions):
            seen = drop_units(outputs, self.dropout, fold(rng, level))
            outputs = outputs + jax.nn.glu(convolution(without_padding(seen, length)))
        return averaged(outputs, length)


def fold(rng: PRNGKeyArray | None, number: Int[ArrayLike, ""]) -> PRNGKeyArray | None:
    """Another seed for another use; none in evaluation."""
    return None if rng is None else jax.random.fold_in(rng, number)


def require_rate(dropout: float) -> None:
    """Refuse what is no rate of dropout."""
    require_scalar(dropout, "dropout")
    require(0 <= dropout < 1, "dropout", "be at least 0 and below 1", dropout)


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
