"""The process that compiles for the target of its command line: a line of JSON per program."""

import json
import math
import re
import sys
import time
from collections import Counter
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from experiments.compile.programs import Program, chosen
from experiments.compile.targets import TARGETS

COLLECTIVES = r"\b(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
ARRAY = re.compile(r"\b(?:pred|[suf]\d+|bf16|f8\w+)\[([\d,]+)\]")
OPERATION = re.compile(r" = (.*?) ([a-z][\w-]*)\(")


def compiled(program: Program, device: Any) -> dict[str, Any]:
    """Compile for a device that is not here; return what the compiler says."""
    one = SingleDeviceSharding(device)

    def described(leaf: Any) -> jax.ShapeDtypeStruct:
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jax.numpy.result_type(leaf)
        return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), dtype, sharding=one)

    arguments = jax.tree.map(described, program.arguments)
    began = time.perf_counter()
    lowered = jax.jit(program.function).lower(*arguments)
    middle = time.perf_counter()
    made = lowered.compile()
    seconds = {"lower_seconds": middle - began, "compile_seconds": time.perf_counter() - middle}
    memory, cost, text = made.memory_analysis(), made.cost_analysis() or {}, made.as_text()
    return seconds | {
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "bytes": cost.get("bytes accessed"),
        "flop": cost.get("flops"),
        "largest_array": largest(text),
        "collectives": Counter(re.findall(COLLECTIVES, text)),
    }


def largest(text: str) -> int:
    r"""Return the elements of the largest array that the program makes, arguments not counted.

    >>> largest("a = f32[9,9] parameter(0)\n b = (f32[2,3], s8[7]) fusion(a), kind=kLoop")
    7
    """
    made = 0
    for line in text.splitlines():
        kind = OPERATION.search(line)
        if kind is not None and kind[2] not in ("parameter", "get-tuple-element", "tuple", "while"):
            sizes = (math.prod(map(int, each.split(","))) for each in ARRAY.findall(kind[1]))
            made = max(made, *sizes, 0)
    return made


def main() -> None:
    """Compile what the standard input names for the target of the command line."""
    options = json.load(sys.stdin)
    device = TARGETS[sys.argv[1]].devices()[0]
    for row, make in chosen(options):
        try:
            result = compiled(make(), device)
        except Exception as error:  # a compiler's refusal is a result
            result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(row | result), flush=True)


if __name__ == "__main__":
    main()
