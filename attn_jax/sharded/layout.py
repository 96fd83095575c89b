"""Which tokens each device has."""

import numpy as np
from jaxtyping import Int

from attn_jax.checks import require, require_count

LAYOUTS = ("contiguous", "zigzag")


def zigzag(length: int, devices: int) -> Int[np.ndarray, " length"]:
    """The position of the token at each place where layout="zigzag", which balances causal masks.

    Of 2 · devices chunks of the sequence, device d has the d-th and the d-th from the end: each has
    as many pairs of a query and an earlier key. (As in Llama 3: Grattafiori et al. 2024, section
    3.3.2.) `x[zigzag(n, p)]` are the tokens in that order, these positions are what a rotary
    embedding gets, and `y[np.argsort(zigzag(n, p))]` is the order of the sequence again.

    Raises:
      ValueError: 2 · devices does not divide the length.

    >>> zigzag(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    require_count(length, "length")
    require_count(devices, "devices")
    fits = devices > 0 and length % (2 * devices) == 0
    require(fits, "length", f"be a multiple of 2 · devices, {2 * devices}", length)
    chunks = np.arange(length).reshape(2 * devices, -1)
    pairs = [chunks[[device, 2 * devices - 1 - device]] for device in range(devices)]
    return np.concatenate(pairs).reshape(-1)
