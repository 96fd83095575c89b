"""Attention of many heads and examples with any slots, each the same for all heads or its own."""

from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax.attention_slots import AttentionSlots
from attn_jax.checks import as_array
from attn_jax.dropout import Dropout
from attn_jax.heads import choose_for_heads, over_heads, require_layout
from attn_jax.masks import MaskFunction
from attn_jax.normalizers import Normalizer, Softmax
from attn_jax.precision import computable
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score


def multi_head_attention(
    query: Num[ArrayLike, "*b t h d"],
    key: Num[ArrayLike, "*b s g c"],
    value: Num[ArrayLike, "*b s g e"],
    *,
    score: Score = ScaledDot(),
    normalizer: Normalizer = Softmax(),
    score_mod: ScoreMod | None = None,
    mask: MaskFunction | None = None,
    dropout: Dropout | None = None,
    implementation: str = "auto",
    block_size: tuple[int, int] | None = None,
) -> Float[Array, "*b t h e"]:
    """`attention` of each head of each example, in the layout [batch, length, heads, features].

    Query head n attends with key head n // (h / g): g divides h (grouped heads; g = 1 is
    multi-query attention). Without a batch the arrays have three axes.

    A slot serves all heads, or has arrays of its own for each: with one axis more in front than
    those of one head they are [h, …], one for each head, with two [b, h, …], one for each example
    and head, where each axis is that size or 1. So `Softmax(sinks)` with sinks [h], `Alibi(slopes)`
    with slopes [h], `Bias(bias)` with a bias [h, q, k], `Padding(lengths[:, None])` with lengths
    [b], and what `jax.vmap` makes of any slot. A bandwidth [h] is one for each head, which is
    refused where there are as many features (write [h, 1]). Arrays that a function closes over
    serve all heads. A `Dropout` of one key drops the same weights in all heads.

    Args:
      query: [b, t, h, d] or [t, h, d].
      key: [b, s, g, c].
      value: [b, s, g, e].
      score: as for `attention`, each with arrays for one head, for each head, or each example too.
      normalizer: likewise.
      score_mod: likewise.
      mask: likewise.
      dropout: likewise.
      implementation: as for `attention`.
      block_size: as for `attention`.

    Raises:
      ValueError: an argument or a slot's field does not fit; the message names it.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((5, 2, 4))
    >>> sinks = Softmax(jnp.array([-jnp.inf, jnp.log(5.0)]))
    >>> multi_head_attention(x, x, x + 1.0, normalizer=sinks)[0, :, 0].round(6).tolist()
    [1.0, 0.5]
    """
    named = {"query": query, "key": key, "value": value}
    query, key, value = (computable(as_array(array, name)) for name, array in named.items())
    require_layout(query, key, value, same_features=False)
    slots = AttentionSlots(score, normalizer, score_mod, mask, dropout)
    chosen = choose_for_heads(implementation, normalizer, query, key, score, block_size)
    return over_heads(chosen.head(), query, key, value, slots, **chosen.turns)
