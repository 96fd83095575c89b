"""A property-test kit for attention: invariants that any normalizer and any attention must obey.

It tests NumPy, JAX and PyTorch functions, yours as well as ours, on inputs that break
implementations: ties, empty rows, huge scores, masked NaN. It needs `hypothesis` (of
`attn_jax[test]`), whose shrinking finds the smallest input that fails.

>>> import jax, jax.numpy as jnp
>>> def softmax(scores, where=None):
...     filled = scores if where is None else jnp.where(where, scores, jnp.finfo(scores.dtype).min)
...     return jax.nn.softmax(filled)
>>> print(examine_normalizer(softmax, only={"sums-to-one", "empty-row"}))
sums-to-one               holds
empty-row                 fails
<BLANKLINE>
empty-row: a row with nothing allowed has weights 0 and gradient 0
  weights off by 0.5, at most 0 allowed
  input   scores [0., 0.] float32
  input   where [False, False]
  output  weights [0.5, 0.5]
  output  expected [0., 0.]

- `check_normalizer(fn, …)`, for `fn(scores [..., k], where=None) -> weights [..., k]`, and
  `check_attention(fn, …)`, for `fn(query [q, d], key [k, d], value [k, e], mask=None) -> output
  [q, e]`, raise `InvariantError`: an AssertionError that names the invariant and shows the input.
  `examine_normalizer` and `examine_attention` return the `Report` instead.
- What fn does not promise: `skip={"sums-to-one", …}`, `supports_mask=False`,
  `differentiable=False`, `output_dtype=None`. The names are in `NORMALIZER_INVARIANTS` and
  `ATTENTION_INVARIANTS`.
- `scores`, `masks`, `rows` and `qkv` are the Hypothesis strategies, for tests of your own.

A score of +inf or NaN that is allowed has no defined answer, so none is drawn; where it is masked
it must not show. The same call draws the same inputs, and nothing is left on the disk.
"""

from attn_jax.testing.attention_invariants import (
    ATTENTION_INVARIANTS,
    check_attention,
    examine_attention,
)
from attn_jax.testing.invariants import Invariant
from attn_jax.testing.normalizer_invariants import (
    NORMALIZER_INVARIANTS,
    check_normalizer,
    examine_normalizer,
)
from attn_jax.testing.reports import InvariantError, PropertyViolation, Report, Result
from attn_jax.testing.strategies import masks, qkv, rows, scores
