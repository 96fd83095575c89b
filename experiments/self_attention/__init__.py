r"""Self-attention in six steps on a sentence of yours, and two claims about it, measured.

    python -m experiments self-attention                              "Thinking Machines"
    python -m experiments self-attention --sentence "Any words here" --claims
    python -m experiments self-attention --claims long-distance --lengths 8 64 --steps 1000

Each step is computed by `attn_jax` and, beside it, by one line of NumPy; then eight heads, and
attention to another sentence. The claims: self-attention recalls a token over any distance where a
GRU and an LSTM forget it (accuracy 100 % up to 512 places), and it is parallel (seconds of a
training step against the length). About three minutes on two cores, the steps alone five seconds.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from experiments.harness.commands import Command, ResumableOptions
from experiments.harness.errors import UserError
from experiments.harness.options import NonNegative, Options, Positive, Range

Lengths = Annotated[tuple[Positive[int], ...], Range("one or more", bool)]
Words = Annotated[str, Range("1 to 32 words", lambda text: 1 <= len(text.split()) <= 32)]


@dataclass(frozen=True)
class ClaimOptions(Options):
    """How the claims are measured."""

    lengths: Lengths = (8, 16, 32, 64, 128, 256, 512)
    """Distances to recall over, and lengths to time."""
    steps: Positive[int] = 300
    """Training steps of each model at each distance."""
    batch_size: Positive[int] = 16
    """Sequences in a batch."""
    learning_rate: Positive[float] = 1e-2
    """Adam's, after a warm-up, falling along a cosine."""
    features: Positive[int] = 32
    """Of self-attention; the recurrent layers have as many parameters."""
    heads: Positive[int] = 4
    """Of self-attention."""
    timing_seconds: Positive[float] = 0.4
    """To spend on timing each model at each length."""
    seed: NonNegative[int] = 0
    """Seed of embeddings, parameters and sequences."""

    def __post_init__(self):
        super().__post_init__()
        if self.features % self.heads:
            raise UserError(f"--heads must divide --features, {self.features}. Got {self.heads}.")

    def tiny(self) -> Self:
        small = {"lengths": (3, 5), "steps": 4, "batch_size": 4, "features": 8, "heads": 2}
        return dataclasses.replace(self, **small, timing_seconds=0.01)


@dataclass(frozen=True)
class SelfAttention(ResumableOptions):
    """Take the six steps of self-attention on a sentence, and measure what is claimed of it."""

    sentence: Words = "Thinking Machines"
    """The words that attend to each other, 32 at most."""
    other: Words = "Machines that learn to attend"
    """The words that they attend to in cross-attention."""
    claims: tuple[Literal["long-distance", "parallelism"], ...] = ("long-distance", "parallelism")
    """What to measure; nothing after the flag: the steps alone."""
    how: ClaimOptions = field(default_factory=ClaimOptions)


COMMANDS = {"run": Command(SelfAttention, "self_attention.report.run")}
