r"""A language model on any text: bits per character, attention maps, generated text.

    python -m experiments language-model                                  Python's own help texts
    python -m experiments language-model --text FILE --tokens bpe --name mine
    python -m experiments language-model --processes 4                    one training in several
    python -m experiments language-model generate --prompt "The import statement" --plot
    python -m experiments language-model generate --weights DIR --prompt "The import statement"
    python -m experiments language-model compare               masks × positions × normalizers
    python -m experiments language-model speed             beside flax.nnx's modules and PyTorch's

`train` trains a Transformer (a quarter of an hour on two cores; 1.60 bits per character of Python's
help that it did not see), and draws the weights of every head on `--sentence` and each head's
entropy. `evaluate` does so again, on another text where `--text` names one, and writes
evaluation.json. `generate` continues a prompt token by token, from a cache; `--weights` names a
folder of an open model (GPT-2, Llama, Gemma 2 and others: `attn_jax.nn.interop`) that does so, and
nothing is downloaded. `speed` measures models of its own sizes: training, a long context's memory,
decoding, compiling.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from experiments.harness.commands import Command, ResumableOptions, RunOptions
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive, Range, Rate, Share, at_least
from experiments.harness.processes import Processes

Sentence = Annotated[str, Range("at least one character", bool)]
SENTENCE = "The for statement is used to iterate over the elements of a sequence."


@dataclass(frozen=True)
class TextOptions(Options):
    """The text."""

    text: Path | None = None
    """A plain text file, UTF-8. Default: the topics of Python's own help, 465 KB."""
    dev: Path | None = None
    """Held-out text. Default: the last tenth of the text."""
    tokens: Literal["character", "bpe"] = "character"
    """What is predicted."""
    vocabulary: Annotated[int, at_least(5)] | None = None
    """The most tokens, four special ones included. Default: all characters, or 2,000 pieces."""


@dataclass(frozen=True)
class Architecture(Options):
    """The Transformer."""

    features: Positive[int] = 128
    """Features of a position."""
    heads: Positive[int] = 4
    """Heads of each attention."""
    layers: Positive[int] = 4
    """Blocks."""
    norm: Literal["rms", "layer"] = "rms"
    """How it normalizes the inputs of its layers; with layer norm its maps have a bias."""
    activation: Literal["swiglu", "gelu", "relu"] = "swiglu"
    """The non-linearity of the feed-forward layers."""
    dropout: Rate = 0.1
    """Rate, in training."""
    remat: bool = False
    """Recompute each block in the backward pass: less memory, a third more time."""

    def __post_init__(self):
        super().__post_init__()
        if self.features % self.heads:
            raise UserError(f"--heads must divide --features, {self.features}. Got {self.heads}.")

    def tiny(self) -> Self:
        return replace(self, features=16, heads=2, layers=2)


@dataclass(frozen=True)
class Transformer(Architecture):
    """The Transformer, with what `compare` varies."""

    positions: Literal["rotary", "alibi", "sinusoidal", "learned", "none"] = "rotary"
    """How it knows where a token stands."""
    window: NonNegative[int] | None = None
    """The most tokens back that a position attends to. Default: all."""
    normalizer: Literal["softmax", "off-by-one", "sparsemax", "entmax15"] = "softmax"
    """What turns scores into weights; off-by-one is softmax with a sink of 0."""

    def __post_init__(self):
        super().__post_init__()
        if self.positions == "rotary" and (self.features // self.heads) % 2:
            got = f"{self.features} / {self.heads}"
            raise UserError(f"--features / --heads must be even for rotary positions. Got {got}.")


@dataclass(frozen=True)
class FitOptions(Options):
    """How to train."""

    steps: Positive[int] = 1500
    """Training steps."""
    context: Positive[int] = 256
    """Tokens that are predicted together."""
    batch_size: Positive[int] = 16
    """Passages in a batch."""
    learning_rate: Positive[float] = 3e-3
    """AdamW's, after a warm-up, falling along a cosine."""
    evaluate_every: Positive[int] = 250
    """Steps between evaluations."""
    seed: NonNegative[int] = 0
    """Seed of parameters, order and dropout."""

    def tiny(self) -> Self:
        short = {"steps": min(self.steps, 6), "context": 32, "batch_size": 4}
        return replace(self, **short, evaluate_every=3)


@dataclass(frozen=True)
class Compare(ResumableOptions):
    """Train masks, positions and normalizers with the same budget, and print a table."""

    data: TextOptions = field(default_factory=TextOptions)
    model: Architecture = field(default_factory=Architecture)
    fit: FitOptions = field(default_factory=FitOptions)
    sentence: Sentence = SENTENCE
    """A sentence whose attention is drawn."""


@dataclass(frozen=True)
class Train(Compare):
    """Train a Transformer to predict the next token of a text."""

    model: Transformer = field(default_factory=Transformer)
    processes: Processes = field(default_factory=Processes)


@dataclass(frozen=True)
class Evaluate(RunOptions):
    """Evaluate a trained model on the text that its run held out, or on another one."""

    text: Path | None = None
    """The text to evaluate, all of it. Default: what the run held out."""
    dev: Path | None = None
    """Another name of `--text`."""
    sentence: Sentence = SENTENCE
    """A sentence whose attention is drawn."""

    def __post_init__(self):
        super().__post_init__()
        if self.text and self.dev:
            raise UserError("evaluate takes one text. Got --text and --dev.")


@dataclass(frozen=True)
class Generate(RunOptions):
    """Continue a prompt by a trained model, or by an open one."""

    weights: Path | None = None
    """A folder with an open model's config.json, *.safetensors and tokenizer.json. Default: the run
    of this `--name`."""
    plot: bool = False
    """Draw every head's weights on the text, and write a page to explore them."""
    prompt: str = "The "
    """What the text begins with."""
    count: Positive[int] = 400
    """The most tokens to generate."""
    temperature: NonNegative[float] = 0.8
    """0 takes the most probable token each time."""
    top_k: Positive[int] | None = None
    """Draw from so many of the most probable tokens only."""
    top_p: Share | None = 0.95
    """Draw from the fewest tokens that have this probability together."""
    seed: NonNegative[int] = 0
    """Seed of what is drawn."""

    def tiny(self) -> Self:
        return replace(super().tiny(), count=min(self.count, 20))


@dataclass(frozen=True)
class Speed(RunOptions):
    """Measure how fast a Transformer trains, decodes and compiles, and in how much memory."""


COMMANDS = {
    "train": Command(Train, "language_model.train.run"),
    "compare": Command(Compare, "language_model.train.run"),
    "evaluate": Command(Evaluate, "language_model.evaluate.run"),
    "generate": Command(Generate, "language_model.generate.run"),
    "speed": Command(Speed, "benchmark.models.language_model.run"),
}
