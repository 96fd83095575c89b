"""Data for tests of regression: a textbook's curve, and sets that statsmodels and sklearn bring."""

from typing import NamedTuple

import numpy as np
import statsmodels.datasets
from sklearn.datasets import load_diabetes


class Data(NamedTuple):
    """Inputs [n, d] and outputs [n, 1]."""

    x: np.ndarray
    y: np.ndarray


def truth(x):
    """2 sin x + x^0.8. (Zhang et al. 2023, Dive into Deep Learning, section 11.2.)"""
    return 2 * np.sin(x) + x**0.8


def textbook(n, seed=0):
    """n points of it, x sorted and uniform on [0, 5], with noise N(0, 0.5²)."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 5, n))
    y = truth(x) + rng.normal(0, 0.5, n)
    return Data(x[:, None], y[:, None])


def textbook_test():
    """x = 0, 0.1, … 4.9, without noise."""
    x = np.arange(0, 5, 0.1)[:, None]
    return Data(x, truth(x))


def named(name, x=()):
    """Engel's households, the Nile's flow, or diabetes by bmi or other columns."""
    if name == "diabetes":
        frame = load_diabetes(as_frame=True, scaled=False).frame
        x, y = list(x or ["bmi"]), "target"
    else:
        frame = getattr(statsmodels.datasets, name).load_pandas().data
        x, y = {"engel": (["income"], "foodexp"), "nile": (["year"], "volume")}[name]
    return Data(*(frame[each].to_numpy(np.float64) for each in (x, [y])))
