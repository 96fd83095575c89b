"""Kernel regression as a module: it holds the bandwidth, and alpha, that training may change."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, Num

from attn_jax import kernels, regression
from attn_jax.attention import attention_weights
from attn_jax.attention_slots import require_slots
from attn_jax.checks import require
from attn_jax.constraints import between, free_between, free_positive, positive
from attn_jax.masks import MaskFunction
from attn_jax.nn.arguments import require_flags
from attn_jax.nn.slots import Fixed, Slots
from attn_jax.normalizers import Entmax, Softmax
from attn_jax.regression.case_weights import CaseWeights
from attn_jax.regression.centering import centred_inputs
from attn_jax.scores import Kernel
from attn_jax.thresholds import ALPHA_LIMIT

Rows = Int[ArrayLike, " r"] | None


class NadarayaWatson(nnx.Module):
    """Predict at a query by the weighted mean of the values, weighted by a kernel of the distance.

    prediction = Σ_j w_j value_j,  w = normalizer(log K((query - key_j) / bandwidth)). (Nadaraya
    1964; Watson 1964; degree 1: Cleveland 1979.) The data are arguments: the module holds the
    bandwidth (positive by construction) and, for `Entmax`, alpha (in (1, 16) by construction).

    All but `weights` and `smoother` take memory that grows with q + k. Where the time for all n
    rows by n keys is too much, `rows` (indices of some, a random sample) are taken for all.

    Rows may count as several (`case_weights` [k]: see `regression.kernel_regression`).

    Args:
      bandwidth: at the start; one number, or one for each feature [d].
      kernel: a member of `attn_jax.kernels` or a function u ↦ log K(u).
      normalizer: a normalizer slot or function.
      learn_bandwidth: whether training changes the bandwidth. learn_alpha: whether it changes the
        alpha of an `Entmax`; see `Attention`.
      outside: the prediction where no key supports the query: "nearest", "mean", "zero" or "nan".
      degree: 0, a local constant, or 1, a local line.

    >>> model = NadarayaWatson(bandwidth=0.5)
    >>> x, y = jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [2.0]])
    >>> model(jnp.array([[0.5]]), x, y).tolist()
    [[1.0]]
    """

    def __init__(
        self,
        bandwidth: ArrayLike = 1.0,
        *,
        kernel: Callable = kernels.gaussian,
        normalizer: Any = Softmax(),
        learn_bandwidth: bool = True,
        learn_alpha: bool = False,
        outside: regression.Outside = "nearest",
        degree: int = 0,
    ):
        bandwidth = jnp.asarray(bandwidth, float)
        rule = "be one number or one for each feature"
        require(bandwidth.ndim <= 1, "bandwidth", rule, bandwidth)
        Kernel(kernel, bandwidth)  # refuses what is not a kernel or a bandwidth
        require_slots(normalizer=normalizer)
        require_flags(learn_bandwidth=learn_bandwidth, learn_alpha=learn_alpha)
        require(
            isinstance(normalizer, Entmax) or not learn_alpha,
            "learn_alpha",
            "be False without an Entmax normalizer",
            normalizer,
        )
        self.free_bandwidth = _variable(learn_bandwidth)(free_positive(bandwidth))
        self.free_alpha = nnx.data(None)
        if learn_alpha:
            alpha = jnp.asarray(normalizer.alpha, float)
            self.free_alpha = nnx.Param(free_between(alpha, 1.0, ALPHA_LIMIT))
        self.kernel = kernel
        self.outside = outside
        self.degree = degree
        self.slots = Slots(normalizer=None if learn_alpha else normalizer)

    @property
    def bandwidth(self) -> Float[Array, "..."]:
        """The bandwidth now: one number, or one for each feature [d]."""
        return positive(self.free_bandwidth[...])

    @property
    def normalizer(self) -> Any:
        """The normalizer now, with the alpha that was learned."""
        if self.free_alpha is None:
            return self.slots["normalizer"]
        return Entmax(between(self.free_alpha[...], 1.0, ALPHA_LIMIT))

    @property
    def score(self) -> Kernel:
        """The kernel with the bandwidth now."""
        return Kernel(self.kernel, self.bandwidth)

    def __call__(
        self,
        query: Num[ArrayLike, "q d"],
        key: Num[ArrayLike, "k d"],
        value: Num[ArrayLike, "k e"],
        *,
        mask: MaskFunction | None = None,
        case_weights: CaseWeights = None,
    ) -> Float[Array, "q e"]:
        """Predict at each query from the keys (inputs) and values (targets)."""
        options = self._options(case_weights)
        return regression.kernel_regression(query, key, value, mask=mask, **options)

    def weights(
        self,
        query: Num[ArrayLike, "q d"],
        key: Num[ArrayLike, "k d"],
        *,
        mask: MaskFunction | None = None,
    ) -> Float[Array, "q k"]:
        """The attention weights, before `outside` and `degree` change them."""
        options = {"score": self.score, "normalizer": self.normalizer}
        query, key = centred_inputs(self.score, query=query, key=key)
        return attention_weights(query, key, mask=mask, **options)

    def smoother(
        self,
        query: Num[ArrayLike, "q d"],
        key: Num[ArrayLike, "k d"],
        *,
        case_weights: CaseWeights = None,
    ) -> Float[Array, "q k"]:
        """The matrix L with prediction = L value; its trace at the data is the fit's freedom."""
        return regression.smoother(query, key, **self._options(case_weights))

    def per_query(
        self,
        statistic: Callable[[Float[Array, "c k"]], Any],
        query: Num[ArrayLike, "q d"],
        key: Num[ArrayLike, "k d"],
    ) -> Any:
        """A statistic of each query's weights, in bounded memory; see `regression.per_query`."""
        options = {"score": self.score, "normalizer": self.normalizer}
        return regression.per_query(statistic, query, key, **options)

    def effective_neighbours(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, " q"]:
        """How many equally weighted keys each query's weights are worth."""
        return self.per_query(regression.effective_neighbours, query, key)

    def entropy(
        self, query: Num[ArrayLike, "q d"], key: Num[ArrayLike, "k d"]
    ) -> Float[Array, " q"]:
        """Entropy of each query's weights in nats."""
        return self.per_query(regression.entropy, query, key)

    def degrees_of_freedom(
        self, key: Num[ArrayLike, "n d"], *, rows: Rows = None, case_weights: CaseWeights = None
    ) -> Float[Array, ""]:
        """Trace of the smoother at the data: 1 for the mean, n for interpolation."""
        return regression.degrees_of_freedom(key, rows=rows, **self._options(case_weights))

    def leave_one_out(
        self,
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        rows: Rows = None,
        case_weights: CaseWeights = None,
    ) -> Float[Array, "r e"]:
        """Predict each row, or each of `rows`, from all the others."""
        return regression.leave_one_out(key, value, rows=rows, **self._options(case_weights))

    def leave_one_out_error(
        self,
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        rows: Rows = None,
        case_weights: CaseWeights = None,
    ) -> Float[Array, ""]:
        """Mean squared leave-one-out residual: the loss to train the bandwidth on."""
        return regression.leave_one_out_error(key, value, rows=rows, **self._options(case_weights))

    def aicc(
        self,
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        rows: Rows = None,
        case_weights: CaseWeights = None,
    ) -> Float[Array, ""]:
        """Corrected Akaike criterion, infinite where the fit interpolates."""
        return regression.aicc(key, value, rows=rows, **self._options(case_weights))

    def noise_variance(
        self,
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        rows: Rows = None,
        case_weights: CaseWeights = None,
    ) -> Float[Array, " e"]:
        """The variance of the targets around the curve, for each output."""
        return regression.noise_variance(key, value, rows=rows, **self._options(case_weights))

    def confidence_band(
        self,
        query: Num[ArrayLike, "q d"],
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        level: float = 0.95,
        variance: Float[ArrayLike, " e"] | None = None,
        rows: Rows = None,
        case_weights: CaseWeights = None,
    ) -> tuple[Float[Array, "q e"], Float[Array, "q e"]]:
        """Lower and upper end of a pointwise band for the smoothed curve."""
        how = {"level": level, "variance": variance, "rows": rows}
        return regression.confidence_band(query, key, value, **how, **self._options(case_weights))

    def search(
        self,
        key: Num[ArrayLike, "n d"],
        value: Num[ArrayLike, "n e"],
        *,
        criterion: str = "loo",
        rows: Rows = None,
        case_weights: CaseWeights = None,
        on_value: Callable[[Float[Array, "..."], float], None] | None = None,
    ) -> regression.Search:
        """Set the bandwidth to the global minimum of a criterion; per feature if it is so now.

        See `regression.search_bandwidth` for the arguments.
        """
        options = self._options(case_weights)
        del options["score"]
        found = regression.search_bandwidth(
            key,
            value,
            criterion=criterion,
            kernel=self.kernel,
            per_feature=self.free_bandwidth[...].ndim == 1,
            rows=rows,
            on_value=on_value,
            **options,
        )
        dtype = self.free_bandwidth[...].dtype
        self.free_bandwidth[...] = free_positive(found.bandwidth).astype(dtype)
        return found

    def _options(self, case_weights: CaseWeights) -> dict[str, Any]:
        return {
            "case_weights": case_weights,
            "score": self.score,
            "normalizer": self.normalizer,
            "outside": self.outside,
            "degree": self.degree,
        }


def _variable(learned: bool) -> type[nnx.Variable]:
    return nnx.Param if learned else Fixed
