"""Kernel regression is attention: query = where to predict, key = x, value = y.

    python -m experiments kernel-regression                     the textbook curve, about a minute
    python -m experiments kernel-regression --data engel
    python -m experiments kernel-regression --csv FILE --x COLUMN --y COLUMN

Expected on the textbook curve (float64, test error against the noiseless curve): a fixed bandwidth
of 1 stays near 0.38 however many points there are; the bandwidth trained on the leave-one-out error
goes to 0.203, 0.130, 0.126 and its test error falls to 0.0285, 0.0096, 0.0053 at n = 50, 500, 1000.

Up to `--left-out-rows` rows, each row is left out and predicted from all the others: in training,
in the search, in the table. Of larger data a random sample of the rows is, each from all the others
still, so that time grows with n instead of n², in bounded memory.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from experiments.data.curves import CurveOptions
from experiments.harness.commands import Command, ResumableOptions
from experiments.harness.options import NonNegative, Positive, at_least

KernelName = Literal[
    "gaussian", "boxcar", "triangular", "epanechnikov", "biweight", "triweight", "tricube",
    "cosine", "logistic", "laplace",
]  # fmt: skip


@dataclass(frozen=True)
class Fit(ResumableOptions):
    """Fit a curve by attention: baselines without a query, a fixed, a learned, a searched kernel.

    Prints a table, and writes config.json, metrics.json, predictions.csv and figures.
    """

    kernel: KernelName = "gaussian"
    """The kernel."""
    normalizer: Literal["softmax", "sparsemax", "entmax15"] = "softmax"
    """What turns log-kernels into weights; softmax is Nadaraya-Watson."""
    degree: Literal[0, 1] = 0
    """0 fits a constant around each query, 1 a line."""
    outside: Literal["nearest", "mean", "zero", "nan"] = "nearest"
    """The answer for a query that no point supports (compact kernels)."""
    bandwidth: Positive[float] | None = None
    """Fixed bandwidth, and the start of training. Default: 1 for the textbook curve, Scott's rule
    in each input elsewhere."""
    criterion: Literal["loo", "aicc"] = "loo"
    """What the bandwidth search minimizes: leave-one-out error or corrected AIC."""
    optimizer: Literal["lbfgs", "adam"] | None = None
    """The Optax optimizer of bandwidth and α. Default: lbfgs, all rows left out at each step; for
    more than --left-out-rows adam, a batch of them at each step."""
    steps: Annotated[int, at_least(2)] | None = None
    """Training steps. Default: 30 of lbfgs, 300 of adam, 60 of adam on batches."""
    learning_rate: Positive[float] = 0.1
    """Adam's, at the start; it falls to 0 along a cosine."""
    left_out_rows: Annotated[int, at_least(2)] | None = None
    """At most so many rows, a seeded sample of larger data, are left out and predicted from all the
    others: in training, in the search, for the errors reported and in predictions.csv. All rows are
    keys. Default: 4000, and from 536,871 rows on 2^31 / rows."""
    seed: NonNegative[int] = 0
    """Seed of the textbook's noise and of samples."""
    curve: CurveOptions = field(default_factory=CurveOptions)

    def tiny(self) -> Self:
        return dataclasses.replace(super().tiny(), steps=self.steps or 5)


COMMANDS = {"fit": Command(Fit, "kernel_regression.report.fit")}
