"""The positions of queries and keys, which masks, score mods and dropout are called with."""

import jax.numpy as jnp
from jaxtyping import Array, Int

Index = Int[Array, "#q #k"]


def indices(queries: int, keys: int) -> tuple[Int[Array, "q 1"], Int[Array, "1 k"]]:
    """query_index [q, 1] and key_index [1, k], which broadcast to all pairs.

    >>> [index.tolist() for index in indices(2, 3)]
    [[[0], [1]], [[0, 1, 2]]]
    """
    return jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
