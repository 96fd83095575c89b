"""Kernel regression: attention whose query, key and value are where to predict, x and y.

A fit is a linear smoother: prediction = L value, where row i of the matrix L [q, k] depends on the
query and the keys only. Degree 0 is Nadaraya-Watson, L = attention weights; degree 1 fits a line
around each query by the same weights (local linear regression), which repairs the bias at the
boundary. The statistics of a fit are computed from L: leave-one-out errors, degrees of freedom,
information criteria, confidence bands. (Nadaraya 1964; Watson 1964; Fan & Gijbels 1996; Wasserman
2006, ch. 5.)

    kernel_regression, smoother, leave_one_out                     smoothing.py
      inputs and targets as JAX arrays                               centering.py
      local lines; predictions where no key supports a query         local_lines.py extrapolation.py
      rows that count as several                                     case_weights.py
      a few queries at a time, where L is too large                  chunks.py
    leave_one_out_error, aicc, r_squared, confidence_band, …       diagnostics.py
    search_bandwidth                                               search.py
      the lowest of several minima                                   multistart.py

Everything but L itself is computed in memory that grows with q + k. Time grows with q · k: where
that is too much, errors, freedom and criteria are taken at a sample of `rows`, with all keys.
"""

from attn_jax.regression.chunks import per_query
from attn_jax.regression.diagnostics import (
    CRITERIA,
    aicc,
    confidence_band,
    degrees_of_freedom,
    effective_neighbours,
    entropy,
    leave_one_out_error,
    noise_variance,
    r_squared,
)
from attn_jax.regression.extrapolation import Outside
from attn_jax.regression.search import Search, sampled_rows, search_bandwidth
from attn_jax.regression.smoothing import (
    kernel_regression,
    leave_one_out,
    others,
    smoother,
)
