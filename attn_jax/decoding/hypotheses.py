"""Hypotheses of a beam: where each one ends, and the way back to its start."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int


class Hypotheses(NamedTuple):
    """Some hypotheses of each example: the last token of each is in `slots` of step length - 1.

    A place without a hypothesis has a log-probability of -inf.
    """

    log_probabilities: Float[Array, "b n"]
    lengths: Int[Array, "b n"]
    slots: Int[Array, "b n"]

    @property
    def real(self) -> Bool[Array, "b n"]:
        """Where there is a hypothesis."""
        return self.log_probabilities > -jnp.inf

    def scores(
        self,
        length_penalty: Float[ArrayLike, ""] | int,
        *,
        like: Int[ArrayLike, "..."] | int = 1,
    ) -> Float[Array, "b n"]:
        """log P / lp(length), times lp(like)."""
        return normalised(self.log_probabilities, self.lengths, length_penalty, like=like)

    def take(self, places: Int[Array, "b c"]) -> "Hypotheses":
        """Those at these places."""
        return Hypotheses(*(jnp.take_along_axis(part, places, axis=1) for part in self))

    def only(self, where: Bool[Array, "b n"]) -> "Hypotheses":
        """Without those elsewhere."""
        return self._replace(log_probabilities=jnp.where(where, self.log_probabilities, -jnp.inf))

    def best(
        self,
        n: int,
        length_penalty: Float[ArrayLike, ""] | int,
        *,
        longest: Int[ArrayLike, ""] | int,
    ) -> "Hypotheses":
        """The n best by score, best first; of equal ones the first. None is longer than `longest`.

        Their scores are compared times lp(longest): a penalty so large that scores vanish leaves
        the long ones apart, and the short ones, all -inf then, in their order.
        """
        return self.take(jax.lax.top_k(self.scores(length_penalty, like=longest), n)[1])

    def beside(self, others: "Hypotheses") -> "Hypotheses":
        """These, then the others."""
        both = zip(self, others, strict=True)
        return Hypotheses(*(jnp.concatenate(parts, axis=1) for parts in both))


def normalised(
    log_probabilities: Float[Array, "b n"],
    lengths: Int[Array, "b #n"],
    length_penalty: Float[ArrayLike, ""] | int,
    *,
    like: Int[ArrayLike, "..."] | int = 1,
) -> Float[Array, "b n"]:
    """log P / lp, lp = ((5 + length) / 6)^length_penalty. (Wu et al. 2016, eq. 14, without β.)

    Times lp(like), the log P of a hypothesis of that length which scores the same; lp(1) is 1.

    >>> normalised(jnp.array([[-2.0]]), jnp.array([[19]]), 0.5).tolist()
    [[-1.0]]
    >>> normalised(jnp.array([[-2.0]]), jnp.array([[19]]), 0.5, like=91).tolist()
    [[-4.0]]
    """
    dtype = log_probabilities.dtype
    longer = (5 + lengths.astype(dtype)) / (5 + like)
    scores = log_probabilities / longer ** jnp.asarray(length_penalty, dtype)
    return jnp.where(log_probabilities == 0, 0.0, scores)  # a certain one is best at any lp


class History(NamedTuple):
    """What each step chose: a token in each slot, appended to slot `parents` of the step before.

    Weights are as the step returned them: those of the slots before the step.
    """

    tokens: Int[Array, "t b s"]
    parents: Int[Array, "t b s"]
    weights: Float[Array, "t b s k"] | None

    def write(
        self,
        t: Int[Array, ""],
        tokens: Int[Array, "b s"],
        parents: Int[Array, "b s"],
        weights: Float[Array, "n k"] | None,
    ) -> "History":
        """With what step t chose."""
        written = self._replace(
            tokens=self.tokens.at[t].set(tokens), parents=self.parents.at[t].set(parents)
        )
        if weights is None:
            return written
        weights = weights.reshape(self.weights.shape[1:])
        return written._replace(weights=self.weights.at[t].set(weights))

    def trace(
        self, last: Hypotheses, end: int
    ) -> tuple[Int[Array, "b n t"], Float[Array, "b n t k"] | None]:
        """Tokens and weights of hypotheses, followed back from where they end."""

        def back(slots, step):
            t, tokens, parents = step
            inside = t < last.lengths
            token = jnp.where(inside, jnp.take_along_axis(tokens, slots, axis=1), end)
            slots = jnp.where(inside, jnp.take_along_axis(parents, slots, axis=1), slots)
            return slots, (token, slots)

        time = jnp.arange(len(self.tokens), dtype=jnp.int32)
        steps = (time, self.tokens, self.parents)
        _, (tokens, parents) = jax.lax.scan(back, last.slots, steps, reverse=True)
        tokens = jnp.moveaxis(tokens, 0, 2)
        if self.weights is None:
            return tokens, None
        weights = jnp.take_along_axis(self.weights, parents[..., None], axis=2)
        inside = time[None, None, :] < last.lengths[..., None]
        return tokens, jnp.where(inside[..., None], jnp.moveaxis(weights, 0, 2), 0)
