"""PyTorch, in its layout [B, N, T, H], on as many threads as JAX has.

There is no plan of memory to read: on a GPU the allocator's peak counts, on the CPU the growth of
the process's resident memory during a call.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from experiments.benchmark import machine
from experiments.benchmark.cases import RESULTS, Case
from experiments.benchmark.inputs import Inputs
from experiments.benchmark.memory import (
    ALLOCATOR,
    RESIDENT,
    Memory,
    available_on_host,
    resident_growth,
)
from experiments.benchmark.programs import Attend, Program


class PyTorch:
    """Programs of PyTorch functions, on the CPU or the first GPU."""

    def __init__(self, platform: str):
        self.device = torch.device("cuda" if platform == "gpu" else "cpu")
        torch.set_num_threads(machine.cores())
        if platform == "gpu":
            torch.set_float32_matmul_precision("high")  # TF32, as JAX has it there

    def place(self, inputs: Inputs) -> Any:
        def heads_first(array: np.ndarray) -> torch.Tensor:
            return self._tensor(array).transpose(1, 2).contiguous()

        return Inputs(
            tuple(map(heads_first, inputs.operands)),
            {name: self._tensor(each) for name, each in inputs.parameters.items()},
            tuple(map(heads_first, inputs.seed)),
        )

    def program(
        self,
        attend: Attend,
        case: Case,
        arguments: Any,
        *,
        score_matrices: int = 0,
        compiles_at_first_call: bool = False,
    ) -> Program:
        del arguments
        run = {"forward": _forward, "gradient": _gradient}[case.direction]

        def call(arguments: Inputs) -> Any:
            results = run(attend, arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            return results

        shape = case.shape
        scores = shape.batch * shape.heads * shape.queries * shape.keys
        return Program(
            call,
            lambda arguments: self._memory(lambda: call(arguments)),
            needed=score_matrices * scores * np.dtype(case.dtype).itemsize,
            compiles_at_first_call=compiles_at_first_call,
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

    def _memory(self, call: Any) -> Memory | None:
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
