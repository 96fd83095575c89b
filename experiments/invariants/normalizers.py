"""The normalizers of the first table.

- `jax.nn.softmax` takes `where`, and documents a weight of zero for what is masked out.
- `optax.projections.projection_simplex` takes one vector and no mask: mapped over rows;
  it promises no dtype (float16 gives float32).
- PyTorch's softmax and the entmax package take no mask; their users fill masked scores with -inf.
  The entmax package documents no `torch.vmap`.
- Ours: a softmax with a sink and a sigmoid do not sum to one, and promise nothing that follows from
  it: shift invariance, the temperature limits. Weights have the accumulation dtype.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

import attn_jax
from experiments.harness.implementations import OURS
from experiments.invariants.report import Column, slot_name

SLOTS = {
    "So": attn_jax.Softmax(),
    "Si": attn_jax.Softmax(sink=0.0),
    "Sp": attn_jax.Sparsemax(),
    "E1": attn_jax.Entmax(1.5),
    "E3": attn_jax.Entmax(3.0),
    "Sg": attn_jax.Sigmoid(),
}
NO_SUM = ("Si", "Sg")  # weights that do not sum to one
NEED_SUM = frozenset(
    {"sums-to-one", "shift-invariant", "low-temperature", "high-temperature", "jacobian-shift"}
)


def ours(code: str, slot: Any) -> Column:
    """Return the column of one of our normalizers."""
    skip = NEED_SUM if code in NO_SUM else ()
    options = {"framework": "jax", "output_dtype": "accumulation", "skip": skip}
    return Column(slot_name(slot), OURS, code, slot, options=options, smoke=code == "So")


def filled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a PyTorch normalizer with a mask, the way its users write it."""

    def normalizer(scores: Any, where: Any = None) -> Any:
        scores = scores if where is None else scores.masked_fill(~where, float("-inf"))
        return function(scores, dim=-1)

    return normalizer


JAX = {"framework": "jax"}
OPTAX = JAX | {"supports_mask": False, "skip": "all-minus-infinity", "output_dtype": None}
TORCH = {"framework": "torch"}
ENTMAX = TORCH | {"skip": "vmap-equals-loop"}
PER_ROW = partial(jnp.vectorize, signature="(k)->(k)")

COLUMNS = (
    *(ours(code, slot) for code, slot in SLOTS.items()),
    Column("nn.softmax", "jax", "jx", options=JAX, smoke=True),
    Column("projections.projection_simplex", "optax", "op", adapt=PER_ROW, options=OPTAX),
    Column("softmax", "torch", "to", adapt=filled, options=TORCH),
    Column("sparsemax", "entmax", "es", adapt=filled, options=ENTMAX),
    Column("entmax15", "entmax", "e1", adapt=filled, options=ENTMAX),
    Column("entmax_bisect", "entmax", "eb", adapt=filled, options=ENTMAX),
)
