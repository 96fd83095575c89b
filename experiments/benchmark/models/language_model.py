"""How fast a Transformer trains, decodes and compiles, and in how much memory.

Beside it the same model with the same weights from the modules of `flax.nnx` and, where it is
installed, from PyTorch's layers: their first losses agree before anything is timed, and their steps
are timed in turns. All in float32, without dropout.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attn_jax.nn import LanguageModel
from experiments.benchmark.models import flax_language_model as flax_baseline
from experiments.benchmark.models import training_step
from experiments.benchmark.timing import interleaved
from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.harness.runs import start as start_run

RATE, CLIP = 1e-3, 1.0
AGREE = 1e-4  # relative difference of the first losses
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    vocabulary: int = 1000
    features: int = 256
    heads: int = 8
    layers: int = 6
    batches: tuple[tuple[int, int], ...] = ((64, 32), (8, 512))  # sequences, tokens in each
    context: int = 8192
    context_layers: int = 4
    depths: tuple[int, int] = (2, 12)
    decoded: int = 512
    rows: tuple[int, ...] = (1, 32)  # texts that are generated at a time
    parts: int = 8
    seconds: float = 8.0


TINY = Sizes(11, 8, 2, 1, ((2, 5),), 16, 1, (1, 2), decoded=8, rows=(2,), parts=2, seconds=0.01)


def run(options: Any) -> None:
    """Measure each part, print and write it."""
    output = start_run("language-model-speed", options, options.output)
    metrics = {}
    for part in (training, context, decoding, compiling):
        metrics[part.__name__] = part(TINY if options.smoke else Sizes())
        tables.print_table(metrics[part.__name__])
        output.write_metrics(metrics)  # what is done stays


def built(sizes: Sizes, layers: int, longest: int, *, remat: bool = False) -> LanguageModel:
    """Return the language model that Flax's and PyTorch's modules can build too."""
    of_positions = {"positions": "learned", "longest": longest}
    size = (sizes.vocabulary, sizes.features, sizes.heads, layers)
    return LanguageModel(*size, **of_positions, remat=remat, rngs=nnx.Rngs(0))


def tokens_of(sizes: Sizes, rows: int, length: int) -> np.ndarray:
    """Return random texts."""
    return np.random.default_rng(0).integers(0, sizes.vocabulary, (rows, length)).astype(np.int32)


def step_of(model: Any) -> tuple[Callable, Any]:
    """Return the jitted training step, by Adam with clipped gradients, and its first state."""
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(RATE))
    return training_step.compiled(model, lambda model, batch, rng: model.loss(batch), optimizer)


def training(sizes: Sizes) -> Rows:
    """Return the seconds of a training step of each, and how many times ours it takes."""
    rows = []
    for batch, length in sizes.batches:
        tokens = tokens_of(sizes, batch, length + 1)
        ours = built(sizes, sizes.layers, length)
        models = {"attn_jax": ours, "flax.nnx": flax_baseline.like(ours)}
        calls = {
            name: training_step.repeated(*step_of(model), tokens) for name, model in models.items()
        }
        if importlib.util.find_spec("torch"):
            from experiments.benchmark.models import torch_language_model as torch_baseline

            calls["PyTorch"] = torch_baseline.training(
                torch_baseline.like(ours), tokens, RATE, CLIP
            )
        losses = {name: call() for name, call in calls.items()}  # compiles
        for name, loss in losses.items():
            if abs(loss - losses["attn_jax"]) > AGREE * abs(loss):
                raise UserError(f"the models differ: the first losses are {losses}. Got {name}'s.")
        taken = np.median(interleaved(list(calls.values()), sizes.seconds), axis=1)
        rows += [
            {
                "training": name,
                "sequences": batch,
                "tokens\nin each": length,
                "ms\na step": 1e3 * seconds,
                "tokens/s": int(batch * length / seconds),
                "time /\nattn_jax's": seconds / taken[0],
                "first\nloss": losses[name],
            }
            for name, seconds in zip(calls, taken, strict=True)
        ]
    return rows


def context(sizes: Sizes) -> Rows:
    """Return the memory of a training step on one long text, by the compiled program's analysis."""
    tokens = tokens_of(sizes, 1, sizes.context + 1)
    rows = []
    for name, remat in (("attn_jax", False), ("attn_jax, remat", True), ("flax.nnx", False)):
        model = built(sizes, sizes.context_layers, sizes.context, remat=remat)
        function, state = step_of(flax_baseline.like(model) if name == "flax.nnx" else model)
        compiled = function.lower(state, tokens).compile()
        memory = compiled.memory_analysis()
        outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
        needed = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
        row = {
            "one long text": name,
            "tokens": sizes.context,
            "layers": sizes.context_layers,
            "GB": needed / 1e9,
            "seconds\na step": None,
        }
        if name != "flax.nnx":  # which may need more than there is
            call = training_step.repeated(compiled, state, tokens)
            call()
            start = time.perf_counter()
            call()
            row["seconds\na step"] = time.perf_counter() - start
        rows.append(row)
    return rows


