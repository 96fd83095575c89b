"""Kernel regression: attention whose query, key and value are where to predict, x and y.

A fit is a linear smoother: prediction = L value, where row i of the matrix L [q, k] depends on the
query and the keys only. Degree 0 is Nadaraya-Watson, L = attention weights; degree 1 fits a line
around each query by the same weights (local linear regression), which repairs the bias at the
boundary. Everything that statistics asks of a fit is read off L: leave-one-out, degrees of freedom,
information criteria, confidence bands. (Nadaraya 1964; Watson 1964; Fan & Gijbels 1996; Wasserman
2006, ch. 5.)

    kernel_regression, smoother, leave_one_out                     smoothing.py
    leave_one_out_error, aicc, r_squared, confidence_band, …       diagnostics.py
    search_bandwidth                                               search.py
"""

from attn_jax.regression.diagnostics import (
    CRITERIA,
    aicc,
    confidence_band,
    degrees_of_freedom,
    effective_neighbours,
    entropy,
    leave_one_out_error,
    r_squared,
)
from attn_jax.regression.search import Search, search_bandwidth
from attn_jax.regression.smoothing import (
    Outside,
    kernel_regression,
    leave_one_out,
    others,
    smoother,
)
