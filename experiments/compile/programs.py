"""The programs: a function and the shapes of its arguments, for every member and module."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import attn_jax
from attn_jax import nn
from experiments.compile.names import MEMBERS, MODULES


class Program(NamedTuple):
    """What is compiled."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # pytrees of shapes, or of arrays whose shapes count


def slots_of(name: str, length: int, features: int) -> dict[str, Any]:
    """Return the slots of a member; arrays in them are arguments of the program."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    if name.startswith("kernel-"):
        kernel = attn_jax.kernels.BY_NAME[name.removeprefix("kernel-")]
        return {"score": attn_jax.Kernel(kernel, normal() + 9)}
    ids = jnp.asarray(np.sort(rng.integers(0, 4, length)))
    members = {
        "softmax": dict,
        "cosine": lambda: {"score": attn_jax.Cosine(normal())},
        "bilinear": lambda: {"score": attn_jax.Bilinear(normal(features, features))},
        "additive": lambda: {"score": attn_jax.Additive(normal(features))},
        "bias": lambda: {"score_mod": attn_jax.Bias(normal(length, length))},
        "relative-bias": lambda: {"score_mod": attn_jax.RelativeBias(normal(32))},
        "alibi": lambda: {"score_mod": attn_jax.Alibi(normal())},
        "soft-cap": lambda: {"score_mod": attn_jax.SoftCap(30.0)},
        "causal": lambda: {"mask": attn_jax.Causal()},
        "window": lambda: {"mask": attn_jax.Window(max(length // 8, 1), 0)},
        "padding": lambda: {"mask": attn_jax.Padding(jnp.array(length - 1))},
        "segments": lambda: {"mask": attn_jax.Segments(ids, ids)},
        "prefix": lambda: {"mask": attn_jax.Prefix(9) | attn_jax.Causal()},
        "dense-mask": lambda: {"mask": attn_jax.Dense(normal(length, length) > -1)},
        "softmax-sink": lambda: {"normalizer": attn_jax.Softmax(normal())},
        "sparsemax": lambda: {"normalizer": attn_jax.Sparsemax()},
        "entmax15": lambda: {"normalizer": attn_jax.Entmax(1.5)},
        "entmax3": lambda: {"normalizer": attn_jax.Entmax(3.0)},
        "entmax": lambda: {"normalizer": attn_jax.Entmax(jnp.float32(1.7))},
        "sigmoid": lambda: {"normalizer": attn_jax.Sigmoid(normal())},
        "dropout": lambda: {"dropout": attn_jax.Dropout(0.1, jax.random.key(0))},
    }
    return members[name]()


def member(
    name: str, direction: str, implementation: str, length: int, features: int, dtype: str
) -> Program:
    """Return attention of one head [n, d] with one slot that is not the default."""
    slots = slots_of(name, length, features)
    leaves, tree = jax.tree.flatten(slots)
    arrays = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    learned = [n for n in arrays if jnp.issubdtype(leaves[n].dtype, jnp.inexact)]
    others = [n for n in arrays if n not in learned]

    def output(operands, parameters, rest):
        now = list(leaves)  # a Python number is a constant of the program
        for n, each in zip(learned + others, [*parameters, *rest], strict=True):
            now[n] = each
        slots = jax.tree.unflatten(tree, now)
        return attn_jax.attention(*operands, **slots, implementation=implementation)

    def squares(outputs):
        return sum(
            jnp.sum(jnp.square(each.astype(jnp.float32))) for each in jax.tree.leaves(outputs)
        )

    def first(*inputs):
        return jax.grad(lambda *inputs: squares(output(*inputs)), (0, 1))(*inputs)

    def second(*inputs):
        return jax.grad(lambda *inputs: squares(first(*inputs)), (0, 1))(*inputs)

    operand = jax.ShapeDtypeStruct((length, features), dtype)
    functions = {"value": output, "gradient": first, "second": second}
    return Program(
        functions[direction],
        ([operand] * 3, *([leaves[n] for n in each] for each in (learned, others))),
    )


def training_step(name: str) -> Program:
    """Return one step of training of a small module."""
    rngs, vocabulary, batch, length, width = nnx.Rngs(0), 256, 8, 128, 128
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    pairs = {
        "source": tokens,
        "source_length": lengths,
        "target": tokens,
        "target_length": lengths,
    }

    def made() -> nnx.Module:
        if name == "language-model":
            return nn.LanguageModel(vocabulary, width, 2, 2, rngs=rngs)
        if name == "transformer":
            return nn.TransformerSeq2Seq(vocabulary, vocabulary, width, 2, 2, rngs=rngs)
        encoder = nn.RecurrentEncoder(width, width, rngs=rngs)
        sizes = (vocabulary, encoder.memory_features, encoder.summary_features)
        decoder = nn.Decoder(*sizes, embedding=width, features=width, rngs=rngs)
        return nn.Seq2Seq(vocabulary, encoder, decoder, embedding=width, rngs=rngs)

    graphdef, state = nnx.split(made())
    optimizer = optax.adam(1e-3)

    def loss(state, inputs):
        model = nnx.merge(graphdef, state)
        if name == "language-model":
            return model.loss(inputs)[0]
        return model.loss(inputs, start=2)[0]

    def step(state, moments, inputs):
        gradient = jax.grad(loss)(state, inputs)
        updates, moments = optimizer.update(gradient, moments, state)
        return optax.apply_updates(state, updates), moments

    moments = jax.eval_shape(optimizer.init, state)
    return Program(step, (state, moments, tokens if name == "language-model" else pairs))


def chosen(options: dict[str, Any]) -> list[tuple[dict[str, str], Callable[[], Program]]]:
    """Return the programs of options, as what names each and a function that makes it."""
    names = options["programs"] or [*MEMBERS, *(MODULES if options["modules"] else ())]
    sizes = (options["length"], options["features"], options["dtype"])
    found: list[tuple[dict[str, str], Callable[[], Program]]] = []
    for name in names:
        if name in MODULES:
            row = {"program": name, "implementation": "auto", "direction": "training step"}
            found.append((row, lambda name=name: training_step(name)))
            continue
        for implementation in options["implementations"]:
            for direction in options["directions"]:
                row = {"program": name, "implementation": implementation, "direction": direction}
                how = (name, direction, implementation, *sizes)
                found.append((row, lambda how=how: member(*how)))
    return found
