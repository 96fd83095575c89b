"""The data sets to fit, and what of each is left out."""

import dataclasses
import zlib
from dataclasses import dataclass

import numpy as np

from experiments.data import curves
from experiments.data.curves import Curve
from experiments.kernel_regression import Fit

TEXTBOOK_SIZES, SMOKE_SIZES = (50, 500, 1000), (20, 30)
SMOKE_ROWS = 60
LEFT_OUT_ROWS, LEFT_OUT_PAIRS = 4000, 2**31  # at most, by default


@dataclass(frozen=True)
class Problem:
    """Data to fit, and to test on where the truth is known."""

    data: Curve
    test: Curve | None
    bandwidth: float | np.ndarray
    """Where training starts: a number, or one per input [d]."""
    rows: np.ndarray
    """Those left out one by one: all, or a sample of large data."""

    @property
    def sampled(self) -> bool:
        """Whether only a sample of the rows is left out."""
        return len(self.rows) < len(self.data.x)

    @property
    def left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and outputs of the rows that are left out one by one."""
        return self.data.x[self.rows], self.data.y[self.rows]

    @property
    def checksum(self) -> int:
        """Of the data, which a resumed run must share."""
        return zlib.crc32(self.data.y.tobytes(), zlib.crc32(self.data.x.tobytes()))


def load(options: Fit) -> list[Problem]:
    """Return three sizes of the textbook's curve, or the one data set that was chosen."""
    chosen = options.curve
    sizes = [chosen.n]
    if chosen.textbook and chosen.n is None:
        sizes = SMOKE_SIZES if options.smoke else TEXTBOOK_SIZES
    loaded = [curves.load(dataclasses.replace(chosen, n=n), seed=options.seed) for n in sizes]
    return [problem(data, options) for data in loaded]


def problem(data: Curve, options: Fit) -> Problem:
    """Return what is to be fitted, with the sample of rows to leave out of large data."""
    n = len(data.x)
    if options.smoke and n > SMOKE_ROWS:
        kept = sample(n, SMOKE_ROWS, options.seed)
        note = f"a random sample of {SMOKE_ROWS} of {n} rows (--smoke)"
        data = dataclasses.replace(data, x=data.x[kept], y=data.y[kept], notes=(*data.notes, note))
        n = SMOKE_ROWS
    usual = min(LEFT_OUT_ROWS, max(LEFT_OUT_PAIRS // n, 2))
    rows = sample(n, options.left_out_rows or usual, options.seed)
    if len(rows) < n:
        note = (
            f"{len(rows)} of {n} rows, a random sample, are left out one by one: in training, "
            "search, table and predictions.csv (--left-out-rows); all rows are keys"
        )
        data = dataclasses.replace(data, notes=(*data.notes, note))
    test = curves.textbook_test() if options.curve.textbook else None
    return Problem(data, test, first_bandwidth(data, options), rows)


def sample(n: int, most: int, seed: int) -> np.ndarray:
    """Return a seeded random sample of so many of n rows, in their order; all where they are fewer.

    >>> sample(3, 5, seed=0).tolist()
    [0, 1, 2]
    """
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def first_bandwidth(data: Curve, options: Fit) -> float | np.ndarray:
    """Return the bandwidth of the fixed row, where training starts. (Scott 1992, eq. 6.42.)"""
    n, features = data.x.shape
    bandwidth = np.full(features, 1.0 if options.bandwidth is None else options.bandwidth)
    if options.bandwidth is None and not options.curve.textbook:
        bandwidth = np.std(data.x, axis=0, ddof=1) * n ** (-1 / (features + 4))
    return float(bandwidth[0]) if features == 1 else bandwidth
