"""The encoder-decoder that options mean, its size, its twin without attention."""

import bisect
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from attn_jax import nn, normalizers
from experiments.data.speech_features import MELS
from experiments.harness.errors import UserError, as_user_errors
from experiments.seq2seq.options import HISTORY, ModelOptions

NEAR = 0.05  # of its parameters, that a twin may have more or less


# What encodes sources that are arrays: (options, dropout=, rngs=) -> encoder.
ENCODERS: dict[str, Callable[..., Any]] = {
    "pyramid": lambda options, **shared: nn.PyramidEncoder(
        MELS, options.features, layers=options.layers, cell=options.cell, **shared
    ),
    "image": lambda options, **shared: nn.ImageEncoder(options.size, options.stages, **shared),
}


def build(options: ModelOptions, sources: int | None, targets: int, *, seed: int = 0) -> nnx.Module:
    """Return the `Seq2Seq` for vocabularies of these sizes; sources None: they are arrays."""
    make = normalizers.BY_NAME[options.normalizer]
    normalizer = make(1.5) if options.normalizer == "entmax" else make()
    shared = {"dropout": options.dropout, "rngs": nnx.Rngs(seed)}
    made = ENCODERS[options.encoder](options, **shared) if sources is None else None
    if options.model == "transformer":
        return nn.TransformerSeq2Seq(
            sources,
            targets,
            options.features,
            options.heads,
            options.layers,
            stem=made,
            hidden=options.hidden,
            normalizer=normalizer,
            positions=options.positions,
            norm=options.norm,
            **shared,
        )
    width, layers = (options.embedding, options.features), options.layers
    recurrent = options.encoder == "recurrent"
    if made is not None:
        encoder = made
    elif recurrent:
        encoder = nn.RecurrentEncoder(*width, layers=layers, cell=options.cell, **shared)
    else:
        encoder = nn.ConvolutionalEncoder(*width, layers=layers, **shared)
    attends = options.score != "none"
    decoder = nn.Decoder(
        targets,
        encoder.memory_features,
        encoder.summary_features,
        embedding=options.embedding,
        features=options.features,
        layers=layers if recurrent else 1,
        cell=options.cell,
        attention=options.score if attends else None,
        normalizer=normalizer,
        learn_alpha=options.normalizer == "entmax" and attends,
        order=options.order,
        **{name: getattr(options, name) for name in HISTORY},
        tied=options.tied,
        **shared,
    )
    return nn.Seq2Seq(sources, encoder, decoder, embedding=options.embedding, **shared)


@functools.cache
def parameters(options: ModelOptions, sources: int | None, targets: int) -> int:
    """Return how many parameters the model has, without making it."""
    with as_user_errors(ValueError):
        model = nnx.eval_shape(lambda: build(options, sources, targets))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def described(options: ModelOptions, sources: int | None, targets: int) -> str:
    """Return what a model is, and how large."""
    tokens = f"{targets:,} target tokens"
    if sources is not None:
        tokens = f"{sources:,} source and {tokens}"
    return f"{options.name}: {parameters(options, sources, targets):,} parameters, {tokens}"


def twin(options: ModelOptions, sources: int | None, targets: int) -> ModelOptions:
    """Return the model without attention whose number of parameters comes nearest.

    A Transformer's embeddings are as wide as its features, so its twin's are.
    """
    goal = parameters(options, sources, targets)
    width = options.features if options.model == "transformer" else options.embedding
    changes = {"model": "recurrent", "score": "none", "embedding": width}
    for each in dataclasses.fields(options):
        if each.name in HISTORY:
            changes[each.name] = getattr(ModelOptions, each.name)
    near = of_size(dataclasses.replace(options, **changes), goal, sources, targets)
    count = parameters(near, sources, targets)
    if abs(count / goal - 1) > NEAR:
        raise UserError(
            f"no model without attention has about {goal:,} parameters: the nearest, of "
            f"{near.features} features, has {count:,}. Choose another --embedding or --features."
        )
    return near


def of_size(options: ModelOptions, goal: int, sources: int | None, targets: int) -> ModelOptions:
    """Return the options with the features whose number of parameters comes nearest to a goal."""
    few = [dataclasses.replace(options, features=features) for features in (1, 2, 3)]
    first, second, third = (parameters(each, sources, targets) for each in few)

    def count(features: int) -> int:  # a polynomial of the second degree
        curvature = third - 2 * second + first
        steps = features - 1
        return first + steps * (second - first) + steps * (steps - 1) // 2 * curvature

    enough = 1 + bisect.bisect_left(range(1, goal), goal, key=count)
    best = min(max(enough - 1, 1), enough, key=lambda features: abs(count(features) - goal))
    return dataclasses.replace(options, features=best)
