"""JAX: attention as each library's users write it; lower, compile and run apart."""

import functools
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from flax import nnx

import attn_jax
from attn_jax import normalizers, scores
from experiments.benchmark.cases import NORMALIZERS, RESULTS, SCORES, Case, Inputs
from experiments.benchmark.implementations import Implementation, Program
from experiments.benchmark.memory import COMPILED, Memory, available_on_host

Attend = Callable[..., jax.Array]  # (query, key, value, parameters) -> output, [B, T, N, H]


def ours(implementation: str, case: Case) -> Attend:
    """`dot_product_attention` where it will do, else the slots, over batch and heads."""
    if (case.score, case.normalizer) == ("scaled-dot", "softmax"):
        function = attn_jax.dot_product_attention
        return like_jax_nn(functools.partial(function, implementation=implementation), case)
    masks = [attn_jax.Causal()] * case.shape.causal
    masks += [attn_jax.Window(*case.shape.window)] if case.shape.window else []

    score = scores.BY_NAME[case.score.replace("-", "_")]
    normalizer = normalizers.BY_NAME[case.normalizer.removesuffix("-sink")]

    def attend(query: Any, key: Any, value: Any, parameters: Any) -> Any:
        over_heads = attn_jax.flax_attention_fn(
            score=score(**{name: parameters[name] for name in SCORES[case.score]}),
            normalizer=normalizer(**{n: parameters[n] for n in NORMALIZERS[case.normalizer]}),
            mask=functools.reduce(operator.and_, masks) if masks else None,
            implementation=implementation,
        )
        return over_heads(query, key, value)

    return attend


def like_jax_nn(function: Callable[..., jax.Array], case: Case) -> Attend:
    """Return a function with `jax.nn.dot_product_attention`'s signature, as it comes."""
    masks = {"is_causal": case.shape.causal, "local_window_size": case.shape.window}
    return lambda query, key, value, _: function(query, key, value, **masks)


def flax(case: Case) -> Attend:
    """`flax.nnx.dot_product_attention` as it comes."""
    masks = {"is_causal": case.shape.causal}
    return lambda query, key, value, _: nnx.dot_product_attention(query, key, value, **masks)


def tokamax(case: Case) -> Attend:
    """`tokamax.dot_product_attention`, which chooses its own implementation."""
    from tokamax import dot_product_attention

    return like_jax_nn(dot_product_attention, case)


FUNCTIONS: dict[str, Callable[[Case], Attend]] = {
    **{name: functools.partial(ours, name) for name in ("dense", "streaming", "cudnn")},
    "jax.nn": functools.partial(like_jax_nn, jax.nn.dot_product_attention),
    "flax": flax,
    "tokamax": tokamax,
}


class JAX:
    """Programs of JAX functions, on one device."""

    def __init__(self, device: jax.Device):
        self.device = device

    def place(self, inputs: Inputs) -> Inputs:
        return jax.block_until_ready(jax.device_put(inputs, self.device))

    def program(self, implementation: Implementation, case: Case, arguments: Inputs) -> Program:
        attend = FUNCTIONS[implementation.name](case)
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
        return known["bytes_limit"] - known["bytes_in_use"] if "bytes_limit" in known else None


def directed(attend: Attend, direction: str) -> Callable[..., tuple[jax.Array, ...]]:
    """Return (operands, parameters, seed) -> the results of that direction."""

    def forward(operands: Any, parameters: Any, _: Any) -> Any:
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
    arguments = plan.argument_size_in_bytes
    return Memory(temporary + outputs, COMPILED, temporary, arguments, outputs)


@contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Compile for the first time, whatever the persistent cache holds."""
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()  # JAX finds out only once whether there is a cache
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        reset_cache()
