"""JAX: lower, compile and run apart; the compiled program says what memory it needs."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from experiments.benchmark.cases import RESULTS, Case
from experiments.benchmark.inputs import Inputs
from experiments.benchmark.memory import COMPILED, Memory, available_on_host
from experiments.benchmark.programs import Attend, Program


class JAX:
    """Programs of JAX functions in jax.nn's layout, on one device."""

    def __init__(self, device: jax.Device):
        self.device = device

    def place(self, inputs: Inputs) -> Any:
        return jax.block_until_ready(jax.device_put(inputs, self.device))

    def program(self, attend: Attend, case: Case, arguments: Any, **options: Any) -> Program:
        del options  # those of other frameworks
        jax.clear_caches()  # so that the second implementation traces as much as the first
        begin = time.perf_counter()
        lowered = jax.jit(directed(attend, case.direction)).lower(*arguments)
        lowered_at = time.perf_counter()
        with no_compilation_cache():
            compiled = lowered.compile()
        end = time.perf_counter()
        memory = planned_memory(compiled)
        return Program(
            lambda arguments: jax.block_until_ready(compiled(*arguments)),
            lambda arguments: memory,
            needed=0 if memory is None else memory.peak + memory.arguments,
            lower_seconds=lowered_at - begin,
            compile_seconds=end - lowered_at,
        )

    def read(self, results: Any, case: Case) -> Mapping[str, np.ndarray]:
        return dict(zip(RESULTS[case.direction], map(np.asarray, results), strict=True))

    def available(self) -> int | None:
        if self.device.platform == "cpu":
            return available_on_host()
        known = self.device.memory_stats() or {}
        if "bytes_limit" not in known:
            return None
        return known["bytes_limit"] - known["bytes_in_use"]


def directed(attend: Attend, direction: str) -> Any:
    """Return (operands, parameters, seed) -> the results of that direction."""

    def forward(operands: Any, parameters: Any, seed: Any) -> Any:
        del seed
        return (attend(*operands, parameters),)

    def gradient(operands: Any, parameters: Any, seed: Any) -> Any:
        _, pull = jax.vjp(lambda *each: attend(*each, parameters), *operands)
        return pull(*seed)

    def jvp(operands: Any, parameters: Any, seed: Any) -> Any:
        return jax.jvp(lambda *each: attend(*each, parameters), operands, seed)

    return {"forward": forward, "gradient": gradient, "jvp": jvp}[direction]


def planned_memory(compiled: Any) -> Memory | None:
    """Return what XLA has planned for a compiled program."""
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    temporary, outputs = plan.temp_size_in_bytes, plan.output_size_in_bytes
    return Memory(
        peak=temporary + outputs,
        source=COMPILED,
        temporary=temporary,
        arguments=plan.argument_size_in_bytes,
        outputs=outputs,
    )


@contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Compile for the first time, whatever the persistent cache holds."""
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # whether there is a cache is asked once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()
