"""The language model of the experiment: options, the model, training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.harness.errors import UserError
from experiments.harness.training import fit, warmup_cosine
from experiments.language_model.report import Passages


@dataclass(frozen=True)
class TransformerOptions:
    """The Transformer."""

    features: int = 128
    """Features of a position."""
    heads: int = 4
    """Heads of each attention."""
    layers: int = 4
    """Blocks."""
    positions: Literal["rotary", "alibi", "sinusoidal", "learned", "none"] = "rotary"
    """How it knows where a token stands."""
    window: int | None = None
    """The most tokens back that a position sees. Default: all."""
    normalizer: Literal["softmax", "off-by-one", "sparsemax", "entmax15"] = "softmax"
    """What turns scores into weights; off-by-one is softmax with a sink of 0."""
    norm: Literal["rms", "layer"] = "rms"
    """How it normalizes the inputs of its layers; with layer norm its maps have a bias."""
    activation: Literal["swiglu", "gelu", "relu"] = "swiglu"
    """The non-linearity of the feed-forward layers."""
    dropout: float = 0.1
    """Rate, in training."""
    remat: bool = False
    """Recompute each block in the backward pass: less memory, a third more time."""

    def __post_init__(self):
        for name in ("features", "heads", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1. Got {getattr(self, name)}.")
        if self.features % self.heads:
            raise UserError(f"--heads must divide --features, {self.features}. Got {self.heads}.")
        if self.positions == "rotary" and (self.features // self.heads) % 2:
            got = f"{self.features} / {self.heads}"
            raise UserError(f"--features / --heads must be even for rotary positions. Got {got}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout must be at least 0 and below 1. Got {self.dropout}.")
        if self.window is not None and self.window < 0:
            raise UserError(f"--window must not be negative. Got {self.window}.")


@dataclass(frozen=True)
class FitOptions:
    """How to train."""

    steps: int = 1500
    """Training steps."""
    context: int = 256
    """Tokens that are predicted together."""
    batch_size: int = 16
    """Passages in a batch."""
    learning_rate: float = 3e-3
    """AdamW's, after a warm-up, falling along a cosine."""
    evaluate_every: int = 250
    """Steps between evaluations."""
    seed: int = 0
    """Seed of parameters, order and dropout."""

    def __post_init__(self):
        for name in ("steps", "context", "batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be at least 1. Got {getattr(self, name)}.")
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"--learning-rate must be positive. Got {self.learning_rate}.")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative. Got {self.seed}.")


def build(options: TransformerOptions, vocabulary: int, fit: FitOptions) -> Any:
    """Return the `LanguageModel`.

    Its linear maps have a bias beside layer norm, as in GPT-2, and none beside RMS norm, as in
    Llama.
    """
    from flax import nnx

    from attn_jax import Entmax, Softmax, Sparsemax, Window
    from attn_jax.nn import LanguageModel

    normalizer = {
        "softmax": Softmax(),
        "off-by-one": Softmax(0.0),
        "sparsemax": Sparsemax(),
        "entmax15": Entmax(1.5),
    }[options.normalizer]
    return LanguageModel(
        vocabulary,
        options.features,
        options.heads,
        options.layers,
        positions=options.positions,
        longest=fit.context,
        mask=None if options.window is None else Window(options.window, 0),
        normalizer=normalizer,
        norm=options.norm,
        activation=options.activation,
        dropout=options.dropout,
        remat=options.remat,
        bias=options.norm == "layer",
        rngs=nnx.Rngs(fit.seed),
    )


def train(
    model: Any, tokens: np.ndarray, dev: Passages, options: FitOptions, directory: Path
) -> Any:
    """Train; return the `training.Fit` whose model has the fewest bits per character."""
    import jax.numpy as jnp
    import optax

    from attn_jax.training import Batches

    starts = np.arange(0, len(tokens) - options.context, max(options.context // 8, 1))
    starts = np.resize(starts, max(len(starts), options.batch_size))  # a short text repeats itself
    batches = Batches({"start": starts}, batch_size=options.batch_size, seed=options.seed)
    text = jnp.asarray(tokens)
    within = jnp.arange(options.context + 1)

    def loss(model, batch, rng):
        passages = text[batch["start"][:, None] + within[None, :]]
        return model.loss(passages, rng=rng)

    warmup = min(100, max(options.steps // 10, 1))
    rate = warmup_cosine(options.learning_rate, options.steps, warmup=warmup, end=0.05)
    every = min(options.evaluate_every, options.steps)
    return fit(
        model,
        loss,
        batches,
        options,
        optimizer=optax.adamw(rate, b2=0.99, weight_decay=0.05),
        clip_norm=1.0,
        evaluate=dev.evaluate,
        evaluate_every=every,
        metric="bits_per_character",
        restore_best=True,
        directory=directory,
        log_every=min(50, every),
    )
