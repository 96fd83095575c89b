"""A feed-forward layer of several experts, of which each position takes a few."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from attn_jax.checks import require
from attn_jax.nn.arguments import require_dtype, require_rngs, sizes_of
from attn_jax.nn.parts import linear


class Experts(nnx.Module):
    """Gated feed-forward layers, of which a router chooses the best few for each position.

    The chosen ones' outputs are summed with the softmax of their logits (Shazeer et al. 2017, eqs.
    3-5, without noise). Each is gpt-oss's (OpenAI 2025): with gate g and units u, no larger than
    `limit`, (u + 1) · g · sigmoid(1.702 g). All experts are computed, and what is not chosen counts
    for nothing: right, and for many experts more work than it need be.

    As a part of a block: `feed_forward=functools.partial(Experts, hidden=…, count=…, chosen=…)`.

    Args:
      features: of inputs and outputs.
      hidden: units of each expert.
      count: of experts.
      chosen: how many of them each position takes.
      limit: of gates from above, and of units in either direction.
      dtype: of the computation; None: what inputs and parameters promote to.
      rngs: a seed for the parameters.

    >>> experts = Experts(8, hidden=16, count=4, chosen=2, rngs=nnx.Rngs(0))
    >>> experts(jnp.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        *,
        hidden: int,
        count: int,
        chosen: int,
        limit: float = 7.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        features, hidden, count, chosen = sizes_of(
            features=features, hidden=hidden, count=count, chosen=chosen
        )
        require(chosen <= count, "chosen", f"be at most count, {count}", chosen)
        require_dtype(dtype)
        require_rngs(rngs)
        self.chosen, self.limit, self.dtype = chosen, limit, dtype
        self.router = nnx.Linear(features, count, param_dtype=float, rngs=rngs)
        initial = jax.nn.initializers.lecun_normal(batch_axis=0)

        def parameters(inputs: int, outputs: int) -> tuple[nnx.Param, nnx.Param]:
            kernel = initial(rngs.params(), (count, inputs, outputs), float)
            return nnx.Param(kernel), nnx.Param(jnp.zeros((count, outputs)))

        self.up_kernel, self.up_bias = parameters(features, hidden)
        self.gate_kernel, self.gate_bias = parameters(features, hidden)
        self.down_kernel, self.down_bias = parameters(hidden, features)

    def __call__(self, inputs: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Map each position by itself."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        logits, best = jax.lax.top_k(linear(self.router, rows, self.dtype), self.chosen)
        of_chosen = jax.nn.softmax(logits, axis=-1)
        shares = jnp.zeros((len(rows), self.router.out_features), of_chosen.dtype)
        shares = jnp.put_along_axis(shares, best, of_chosen, axis=1, inplace=False)
        gate = jnp.minimum(self._mapped(rows[None], "gate"), self.limit)
        units = jnp.clip(self._mapped(rows[None], "up"), -self.limit, self.limit)
        units = (units + 1) * gate * jax.nn.sigmoid(1.702 * gate)
        mapped = self._mapped(units, "down")
        return jnp.einsum("ne,end->nd", shares, mapped).reshape(inputs.shape)

    def _mapped(self, rows: Float[Array, "#e n d"], name: str) -> Float[Array, "e n g"]:
        kernel, bias = (getattr(self, f"{name}_{part}")[...] for part in ("kernel", "bias"))
        dtype = jnp.result_type(rows, kernel) if self.dtype is None else self.dtype
        return rows.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)[:, None]
