"""The attentions of the second table.

- `jax.nn.dot_product_attention` and Flax's want values as wide as keys. Boolean masks everywhere.
- Ours: where weights do not sum to one, the output is in no convex hull of the values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import attn_jax
from experiments.harness.implementations import OURS
from experiments.invariants.normalizers import NO_SUM, SLOTS
from experiments.invariants.report import Column, slot_name


def ours(code: str, slot: Any) -> Column:
    """Return the column of attention with one of our normalizers."""
    skip = ("convex-hull", "sums-to-one") if code in NO_SUM else ()
    name, function = f"attention with {slot_name(slot)}", partial(attention, slot)
    options = {"framework": "jax", "skip": skip}
    return Column(name, OURS, code, function, options=options, smoke=code == "So")


def attention(normalizer: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """Return `attn_jax.attention` with a mask that is an array."""
    mask = None if mask is None else attn_jax.Dense(mask)
    return attn_jax.attention(query, key, value, normalizer=normalizer, mask=mask)


def mask_renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's attention, its mask under our name."""
    return lambda query, key, value, mask=None: function(query, key, value, attn_mask=mask)


BTNH = {"framework": "jax", "layout": "BTNH"}
DROP_IN = BTNH | {"causal": partial(attn_jax.dot_product_attention, is_causal=True)}
NARROW = BTNH | {"value_features": 2}
TORCH = {"framework": "torch", "layout": "BNTH"}
SDPA = "nn.functional.scaled_dot_product_attention"

COLUMNS = (
    *(ours(code, slot) for code, slot in SLOTS.items()),
    Column("dot_product_attention", OURS, "dp", options=DROP_IN),
    Column("nn.dot_product_attention", "jax", "jx", options=NARROW, smoke=True),
    Column("nnx.dot_product_attention", "flax", "fx", options=NARROW),
    Column(SDPA, "torch", "to", adapt=mask_renamed, options=TORCH),
)
