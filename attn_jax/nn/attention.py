"""Attention with learned projections and any score, for a batch of queries over padded memories."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int

from attn_jax import scores
from attn_jax.attention import attention, attention_weights
from attn_jax.attention_slots import require_slots
from attn_jax.checks import require, require_function
from attn_jax.constraints import between, free_between
from attn_jax.masks import MaskFunction, Padding, combined
from attn_jax.matmul import affine
from attn_jax.nn.arguments import require_flags, require_rngs, sizes_of
from attn_jax.nn.slots import Slots
from attn_jax.normalizers import Entmax, Softmax
from attn_jax.thresholds import ALPHA_LIMIT

SCORES = ("additive", "bilinear", "cosine", "dot", "scaled_dot")


class Attention(nnx.Module):
    """Attend from queries [b, q, d] to a memory [b, k, c] with its lengths, by a learned score.

    | score | parameters |
    |---|---|
    | "additive" | weight · tanh(W query + U key + b): Bahdanau et al. 2014, appendix A.1.2 |
    | "bilinear" | query · W key: Luong et al. 2015, "general" |
    | "cosine" | scale · cos(query, key): the scale |
    | "dot", "scaled_dot" | none |

    In the last two rows a key of another width than the query's is projected.

    A function or a member of `attn_jax.scores` is a score too, on queries and keys as they are.

    Args:
      query_features: d.
      key_features: c.
      features: width of the additive comparison; None: that of the query.
      score: a name of the table, or a score.
      normalizer: a normalizer slot or function.
      learn_alpha: whether training changes the alpha of an `Entmax`, within (1, 16). (An array is
        a parameter without it too, as in all `Slots`: it may leave that range.)
      rngs: a seed for the parameters.

    >>> layer = Attention(3, 4, score="bilinear", rngs=nnx.Rngs(0))
    >>> memory = jnp.ones((1, 5, 4))
    >>> layer(jnp.ones((1, 2, 3)), layer.keys(memory), memory, jnp.array([5])).shape
    (1, 2, 4)
    """

    def __init__(
        self,
        query_features: int,
        key_features: int,
        *,
        features: int | None = None,
        score: Any = "additive",
        normalizer: Any = Softmax(),
        learn_alpha: bool = False,
        rngs: nnx.Rngs,
    ):
        named = isinstance(score, str)
        form = f"one of {list(SCORES)}, or a function (query, key) -> scores"
        if named:
            require(score in SCORES, "score", f"be {form}", repr(score))
        else:
            require_function(score, "score", form)
        require_slots(normalizer=normalizer)
        require_flags(learn_alpha=learn_alpha)
        require_rngs(rngs)
        learnable = isinstance(normalizer, Entmax) or not learn_alpha
        require(learnable, "learn_alpha", "be False without an Entmax normalizer", normalizer)
        query_features, key_features, features = sizes_of(
            query_features=query_features, key_features=key_features, features=features
        )
        glorot = jax.nn.initializers.glorot_uniform()
        self.name, self.key_features = score if named else "given", key_features
        self.slots = Slots(
            score=None if named else score, normalizer=None if learn_alpha else normalizer
        )
        self.free_alpha = nnx.data(None)
        if learn_alpha:
            alpha = jnp.asarray(normalizer.alpha, float)
            self.free_alpha = nnx.Param(free_between(alpha, 1.0, ALPHA_LIMIT))
        self.query_kernel = self.key_kernel = self.key_bias = self.weight = nnx.data(None)

        def parameter(*shape: int) -> nnx.Param:
            return nnx.Param(glorot(rngs.params(), shape, float))

        if score == "additive":
            features = query_features if features is None else features
            self.query_kernel = parameter(query_features, features)
            self.key_kernel = parameter(key_features, features)
            self.key_bias = nnx.Param(jnp.zeros(features))
            self.weight = nnx.Param(parameter(features, 1)[:, 0])
        elif score == "bilinear":
            self.weight = parameter(query_features, key_features)
        elif named and query_features != key_features:
            self.key_kernel = parameter(key_features, query_features)
        if score == "cosine":  # between -1 and 1 no softmax can choose: the scale is learned
            self.weight = nnx.Param(jnp.asarray(5.0, float))

    @property
    def score(self) -> Any:
        """The score slot with the parameters now."""
        if self.name not in SCORES:
            return self.slots["score"]
        make = scores.BY_NAME[self.name]
        return make() if self.weight is None else make(self.weight[...])

    @property
    def normalizer(self) -> Any:
        """The normalizer now, with the alpha that was learned."""
        if self.free_alpha is None:
            return self.slots["normalizer"]
        return Entmax(between(self.free_alpha[...], 1.0, ALPHA_LIMIT))

    @property
    def compared_features(self) -> int:
        """a, of the keys as the score compares them."""
        return self.key_features if self.key_kernel is None else self.key_kernel.shape[1]

    def keys(self, memory: Float[ArrayLike, "b k c"]) -> Float[Array, "b k a"]:
        """The memory as the score compares it: computed once, whatever attends to it."""
        memory = jnp.asarray(memory)
        if self.key_kernel is None:
            return memory
        bias = None if self.key_bias is None else self.key_bias[...]
        return affine(memory, self.key_kernel[...], bias)

    def __call__(
        self,
        query: Float[ArrayLike, "b q d"],
        keys: Float[ArrayLike, "b k a"],
        memory: Float[ArrayLike, "b k c"],
        length: Int[ArrayLike, " b"],
    ) -> Float[Array, "b q c"]:
        """The context of each query: the weighted sum over the memory, 0 where that is empty."""

        def one(query, keys, memory, length):
            slots = {"score": self.score, "normalizer": self.normalizer, "mask": Padding(length)}
            return attention(query, keys, memory, **slots)

        arrays = (self._queries(query), keys, memory, length)
        return jax.vmap(one)(*map(jnp.asarray, arrays))

    def weights(
        self,
        query: Float[ArrayLike, "b q d"],
        keys: Float[ArrayLike, "b k a"],
        length: Int[ArrayLike, " b"],
        mask: Callable[[Any], MaskFunction | None] = lambda context: None,
        context: Any = None,
    ) -> Float[Array, "b q k"]:
        """The weights of that sum: the soft alignment.

        `mask` makes a further mask of each example's part of `context`, a pytree of [b, ...].
        """

        def one(query, keys, length, context):
            allowed = combined([Padding(length), mask(context)])
            slots = {"score": self.score, "normalizer": self.normalizer, "mask": allowed}
            return attention_weights(query, keys, **slots)

        arrays = map(jnp.asarray, (self._queries(query), keys, length))
        return jax.vmap(one)(*arrays, context)

    def _queries(self, query: Float[ArrayLike, "b q d"]) -> Float[Array, "b q a"]:
        query = jnp.asarray(query)
        if self.query_kernel is None:
            return query
        return affine(query, self.query_kernel[...], None)
