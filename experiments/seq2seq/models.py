"""The models: options, the encoder-decoder they mean, its twin without attention."""

import bisect
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

from experiments.harness.errors import UserError, as_user_errors
from experiments.harness.options import Options, Positive, Rate

NEAR = 0.05  # of its parameters, that a twin may have more or less

ScoreName = Literal["additive", "bilinear", "cosine", "dot", "scaled_dot", "none"]
NormalizerName = Literal["softmax", "sparsemax", "entmax15", "entmax"]


@dataclass(frozen=True)
class ModelOptions(Options):
    """The encoder-decoder."""

    model: Literal["recurrent", "transformer"] = "recurrent"
    """Recurrent layers with attention, or a Transformer: scaled dots, `features` wide; it takes
    normalizer, features, layers, dropout, heads, hidden, positions and norm of the options here."""
    score: ScoreName = "additive"
    """How decoder and source are compared: additive is Bahdanau's, bilinear Luong's "general"; none
    is the model without attention, which sees one summary of the source at every step."""
    normalizer: NormalizerName = "softmax"
    """What turns scores into weights; entmax learns its α."""
    order: Literal["attend_then_step", "step_then_attend"] = "attend_then_step"
    """Bahdanau's order, or Luong's, which feeds the last readout into the next step."""
    encoder: Literal["recurrent", "convolutional"] = "recurrent"
    """What reads the source."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell."""
    embedding: Positive[int] = 128
    """Features of a token."""
    features: Positive[int] = 256
    """Units of each recurrent layer and direction."""
    layers: Positive[int] = 1
    """Recurrent layers, or convolutions, in the encoder; recurrent layers in the decoder."""
    heads: Positive[int] = 4
    """Heads of a Transformer's attention."""
    hidden: Positive[int] | None = None
    """Units of a Transformer's feed-forward layers. Default: four times `--features`."""
    positions: Literal["sinusoidal", "rotary", "alibi", "learned"] = "sinusoidal"
    """How a Transformer knows where a token stands."""
    norm: Literal["layer", "rms"] = "layer"
    """How a Transformer normalizes its layers' inputs."""
    tied: bool = False
    """Whether the output layer is the target's embeddings."""
    dropout: Rate = 0.2
    """Rate on embeddings, between layers and before the output layer."""

    def __post_init__(self):
        super().__post_init__()
        if self.model == "transformer":
            if self.score == "none":
                raise UserError("--score none needs --model recurrent: a Transformer is attention.")
            if self.normalizer == "entmax":
                rule = "whose α is learned, needs --model recurrent; entmax15 has α = 1.5"
                raise UserError(f"--normalizer entmax, {rule}.")
            if self.features % self.heads:
                sizes = f"{self.features}. Got {self.heads}"
                raise UserError(f"--heads must divide --features, {sizes}.")

    @property
    def name(self) -> str:
        """What tells a model from others."""
        if self.score == "none":
            return "no attention"
        score = "transformer" if self.model == "transformer" else self.score
        return f"{score} × {self.normalizer}"

    def tiny(self) -> "ModelOptions":
        return dataclasses.replace(self, embedding=16, features=4 * self.heads)


def build(options: ModelOptions, sources: int, targets: int, *, seed: int = 0) -> Any:
    """Return the `Seq2Seq` for vocabularies of these sizes."""
    from flax import nnx

    from attn_jax import nn, normalizers

    make = normalizers.BY_NAME[options.normalizer]
    normalizer = make(1.5) if options.normalizer == "entmax" else make()
    shared = {"dropout": options.dropout, "rngs": nnx.Rngs(seed)}
    if options.model == "transformer":
        return nn.TransformerSeq2Seq(
            sources,
            targets,
            options.features,
            options.heads,
            options.layers,
            hidden=options.hidden,
            normalizer=normalizer,
            positions=options.positions,
            norm=options.norm,
            **shared,
        )
    width, layers = (options.embedding, options.features), options.layers
    recurrent = options.encoder == "recurrent"
    if recurrent:
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
        tied=options.tied,
        **shared,
    )
    return nn.Seq2Seq(sources, encoder, decoder, embedding=options.embedding, **shared)


@functools.cache
def parameters(options: ModelOptions, sources: int, targets: int) -> int:
    """Return how many parameters the model has, without making it."""
    import jax
    from flax import nnx

    with as_user_errors(ValueError):
        model = nnx.eval_shape(lambda: build(options, sources, targets))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def described(options: ModelOptions, sources: int, targets: int) -> str:
    """Return what a model is, and how large."""
    count = parameters(options, sources, targets)
    return f"{options.name}: {count:,} parameters, {sources:,} source and {targets:,} target tokens"


def twin(options: ModelOptions, sources: int, targets: int) -> ModelOptions:
    """Return the model without attention whose number of parameters comes nearest.

    A Transformer's embeddings are as wide as its features, so its twin's are.
    """
    goal = parameters(options, sources, targets)
    width = options.features if options.model == "transformer" else options.embedding
    changes = {"model": "recurrent", "score": "none", "embedding": width}
    near = of_size(dataclasses.replace(options, **changes), goal, sources, targets)
    count = parameters(near, sources, targets)
    if abs(count / goal - 1) > NEAR:
        raise UserError(
            f"--twin finds no model without attention of about {goal:,} parameters: the nearest, "
            f"of {near.features} features, has {count:,}. Choose another --embedding or --features."
        )
    return near


def of_size(options: ModelOptions, goal: int, sources: int, targets: int) -> ModelOptions:
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
