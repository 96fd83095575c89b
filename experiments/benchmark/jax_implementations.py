"""Attention in JAX: ours in each implementation, jax.nn's, Flax's and tokamax's."""

from typing import Any

import attn_jax
from experiments.benchmark.cases import Case
from experiments.benchmark.programs import Attend
from experiments.benchmark.slots import NORMALIZERS, SCORES


def ours(case: Case, implementation: str) -> Attend:
    """`dot_product_attention` where it will do, else the slots, over batch and heads."""
    shape = case.shape
    if (case.score, case.normalizer) == ("scaled-dot", "softmax"):
        return _like_jax_nn(attn_jax.dot_product_attention, case, implementation=implementation)
    structure = [attn_jax.Causal()] * shape.causal
    structure += [attn_jax.Window(*shape.window)] if shape.window else []
    mask = structure[0] if structure else None
    for other in structure[1:]:
        mask &= other

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        over_heads = attn_jax.flax_attention_fn(
            score=SCORES[case.score].make(attn_jax, parameters),
            normalizer=NORMALIZERS[case.normalizer].make(attn_jax, parameters),
            mask=mask,
            implementation=implementation,
        )
        return over_heads(query, key, value)

    return attend


def jax_nn(case: Case) -> Attend:
    """`jax.nn.dot_product_attention` as it comes."""
    import jax

    return _like_jax_nn(jax.nn.dot_product_attention, case)


def flax(case: Case) -> Attend:
    """`flax.nnx.dot_product_attention` as it comes."""
    from flax import nnx

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        del parameters
        return nnx.dot_product_attention(query, key, value, is_causal=case.shape.causal)

    return attend


def tokamax(case: Case) -> Attend:
    """`tokamax.dot_product_attention`, which chooses its own implementation."""
    from tokamax import dot_product_attention

    return _like_jax_nn(dot_product_attention, case)


def _like_jax_nn(function: Any, case: Case, **options: Any) -> Attend:
    options |= {"is_causal": case.shape.causal, "local_window_size": case.shape.window}

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        del parameters
        return function(query, key, value, **options)

    return attend
