"""The attentions of the second table.

- `jax.nn.dot_product_attention` and Flax's want values as wide as keys. Boolean masks everywhere.
- Ours: where weights do not sum to one, the output is in no convex hull of the values.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

import attn_jax
from experiments.harness.implementations import OURS
from experiments.invariants.normalizers import NO_SUM, SLOTS
from experiments.invariants.report import Column, slot_name


def ours(code: str, slot: Any) -> Column:
    """Return the column of attention with one of our normalizers."""
    skip = ("convex-hull", "sums-to-one") if code in NO_SUM else ()
    options = {"framework": "jax", "skip": skip}
    name = f"attention with {slot_name(slot)}"
    return Column(name, OURS, code, lambda: partial(attention, slot), options, smoke=code == "So")


def attention(normalizer: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """Return `attn_jax.attention` with a mask that is an array."""
    mask = None if mask is None else attn_jax.Dense(mask)
    return attn_jax.attention(query, key, value, normalizer=normalizer, mask=mask)


def torch_attention() -> Any:
    """Return PyTorch's attention, its mask under our name."""
    from torch.nn import functional

    def attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attention


CAUSAL = partial(attn_jax.dot_product_attention, is_causal=True)
NARROW = {"framework": "jax", "layout": "BTNH", "value_features": 2}

COLUMNS = (
    *(ours(code, slot) for code, slot in SLOTS.items()),
    Column(
        "dot_product_attention",
        OURS,
        "dp",
        lambda: attn_jax.dot_product_attention,
        {"framework": "jax", "layout": "BTNH", "causal": CAUSAL},
    ),
    Column(
        "nn.dot_product_attention",
        "jax",
        "jx",
        lambda: jax.nn.dot_product_attention,
        NARROW,
        smoke=True,
    ),
    Column("nnx.dot_product_attention", "flax", "fx", lambda: nnx.dot_product_attention, NARROW),
    Column(
        "nn.functional.scaled_dot_product_attention",
        "torch",
        "to",
        torch_attention,
        {"framework": "torch", "layout": "BNTH"},
    ),
)
