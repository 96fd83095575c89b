"""Copying tokens of the source: the weights of attention as a distribution over tokens.

    p(w) = p_gen · softmax(logits)_w + (1 - p_gen) · Σ_{i: source_i = w} weight_i

(See, Liu & Manning 2017, eqs. 8-9; pointer networks: Vinyals et al. 2015.) The second term is the
weighted sum of attention itself, its values being the source's tokens, one-hot.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from attn_jax.text.specials import UNKNOWN


class Copying(nnx.Module):
    """The mixture of a vocabulary's tokens and those of the source.

    Tokens from the vocabulary's size v on stand for what it lacks, those of source position i at
    most v + i: there are v + m of them, m being the length of the padded source.

    Weights that sum to less than one (those of an empty source to 0) leave the rest to the
    vocabulary; those that sum to more are divided by their sum.

    Args:
      features: r, of the readout; p_gen = σ(w · readout + b). (The paper's gate sees what the
        readout is made of: context, state and embedding.)
      rngs: a seed for w.

    >>> copying = Copying(2, rngs=nnx.Rngs(0))
    >>> weights, source = jnp.array([[0.5, 0.5, 0.0]]), jnp.array([[1, 4, 4]])
    >>> log_p = copying(jnp.zeros((1, 2)), jnp.zeros((1, 4)), weights, source)
    >>> jnp.exp(log_p).round(3).tolist()
    [[0.125, 0.375, 0.125, 0.125, 0.25, 0.0, 0.0]]
    """

    def __init__(self, features: int, *, rngs: nnx.Rngs):
        self.gate = nnx.Linear(features, 1, param_dtype=float, rngs=rngs)

    def __call__(
        self,
        readout: Float[Array, "n r"],
        logits: Float[Array, "n v"],
        weights: Float[Array, "n m"],
        source: Int[Array, "n m"],
    ) -> Float[Array, "n w"]:
        """log p of each of the v + m tokens, at least the log of the smallest normal number."""
        generated, copied = self.parts(readout, logits, weights)
        p = jnp.concatenate([generated, jnp.zeros_like(copied)], axis=1)
        p = jax.vmap(lambda p, source, copied: p.at[source].add(copied))(p, source, copied)
        return jnp.log(jnp.maximum(p, jnp.finfo(p.dtype).tiny))

    def parts(
        self,
        readout: Float[Array, "n r"],
        logits: Float[Array, "n v"],
        weights: Float[Array, "n m"],
    ) -> tuple[Float[Array, "n v"], Float[Array, "n m"]]:
        """The probability of each token of the vocabulary, and that of copying each position."""
        generated = jax.nn.softmax(logits, axis=-1)
        total = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)
        copied = jax.nn.sigmoid(-self.gate(readout)) * (weights / total)
        copied = copied.astype(generated.dtype)
        return (1 - jnp.sum(copied, axis=1, keepdims=True)) * generated, copied


def known(tokens: Int[Array, "..."], vocabulary: int) -> Int[Array, "..."]:
    """The tokens as an embedding reads them: UNKNOWN for those that the vocabulary lacks."""
    return jnp.where(tokens < vocabulary, tokens, UNKNOWN)
