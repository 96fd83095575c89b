"""How fast a Transformer trains, decodes and compiles, and in how much memory.

Beside it the same model with the same weights from `flax.nnx`'s stock modules and, where it is
installed, from PyTorch's layers: their first losses agree before anything is timed, and their steps
are timed in turns. All in float32, without dropout.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attn_jax.nn import LanguageModel
from attn_jax.training import step
from experiments.benchmark.models.flax_language_model import stock
from experiments.benchmark.timing import interleaved
from experiments.harness.errors import UserError

RATE, CLIP = 1e-3, 1.0
AGREE = 1e-4  # relative difference of the first losses


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
    rows: tuple[int, ...] = (1, 32)  # texts that are written at a time
    parts: int = 8
    seconds: float = 8.0


TINY = Sizes(
    vocabulary=11,
    features=8,
    heads=2,
    layers=1,
    batches=((2, 5),),
    context=16,
    context_layers=1,
    depths=(1, 2),
    decoded=8,
    rows=(2,),
    parts=2,
    seconds=0.01,
)


def built(sizes: Sizes, layers: int, longest: int, *, remat: bool = False) -> LanguageModel:
    """Return the language model that has stock twins."""
    return LanguageModel(
        sizes.vocabulary,
        sizes.features,
        sizes.heads,
        layers,
        positions="learned",
        longest=longest,
        remat=remat,
        rngs=nnx.Rngs(0),
    )


def tokens_of(sizes: Sizes, rows: int, length: int) -> np.ndarray:
    """Return random texts."""
    return np.random.default_rng(0).integers(0, sizes.vocabulary, (rows, length)).astype(np.int32)


# Training


def training(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the seconds of a training step of each, and how many times ours it takes."""
    rows = []
    for batch, length in sizes.batches:
        tokens = tokens_of(sizes, batch, length + 1)
        model = built(sizes, sizes.layers, length)
        twins = {"attn_jax": step_of(model, tokens), "flax.nnx": step_of(stock(model), tokens)}
        if importlib.util.find_spec("torch"):
            from experiments.benchmark.models import torch_language_model as peer

            twins["PyTorch"] = peer.training(peer.like(model), tokens, RATE, CLIP)
        losses = {name: call() for name, call in twins.items()}  # compiles
        for name, loss in losses.items():
            if abs(loss - losses["attn_jax"]) > AGREE * abs(loss):
                raise UserError(f"the models differ: the first losses are {losses}. Got {name}'s.")
        for _ in range(2):
            for call in twins.values():
                call()
        taken = np.median(interleaved(list(twins.values()), sizes.seconds), axis=1)
        for name, seconds in zip(twins, taken, strict=True):
            rows.append(
                {
                    "training": name,
                    "sequences": batch,
                    "tokens\nin each": length,
                    "ms\na step": 1e3 * seconds,
                    "tokens/s": int(batch * length / seconds),
                    "time /\nattn_jax's": seconds / taken[0],
                    "first\nloss": losses[name],
                }
            )
    return rows


def optimizer() -> optax.GradientTransformation:
    """Return Adam with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(RATE))


def compiled_step(model: Any) -> tuple[Callable, Any]:
    """Return the training step and its first state."""
    how = optimizer()
    one = step.make_step(step.split(model)[0], lambda m, batch, rng: m.loss(batch), how, None)
    return one, step.initial_state(model, how, 0)


def step_of(model: Any, tokens: np.ndarray) -> Callable[[], float]:
    """Return a call that does one more step on the same batch; it returns the loss before it."""
    one, state = compiled_step(model)

    def call() -> float:
        nonlocal state
        state, numbers = one(state, tokens)
        return float(numbers["loss"])

    return call


# Memory of a long context


def context(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the memory of a training step on one long text, by the compiled program's analysis."""
    tokens = tokens_of(sizes, 1, sizes.context + 1)
    rows = []
    for name, remat in (("attn_jax", False), ("attn_jax, remat", True), ("flax.nnx", False)):
        model = built(sizes, sizes.context_layers, sizes.context, remat=remat)
        one, state = compiled_step(model if name != "flax.nnx" else stock(model))
        compiled = one.lower(state, tokens).compile()
        row = {
            "one long text": name,
            "tokens": sizes.context,
            "layers": sizes.context_layers,
            "GB": held(compiled) / 1e9,
            "seconds\na step": None,
        }
        if name != "flax.nnx":  # which may need more than there is
            state, _ = compiled(state, tokens)
            start = time.perf_counter()
            jax.block_until_ready(compiled(state, tokens))
            row["seconds\na step"] = time.perf_counter() - start
        rows.append(row)
    return rows


def held(compiled: Any) -> int:
    """Return the bytes that a program holds at once: what it gets and what it needs meanwhile."""
    memory = compiled.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes


# Decoding


def decoding(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the milliseconds of a token, by its position, from a cache and computed anew."""
    length = sizes.decoded
    model = built(sizes, sizes.layers, length)
    graphdef, state = nnx.split(model)
    part = length // sizes.parts
    rows = []

    @jax.jit
    def anew(state, tokens):
        return nnx.merge(graphdef, state)(tokens)[:, -1].argmax(-1)

    for count in sizes.rows:
        more = continued(graphdef, part)
        cached = np.zeros((sizes.parts, 3))
        for turn in range(4):  # the first one compiles
            token = jnp.zeros(count, jnp.int32)
            caches = model.cache(count, length)
            for number in range(sizes.parts):
                start = time.perf_counter()
                token, caches = jax.block_until_ready(more(state, token, caches))
                if turn:
                    cached[number, turn - 1] = (time.perf_counter() - start) / part
        for number, seconds in enumerate(np.median(cached, axis=1)):
            prefix = tokens_of(sizes, count, (number + 1) * part)
            call = anew.lower(state, prefix).compile()
            again = lambda call=call, prefix=prefix: jax.block_until_ready(call(state, prefix))  # noqa: E731
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
    """Return what writes so many tokens more, the most probable ones."""

    def more(state, token, caches):
        model = nnx.merge(graphdef, state).unrolled()

        def one(carry, _):
            token, caches = carry
            logits, caches, _ = model.step(token, caches)
            return (logits.argmax(-1).astype(token.dtype), caches), None

        return jax.lax.scan(one, (token, caches), length=count)[0]

    return jax.jit(more, donate_argnums=2)


# Compiling


def compiling(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the seconds to lower and compile the training step, by depth."""
    batch, length = sizes.batches[0]
    tokens = tokens_of(sizes, batch, length + 1)
    rows = []
    for name in ("attn_jax", "flax.nnx"):
        first = None
        for layers in sizes.depths:
            model = built(sizes, layers, length)
            one, state = compiled_step(model if name == "attn_jax" else stock(model))
            start = time.perf_counter()
            one.lower(state, tokens).compile()
            seconds = time.perf_counter() - start
            first = first or seconds
            rows.append(
                {
                    "compiling": name,
                    "layers": layers,
                    "seconds": seconds,
                    "times the\nshallow one's": seconds / first,
                }
            )
    return rows


PARTS = {
    "training": training,
    "context": context,
    "decoding": decoding,
    "compiling": compiling,
}
