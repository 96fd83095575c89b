"""Case weights: a row of the data that counts as several, or as part of one.

A weight's logarithm is added to the scores of its row: attention weights are then w_j K / Σ w K. An
integer weight is that many copies of the row, in the fit and in what is computed from it: all
copies are left out together, n is the sum of the weights, and the variance of a target is σ² / w_j.
A weight of 0 is a row that is not there.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax.blocks import Index
from attn_jax.checks import all_hold, as_array, concrete, require
from attn_jax.precision import accumulate, accumulation_dtype
from attn_jax.slots import slot

CaseWeights = Num[ArrayLike, " k"] | None


@slot
class LogWeight:
    """scores + log weight_j; -inf where the weight is 0."""

    weight: Float[ArrayLike, "... k"]

    def __call__(
        self, scores: Float[Array, "q k"], query_index: Index, key_index: Index
    ) -> Float[Array, "q k"]:
        del query_index
        scores, weight = accumulate(scores, self.weight)
        there = weight > 0
        logs = jnp.where(there, jnp.log(jnp.where(there, weight, 1)), -jnp.inf)
        return scores + logs[key_index]


def checked_case_weights(case_weights: CaseWeights, key: Num[Array, "k d"]) -> Any:
    """The weights as an array of floats, one for each row; None where there are none.

    >>> checked_case_weights(jnp.array([1, 3]), jnp.zeros((2, 1))).tolist()
    [1.0, 3.0]
    """
    if case_weights is None:
        return None
    weights, k = as_array(case_weights, "case_weights"), key.shape[0]
    real = not jnp.issubdtype(weights.dtype, jnp.complexfloating) and weights.dtype != bool
    require(real and weights.shape == (k,), "case_weights", f"be {k} numbers, one a row", weights)
    proper = all_hold(weights, lambda w: np.isfinite(w) & (w >= 0))
    require(proper, "case_weights", "be finite and not negative", weights)
    known = concrete(weights)
    some = known is None or k == 0 or (known > 0).any()
    require(some, "case_weights", "not all be 0", weights)
    return weights.astype(accumulation_dtype(weights, key))
