"""attn_jax: attention as one equation, score → normalize → weighted sum.

    output_i = Σ_j  w_ij · value_j,      w_i = normalizer(mask(score_mod(score(query_i, key_j))))

>>> import jax.numpy as jnp
>>> x = jnp.eye(3)
>>> attention(x, x, x, score=Dot(), normalizer=Sparsemax(), mask=Causal()).tolist()
[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
"""

from attn_jax import dropout, kernels, masks, normalizers, score_mods, scores
from attn_jax.attention import attention, attention_and_logsumexp, attention_weights, merge
from attn_jax.drop_in import dot_product_attention, flax_attention_fn
from attn_jax.dropout import Dropout
from attn_jax.masks import Causal, Dense, Padding, Prefix, Segments, Window
from attn_jax.multi_head import multi_head_attention
from attn_jax.normalizers import (
    Entmax,
    Sigmoid,
    Softmax,
    Sparsemax,
    entmax,
    entmax15,
    logsumexp,
    sigmoid,
    softmax,
    sparsemax,
)
from attn_jax.score_mods import Alibi, Bias, RelativeBias, SoftCap, chain
from attn_jax.scores import Additive, Bilinear, Cosine, Dot, Kernel, ScaledDot, pairwise

__version__ = "0.1.0"
