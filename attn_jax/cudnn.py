"""cuDNN's fused attention on NVIDIA GPUs, through jax.nn, where it means what we mean."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from attn_jax import masks, normalizers, scores
from attn_jax.attention_slots import AttentionSlots
from attn_jax.checks import require


def attend(
    query: Num[Array, "b q n d"],
    key: Num[Array, "b k g d"],
    value: Num[Array, "b k g e"],
    slots: AttentionSlots,
    *,
    block_size: Any = None,
    logsumexp: bool = False,
) -> Num[Array, "b q n e"]:
    """Softmax of scaled dots, whole or causal, in half precision, with first derivatives only.

    All heads in one call, the slots being the same for each of them: query head h attends with key
    head h // (n / g).

    Raises:
      ValueError: anything else; the message names it.
    """
    score, normalizer, mask = slots.score, slots.normalizer, slots.mask
    plain_scale = type(score) is scores.Dot or (
        type(score) is scores.ScaledDot and (score.scale is None or _is_number(score.scale))
    )
    without_sink = type(normalizer) is normalizers.Softmax and normalizer.sink is None
    is_softmax = normalizer is normalizers.softmax or without_sink
    causal = type(mask) is masks.Causal and type(mask.offset) is int and mask.offset == 0
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    dtypes = {query.dtype.name, key.dtype.name, value.dtype.name}
    half = len(dtypes) == 1 and dtypes <= {"float16", "bfloat16"}
    width, backend = query.shape[-1], jax.default_backend()
    for holds, rule, got in (
        (not logsumexp, "the output alone is asked for", "attention_and_logsumexp"),
        (plain_scale, "the score is Dot, or ScaledDot with a number as its scale", score),
        (is_softmax, "the normalizer is Softmax without a sink", normalizer),
        (slots.score_mod is None, "there is no score_mod", slots.score_mod),
        (mask is None or causal, "the mask is None or Causal()", mask),
        (slots.dropout is None, "there is no dropout", slots.dropout),
        (block_size is None, "there is no block_size", block_size),
        (half, "query, key and value are all float16 or all bfloat16", str(dtypes)),
        (width == value.shape[-1], "value has as many features as key", shapes),
        (width % 8 == 0 and width <= 128, "the features are a multiple of 8, up to 128", shapes),
        (backend == "gpu", "an NVIDIA GPU is the default device", backend),
    ):
        require(holds, "implementation", f"not be 'cudnn' unless {rule}", got)
    options = {"is_causal": causal, "implementation": "cudnn"}
    options["scale"] = score.scale if isinstance(score, scores.ScaledDot) else 1.0
    return jnp.asarray(jax.nn.dot_product_attention(query, key, value, **options))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
