"""The options of models, of their training and of the search: light, since `--help` shows them."""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from experiments.harness.commands import ResumableOptions, RunOptions
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive, Rate, Share

ScoreName = Literal["additive", "bilinear", "cosine", "dot", "scaled_dot", "none"]
NormalizerName = Literal["softmax", "sparsemax", "entmax15", "entmax", "sigmoid"]
HISTORY = (
    "gate",
    "location",
    "coverage",
    "window",
    "copy",
)  # of ModelOptions, where there is attention
ATTENDS = "needs --model recurrent and a --score other than none"
BleuTokenize = Literal["13a", "intl", "char", "zh", "none"]


@dataclass(frozen=True)
class ModelOptions(Options):
    """The encoder-decoder.

    What few experiments offer is off here; theirs derive from it and make options of it.
    """

    gate: ClassVar[bool] = False  # these are the arguments of `nn.Decoder`
    location: ClassVar[int] = 0
    coverage: ClassVar[bool] = False
    window: ClassVar[tuple[int, int] | None] = None
    copy: ClassVar[bool] = False

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
        for name in HISTORY if not self.recurrent_attention else ():
            if value := getattr(self, name):
                off = f"--no-{name}" if value is True else f"--{name} {getattr(ModelOptions, name)}"
                raise UserError(f"--{name} {ATTENDS}; {off} turns it off. Got {value}.")

    @property
    def recurrent_attention(self) -> bool:
        """Whether it is recurrent, with attention."""
        return self.model == "recurrent" and self.score != "none"

    @property
    def name(self) -> str:
        """What tells a model from others."""
        if self.score == "none":
            return "no attention"
        score = "transformer" if self.model == "transformer" else self.score
        return f"{score} × {self.normalizer}"

    def tiny(self) -> Self:
        return dataclasses.replace(self, embedding=16, features=4 * self.heads)


@dataclass(frozen=True)
class UpdateOptions(Options):
    """What one training step does."""

    doubly_stochastic: ClassVar[float] = 0.0  # these are the arguments of `nn.Seq2Seq.loss`
    coverage_loss: ClassVar[float] = 0.0

    learning_rate: Positive[float] = 2e-3
    """Adam's; in training after a warm-up, falling along a cosine to nearly 0."""
    batch_size: Positive[int] = 128
    """Pairs in a batch; all there are where those are fewer."""
    batch_tokens: Positive[int] | None = None
    """In its place: the most target tokens in a batch, padding included, so that there are more
    pairs of short lines in one than of long lines."""
    label_smoothing: Rate = 0.0
    """Mass that the target distribution spreads over the whole vocabulary."""
    clip_norm: Positive[float] = 1.0
    """Largest norm of a gradient."""
    buckets: Positive[int] = 6
    """The most padded shapes: each is compiled once."""
    seed: NonNegative[int] = 0
    """Seed of parameters, order and dropout."""

    def tiny(self) -> Self:
        return dataclasses.replace(self, batch_size=16, buckets=1)


@dataclass(frozen=True)
class FitOptions(UpdateOptions):
    """How to train."""

    steps: Positive[int] = 4000
    """Training steps."""
    warmup: NonNegative[int] = 200
    """Steps of warm-up."""
    evaluate_every: Positive[int] = 500
    """Steps between evaluations on the dev side."""
    keep: Positive[int] = 5
    """Checkpoints that stay, for --average; there is one at each evaluation."""

    def tiny(self) -> Self:
        steps = min(self.steps or 20, 20)
        return dataclasses.replace(super().tiny(), steps=steps, evaluate_every=10)


@dataclass(frozen=True)
class TrainOptions(ResumableOptions):
    """Train a model."""

    model: ModelOptions = field(default_factory=ModelOptions)
    fit: FitOptions = field(default_factory=FitOptions)

    def __post_init__(self):
        super().__post_init__()
        for name in ("doubly_stochastic", "coverage_loss"):
            if getattr(self.fit, name) and not self.model.recurrent_attention:
                raise UserError(f"--{name.replace('_', '-')} {ATTENDS}.")


@dataclass(frozen=True)
class SearchOptions(Options):
    """How to search for a translation."""

    n_best: ClassVar[int] = 1

    beam: Positive[int] = 1
    """Hypotheses kept at each step; 1 is greedy."""
    length_penalty: NonNegative[float] = 0.6
    """Exponent of GNMT's length penalty."""
    longest: Positive[float] = 2.0
    """The most target tokens for each source token, plus 10."""
    max_source: Positive[int] = 1000
    """The longest source, in tokens: a longer one is cut, and its line is named."""

    @property
    def name(self) -> str:
        """What a table calls the search."""
        return "greedy" if self.beam == 1 else f"beam {self.beam}"

    def tiny(self) -> Self:
        return dataclasses.replace(self, beam=min(self.beam, 2))


@dataclass(frozen=True)
class NBestOptions(SearchOptions):
    """How to search for a translation, or for several."""

    n_best: int = 1
    """Translations of each line."""

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.n_best <= self.beam:
            raise UserError(f"--n-best must be 1 to --beam, {self.beam}. Got {self.n_best}.")

    def tiny(self) -> Self:
        small = super().tiny()
        return dataclasses.replace(small, n_best=min(self.n_best, small.beam))


@dataclass(frozen=True)
class SamplingOptions(SearchOptions):
    """How to find an answer: drawn, or by a search."""

    temperature: NonNegative[float] = 0.7
    """Each token is drawn from softmax(logits / temperature); 0: by beam search."""
    top_p: Share = 0.9
    """Among the most probable tokens that have so much of the probability."""
    draw_seed: NonNegative[int] = 0
    """Seed of what is drawn."""

    def __post_init__(self):
        super().__post_init__()
        if self.beam > 1 and self.temperature:
            needed = f"--beam {self.beam} needs --temperature 0"
            raise UserError(f"--beam searches and --temperature draws: {needed}.")

    @property
    def name(self) -> str:
        """What a table calls the search."""
        return f"drawn at {self.temperature:g}" if self.temperature else super().name


@dataclass(frozen=True)
class SystemOptions(RunOptions):
    """The models of a run, and how to search with them."""

    search: SearchOptions = field(default_factory=SearchOptions)
    average: Positive[int] = 1
    """The model is the mean of so many of the last checkpoints; 1: the best one."""
    ensemble: tuple[str, ...] = ()
    """Names of further runs of the same vocabularies, in an ensemble with this one."""


@dataclass(frozen=True)
class TrainAndEvaluate(SystemOptions, TrainOptions):
    """Train a model, and evaluate it."""

    def __post_init__(self):
        super().__post_init__()
        made = min(self.fit.keep, -(-self.fit.steps // self.fit.evaluate_every))
        if self.average > made:
            rule = f"must be at most {made}, the checkpoints that --keep and --evaluate-every leave"
            raise UserError(f"--average {rule}. Got {self.average}.")
