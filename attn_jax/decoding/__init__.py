"""Decoding with any step function, recurrent or Transformer: greedy, sampled, beam search.

    step: (token [n], state) -> (logits [n, v], state, weights [n, k] or None)

A state is any pytree of arrays whose leading axis is n: one row for an example, or `beam_size`
adjacent rows in beam search, row r for example r // beam_size. What a step hands on untouched, an
encoder's outputs say, is not moved between hypotheses (unless a `jax.jit` of the step's own hides
that it is the same); what a step closes over is not even repeated.

    Step, Decoded, prepare                       step.py
    greedy, sample                               single.py filters.py
    beam_search                                  beam.py hypotheses.py
    ensemble: several step functions as one      ensemble.py
    log-probabilities, allowed tokens, the best  logits.py

Common to all three:
- A hypothesis has `lengths` tokens, `end` included. It is finished when it has produced `end`,
  which needs `min_length` tokens, and stops unfinished at `max_length`, or at its example's
  smaller `limit`. Tokens after it are `end`, weights after it are 0.
- `log_probabilities` are the model's own, over the whole vocabulary: neither `forbidden` tokens nor
  a temperature change them. They are summed in float32, in float64 where the logits are.
- Logits of -inf are impossible tokens. Where no token is possible, a hypothesis stops unfinished
  with its tokens so far and a score of -inf.
- NaN among an example's logits, or +inf, ends its search: its scores are NaN, nothing is finished.
- Ties go to the lowest token; between hypotheses to the one that was better a step before.
- The loop ends as soon as every example is done, and what else is in the batch changes nothing.

They are pure functions for use under `jax.jit`; called without it, they compile at every call.
"""

from attn_jax.decoding.beam import beam_search
from attn_jax.decoding.ensemble import ensemble
from attn_jax.decoding.single import greedy, sample
from attn_jax.decoding.step import Decoded, Step

__all__ = ["Decoded", "Step", "beam_search", "ensemble", "greedy", "sample"]
