"""PyTorch: attention as its documentation or its users write it, in its layout [B, N, T, H].

There is no plan of memory to read: on a GPU the allocator's peak counts, on the CPU the growth of
the process's resident memory during a call.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from experiments.benchmark import machine
from experiments.benchmark.cases import RESULTS, Case, Inputs
from experiments.benchmark.implementations import Implementation, Program
from experiments.benchmark.memory import (
    ALLOCATOR,
    RESIDENT,
    Memory,
    available_on_host,
    resident_growth,
)
from experiments.benchmark.shapes import Shape

Attend = Callable[..., torch.Tensor]  # (query, key, value, parameters) -> output


def sdpa(case: Case) -> Attend:
    """`torch.nn.functional.scaled_dot_product_attention`, which chooses its own kernel."""
    shape = case.shape
    how = {"is_causal": shape.causal, "enable_gqa": shape.heads != shape.key_heads}
    function = functional.scaled_dot_product_attention
    return lambda query, key, value, _: function(query, key, value, **how)


def flex(case: Case) -> Attend:
    """`flex_attention`, compiled, with a block mask where there is a mask."""
    from torch.nn.attention import flex_attention as flexible

    shape = case.shape
    sizes = (None, None, shape.queries, shape.keys)
    torch.compiler.reset()  # else it gives up compiling after eight shapes
    compiled = torch.compile(flexible.flex_attention, dynamic=False)

    @functools.cache
    def block_mask(device: torch.device) -> Any:
        if not shape.causal and not shape.window:
            return None
        rule = lambda b, h, i, j: _allowed(shape, i, j)  # noqa: E731
        return flexible.create_block_mask(rule, *sizes, device=device)

    grouped = shape.heads != shape.key_heads
    return lambda query, key, value, _: compiled(
        query, key, value, block_mask=block_mask(query.device), enable_gqa=grouped
    )


def entmax(case: Case) -> Attend:
    """Scores, a normalizer of the entmax package, a matrix product."""
    import entmax as package

    shape = case.shape
    group = shape.heads // shape.key_heads
    scale = 1 / math.sqrt(shape.features) if case.score == "scaled-dot" else 1.0
    normalizer = {
        "sparsemax": lambda scores, _: package.sparsemax(scores, dim=-1),
        "entmax15": lambda scores, _: package.entmax15(scores, dim=-1),
        "entmax": lambda scores, given: package.entmax_bisect(scores, given["alpha"], dim=-1),
    }[case.normalizer]

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
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

    pykeops.set_verbose(False)

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        x = LazyTensor((query / parameters["bandwidth"]).unsqueeze(-2).contiguous())
        y = LazyTensor((key / parameters["bandwidth"]).unsqueeze(-3).contiguous())
        kernel = (-((x - y) ** 2).sum(-1) / 2).exp()
        sums = kernel @ torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        return sums[..., :-1] / sums[..., -1:]

    return attend


FUNCTIONS: dict[str, Callable[[Case], Attend]] = {
    "torch-sdpa": sdpa,
    "torch-flex": flex,
    "entmax": entmax,
    "keops": keops,
}


def _allowed(shape: Shape, i: Any, j: Any) -> Any:
    """Return `Shape.span` as a condition on indices."""
    left, right = shape.window or (shape.queries, shape.keys)
    right = min(right, 0) if shape.causal else right
    return (j >= i - left) & (j <= i + right)


class PyTorch:
    """Programs of PyTorch functions, on as many threads as JAX has, or on the first GPU."""

    def __init__(self, platform: str):
        self.device = torch.device("cuda" if platform == "gpu" else "cpu")
        torch.set_num_threads(machine.cores())
        if platform == "gpu":
            torch.set_float32_matmul_precision("high")  # TF32, as JAX has it there

    def place(self, inputs: Inputs) -> Inputs:
        def heads_first(array: np.ndarray) -> torch.Tensor:
            return self._tensor(array).transpose(1, 2).contiguous()

        return Inputs(
            tuple(map(heads_first, inputs.operands)),
            {name: self._tensor(each) for name, each in inputs.parameters.items()},
            tuple(map(heads_first, inputs.seed)),
        )

    def program(self, implementation: Implementation, case: Case, arguments: Inputs) -> Program:
        attend = FUNCTIONS[implementation.name](case)
        run = {"forward": _forward, "gradient": _gradient}[case.direction]

        def call(arguments: Inputs) -> Any:
            results = run(attend, arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return results

        scores = case.shape.batch * case.shape.heads * case.shape.queries * case.shape.keys
        return Program(
            call,
            lambda arguments: self._memory(lambda: call(arguments)),
            needed=implementation.score_matrices * scores * np.dtype(case.dtype).itemsize,
        )

    def read(self, results: Any, case: Case) -> Mapping[str, np.ndarray]:
        arrays = (each.transpose(1, 2).to("cpu", torch.float64).numpy() for each in results)
        return dict(zip(RESULTS[case.direction], arrays, strict=True))

    def available(self) -> int | None:
        return available_on_host() if self.device.type == "cpu" else None

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        if array.dtype.name == "bfloat16":  # which torch.from_numpy does not know
            return self._tensor(array.astype(np.float32)).to(torch.bfloat16)
        return torch.from_numpy(array).to(self.device)

    def _memory(self, call: Callable[[], Any]) -> Memory | None:
        if self.device.type == "cpu":
            growth = resident_growth(call)
            return None if growth is None else Memory(growth, RESIDENT)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return Memory(torch.cuda.max_memory_allocated() - before, ALLOCATOR)


def _forward(attend: Attend, arguments: Inputs) -> Any:
    with torch.no_grad():
        return (attend(*arguments.operands, arguments.parameters),)


def _gradient(attend: Attend, arguments: Inputs) -> Any:
    operands = [each.detach().requires_grad_() for each in arguments.operands]
    output = attend(*operands, arguments.parameters)
    return torch.autograd.grad(output, operands, arguments.seed[0])
