"""Recurrence over time: one step of a GRU and of an LSTM, and the scan that repeats it.

The part of a step that sees the inputs alone, x W + b for all gates, is one matrix product over all
times (`matmul.affine`); the scan gets its rows. Arrays in the scan have time first: [t, b, …].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_jax.meshes import settled


class LSTMState(NamedTuple):
    """What an LSTM carries: hidden units, and the cell."""

    hidden: Float[Array, "b h"]
    cell: Float[Array, "b h"]


def gru(
    projected: Float[Array, "b g"],
    state: Float[Array, "b h"],
    kernel: Float[Array, "h g"],
    bias: Float[Array, " h"],
) -> Float[Array, "b h"]:
    """One step of a gated recurrent unit. (Cho et al. 2014, eqs. 5-8.)

    The reset gate acts after the product, as in cuDNN:
    [r, z] = σ(x W + h U),  n = tanh(x W_n + r (h U_n + c)),  h' = (1 - z) n + z h.

    Args:
      projected: x W + b for the gates r, z and n.
      state: h.
      kernel: U.
      bias: c.

    >>> gru(jnp.zeros((1, 3)), jnp.ones((1, 1)), jnp.zeros((1, 3)), jnp.zeros(1)).tolist()
    [[0.5]]
    """
    h = state.shape[-1]
    recurrent = state @ kernel
    gates = jax.nn.sigmoid(projected[:, : 2 * h] + recurrent[:, : 2 * h])
    reset, update = gates[:, :h], gates[:, h:]
    new = jnp.tanh(projected[:, 2 * h :] + reset * (recurrent[:, 2 * h :] + bias[None]))
    return new + update * (state - new)


def lstm(
    projected: Float[Array, "b g"], state: LSTMState, kernel: Float[Array, "h g"]
) -> LSTMState:
    """One step of a long short-term memory. (Hochreiter & Schmidhuber 1997; Gers et al. 2000.)

    [i, f, o] = σ(x W + h U),  g = tanh(x W_g + h U_g),  c' = f c + i g,  h' = o tanh(c').

    Args:
      projected: x W + b for the gates i, f, o and for g.
      state: h and c.
      kernel: U.

    >>> zeros = jnp.zeros((1, 1))
    >>> lstm(jnp.zeros((1, 4)), LSTMState(zeros, zeros + 2.0), jnp.zeros((1, 4))).cell.tolist()
    [[1.0]]
    """
    h = state.hidden.shape[-1]
    gates = projected + state.hidden @ kernel
    i, f, o = jnp.split(jax.nn.sigmoid(gates[:, : 3 * h]), 3, axis=1)
    cell = f * state.cell + i * jnp.tanh(gates[:, 3 * h :])
    return LSTMState(o * jnp.tanh(cell), cell)


def over_time(
    step: Callable[[Any, Any], tuple[Any, Any]],
    inputs: Any,
    initial: Any,
    real: Bool[Array, "t b"] | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Repeat state, output = step(inputs_t, state): the outputs [t, b, …], and the last state.

    Where an example is not `real` its state stays and its output is 0. In reverse an example
    thus starts at its true end, with `initial`, and with no real time at all ends there.

    Args:
      step: (inputs of one time, state) -> (state, output of this time).
      inputs: a pytree of [t, b, …].
      initial: the state before the first step, a pytree of [b, …].
      real: which times are not padding; None: all of them.
      reverse: go from the last time to the first.

    >>> over_time(lambda x, s: (s + x, s + x), jnp.array([[1.0], [2.0]]), jnp.zeros(1))[0].tolist()
    [[1.0], [3.0]]
    """

    def body(state, now):
        if real is None:
            return step(now, state)
        now, here = now
        moved, output = step(now, state)
        none = jax.tree.map(jnp.zeros_like, output)
        return _where(here, moved, state), _where(here, output, none)

    xs = inputs if real is None else (inputs, real)
    initial = settled(lambda state: body(state, jax.tree.map(lambda each: each[0], xs))[0], initial)
    final, outputs = jax.lax.scan(body, initial, xs, reverse=reverse)
    return outputs, final


def _where(here: Bool[Array, " b"], new: Any, old: Any) -> Any:
    def of(new, old):
        return jnp.where(here.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(of, new, old)


def real_times(length: Int[Array, " b"], times: int) -> Bool[Array, "t b"]:
    """Which times are before each example's end.

    >>> real_times(jnp.array([0, 2]), 3).astype(int).tolist()
    [[0, 1], [0, 1], [0, 0]]
    """
    return jnp.arange(times)[:, None] < length[None, :]