def finished(function: Callable, *arguments: Any) -> Any:
    """Return a function's result when all of it is there."""
    return jax.block_until_ready(function(*arguments))


def decoding(sizes: Sizes) -> Rows:
    """Return the milliseconds of a token, by its position, from a cache and computed anew."""
    model = built(sizes, sizes.layers, sizes.decoded)
    graphdef, state = nnx.split(model)
    part = sizes.decoded // sizes.parts
    rows = []

    @jax.jit
    def anew(state, tokens):
        return nnx.merge(graphdef, state)(tokens)[:, -1].argmax(-1)

    for count in sizes.rows:
        more = continued(graphdef, part)
        cached = np.zeros((4, sizes.parts))
        for turn in cached:
            token = jnp.zeros(count, jnp.int32)
            caches = model.cache(count, sizes.decoded)
            for number in range(sizes.parts):
                start = time.perf_counter()
                token, caches = finished(more, state, token, caches)
                turn[number] = (time.perf_counter() - start) / part
        for number, seconds in enumerate(np.median(cached[1:], axis=0)):  # the first one compiles
            prefix = tokens_of(sizes, count, (number + 1) * part)
            again = partial(finished, anew.lower(state, prefix).compile(), state, prefix)
            full = float(np.median(interleaved([again], sizes.seconds / 20)))
            rows.append(
                {
                    "decoding,\ntexts": count,
                    "up to\nposition": (number + 1) * part,
                    "cached,\nms a token": 1e3 * seconds,
                    "anew,\nms a token": 1e3 * full,
                    "anew /\ncached": full / seconds,
                }
            )
    return rows


def continued(graphdef: Any, count: int) -> Callable:
    """Return what generates so many tokens more, the most probable ones."""

    def more(state, token, caches):
        model = nnx.merge(graphdef, state).unrolled()

        def one(carry, _):
            token, caches = carry
            logits, caches, _ = model.step(token, caches)
            return (logits.argmax(-1).astype(token.dtype), caches), None

        return jax.lax.scan(one, (token, caches), length=count)[0]

    return jax.jit(more, donate_argnums=2)


def compiling(sizes: Sizes) -> Rows:
    """Return the seconds to lower and compile the training step, by depth."""
    batch, length = sizes.batches[0]
    tokens = tokens_of(sizes, batch, length + 1)
    rows = []
    for name in ("attn_jax", "flax.nnx"):
        seconds = []
        for layers in sizes.depths:
            model = built(sizes, layers, length)
            function, state = step_of(flax_baseline.like(model) if name == "flax.nnx" else model)
            start = time.perf_counter()
            function.lower(state, tokens).compile()
            seconds.append(time.perf_counter() - start)
            rows.append(
                {
                    "compiling": name,
                    "layers": layers,
                    "seconds": seconds[-1],
                    "times the\nshallow one's": seconds[-1] / seconds[0],
                }
            )
    return rows
