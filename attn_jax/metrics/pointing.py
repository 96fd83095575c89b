"""Whether attention looks where it should: weights beside regions known to be right."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from attn_jax.checks import require


class Pointing(NamedTuple):
    """How often, and with how much weight, steps attend to their gold regions.

    Attributes:
        hit: the share of steps whose largest weight is in the region (of several largest ones,
            the share of them).
        mass: the mean share of the weights in it.
        chance: the mean share of the positions in it: both numbers of a uniform attention.
        entropy: the mean of -Σ w log w, in nats.
        zeros: the share of the positions whose weight is exactly 0.
        steps: how many there are.
    """

    hit: float
    mass: float
    chance: float
    entropy: float
    zeros: float
    steps: int


def pointing(
    weights: Sequence[Float[ArrayLike, "_ _"]], gold: Sequence[Bool[ArrayLike, "_ _"]]
) -> Pointing:
    """Compare the weights of steps with the regions that they should look at, over all examples.

    An example's weights are [t, m], its regions too, of steps over a memory.
    The pointing game (Zhang et al. 2016, section 4.1), and the share of the weight. A step without
    a region, of which all positions or none are gold, is left out, and so is one without weight.

    >>> pointing([np.array([[0.5, 0.5, 0.0]])], [np.array([[True, False, False]])])[:3]
    (0.5, 0.5, 0.3333333333333333)
    """
    require(len(weights) == len(gold), "gold", f"be of {len(weights)} examples", len(gold))
    hit, mass, chance, entropy, zeros = [], [], [], [], []
    for of_one, region in zip(map(np.asarray, weights), map(np.asarray, gold), strict=True):
        require(region.shape == of_one.shape, "gold", f"have shape {of_one.shape}", region)
        require(region.dtype == bool, "gold", "be booleans", region)
        for row, inside in zip(of_one.astype(float), region, strict=True):
            total = row.sum()
            if inside.all() or not inside.any() or not total > 0:
                continue
            row = row / total
            largest = row == row.max()
            hit.append(inside[largest].mean())
            mass.append(row[inside].sum())
            chance.append(inside.mean())
            entropy.append(-np.sum(row * np.log(np.where(row > 0, row, 1))))
            zeros.append(np.mean(row == 0))
    steps = len(hit)
    columns = (hit, mass, chance, entropy, zeros)
    means = [float(np.mean(each)) if steps else float("nan") for each in columns]
    return Pointing(*means, steps=steps)
