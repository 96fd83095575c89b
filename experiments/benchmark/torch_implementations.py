"""Attention in PyTorch, as its documentation or its users write it; layout [B, N, T, H]."""

import functools
import math
from typing import Any

import torch
from torch.nn import functional

from experiments.benchmark.cases import Case
from experiments.benchmark.programs import Attend
from experiments.benchmark.shapes import Shape


def sdpa(case: Case) -> Attend:
    """`torch.nn.functional.scaled_dot_product_attention`, which chooses its own kernel."""
    shape = case.shape

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        del parameters
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=shape.causal, enable_gqa=shape.heads != shape.key_heads
        )

    return attend


def flex(case: Case) -> Attend:
    """`flex_attention`, compiled, with a block mask where there is a mask."""
    from torch.nn.attention import flex_attention as flexible

    shape = case.shape
    torch.compiler.reset()  # else it gives up compiling after eight shapes
    compiled = torch.compile(flexible.flex_attention, dynamic=False)

    @functools.cache
    def block_mask(device: torch.device) -> Any:
        if not shape.causal and not shape.window:
            return None
        return flexible.create_block_mask(
            lambda b, h, i, j: _allowed(shape, i, j),
            None, None, shape.queries, shape.keys, device=device,
        )  # fmt: skip

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        del parameters
        grouped = shape.heads != shape.key_heads
        mask = block_mask(query.device)
        return compiled(query, key, value, block_mask=mask, enable_gqa=grouped)

    return attend


def entmax(case: Case) -> Attend:
    """Scores, a normalizer of the entmax package, a matrix product."""
    import entmax as package

    shape = case.shape
    scale = 1 / math.sqrt(shape.features) if case.score == "scaled-dot" else 1.0
    normalizers = {
        "sparsemax": lambda scores, _: package.sparsemax(scores, dim=-1),
        "entmax15": lambda scores, _: package.entmax15(scores, dim=-1),
        "entmax": lambda scores, given: package.entmax_bisect(scores, given["alpha"], dim=-1),
    }
    normalizer = normalizers[case.normalizer]

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        group = shape.heads // shape.key_heads
        if group > 1:
            key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
        scores = scale * query @ key.mT
        if shape.causal or shape.window:
            i = torch.arange(shape.queries, device=query.device)[:, None]
            j = torch.arange(shape.keys, device=query.device)
            scores = scores.masked_fill(~_allowed(shape, i, j), -math.inf)
        return normalizer(scores, parameters) @ value

    return attend


def keops(case: Case) -> Attend:
    """Σ K value / Σ K as one KeOps reduction: K is never written down."""
    import pykeops
    from pykeops.torch import LazyTensor

    del case
    pykeops.set_verbose(False)

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        x = LazyTensor((query / parameters["bandwidth"]).unsqueeze(-2).contiguous())
        y = LazyTensor((key / parameters["bandwidth"]).unsqueeze(-3).contiguous())
        kernel = (-((x - y) ** 2).sum(-1) / 2).exp()
        sums = kernel @ torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        return sums[..., :-1] / sums[..., -1:]

    return attend


def _allowed(shape: Shape, i: Any, j: Any) -> Any:
    """Return `Shape.span` as a condition on indices."""
    left, right = shape.window or (shape.queries, shape.keys)
    right = min(right, 0) if shape.causal else right
    return (j >= i - left) & (j <= i + right)
