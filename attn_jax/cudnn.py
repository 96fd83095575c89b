"""cuDNN's fused attention on NVIDIA GPUs, through jax.nn, where it means what we mean."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num

from attn_jax import masks, normalizers, scores
from attn_jax.checks import require

_WHO = "implementation 'cudnn'"


def attend(
    query: Num[Array, "q d"],
    key: Num[Array, "k d"],
    value: Num[Array, "k d"],
    *,
    score: Any,
    normalizer: Any,
    score_mod: Any,
    mask: Any,
    dropout: Any,
    logsumexp: bool,
) -> Num[Array, "q d"]:
    """Softmax of scaled dots, whole or causal, in half precision, with first derivatives only.

    Raises:
      ValueError: anything else; the message names it.
    """
    plain_scale = type(score) is scores.Dot or (
        type(score) is scores.ScaledDot and (score.scale is None or _is_number(score.scale))
    )
    without_sink = type(normalizer) is normalizers.Softmax and normalizer.sink is None
    is_softmax = normalizer is normalizers.softmax or without_sink
    causal = type(mask) is masks.Causal and type(mask.offset) is int and mask.offset == 0
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    dtypes = {query.dtype.name, key.dtype.name, value.dtype.name}
    half = len(dtypes) == 1 and dtypes <= {"float16", "bfloat16"}
    width = query.shape[1]
    for holds, rule, got in (
        (not logsumexp, "be asked for the output alone", "attention_and_logsumexp"),
        (plain_scale, "have the score Dot, or ScaledDot with a number as its scale", score),
        (is_softmax, "have the normalizer Softmax without a sink", normalizer),
        (score_mod is None, "have no score_mod", score_mod),
        (mask is None or causal, "have no mask but Causal()", mask),
        (dropout is None, "have no dropout", dropout),
        (half, "have query, key and value all in float16 or all in bfloat16", str(dtypes)),
        (width == value.shape[1], "have values as wide as the keys", shapes),
        (width % 8 == 0 and width <= 128, "have a multiple of 8 features, up to 128", shapes),
        (jax.default_backend() == "gpu", "run on an NVIDIA GPU", jax.default_backend()),
    ):
        require(holds, _WHO, rule, got)
    one_head = (each[None, :, None, :] for each in (query, key, value))
    scale = 1.0 if type(score) is scores.Dot else score.scale
    output = jax.nn.dot_product_attention(
        *one_head, scale=scale, is_causal=causal, implementation="cudnn"
    )
    return jnp.asarray(output)[0, :, 0, :]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
