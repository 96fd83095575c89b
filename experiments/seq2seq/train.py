"""Training: pairs of encoded lines, a model, checkpoints and the best one by the dev loss."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.harness.errors import UserError, as_user_errors
from experiments.harness.training import fit, warmup_cosine

POSITIONS = 2**14  # of a batch to evaluate, on its longer side: a long line comes with few others


@dataclass(frozen=True)
class FitOptions:
    """How to train."""

    steps: int = 4000
    """Training steps."""
    learning_rate: float = 2e-3
    """Adam's, after a warm-up, falling along a cosine to nearly 0."""
    warmup: int = 200
    """Steps of warm-up."""
    batch_size: int = 128
    """Pairs in a batch; all there are where those are fewer."""
    batch_tokens: int | None = None
    """In its place: the most target tokens in a batch, padding included, so that there are more
    pairs of short lines in one than of long lines."""
    label_smoothing: float = 0.0
    """Mass that the target distribution spreads over the whole vocabulary."""
    clip_norm: float = 1.0
    """Largest norm of a gradient."""
    evaluate_every: int = 500
    """Steps between evaluations on the dev side."""
    buckets: int = 6
    """The most padded shapes: each is compiled once."""
    keep: int = 5
    """Checkpoints that stay, for --average; there is one at each evaluation."""
    seed: int = 0
    """Seed of parameters, order and dropout."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "batch_tokens", "evaluate_every", "buckets", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} must be at least 1. Got {value}.")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise UserError(f"--{name.replace('_', '-')} must be positive. Got {value}.")
        for name in ("warmup", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name} must not be negative. Got {getattr(self, name)}.")
        if not 0 <= self.label_smoothing < 1:
            rule = "must be at least 0 and below 1"
            raise UserError(f"--label-smoothing {rule}. Got {self.label_smoothing}.")


class Pairs(NamedTuple):
    """Encoded lines: a source and a target for each example."""

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]


def batches(training: Pairs, options: FitOptions, *, max_length: int | None = None) -> Any:
    """Return endless batches of the pairs to train on, none larger than what is left of these.

    A pair without a target, or with a side longer than `max_length`, is left out.
    """
    from attn_jax import text

    size = {"batch_tokens": options.batch_tokens}
    if options.batch_tokens is None:
        longest = float("inf") if max_length is None else max_length
        lengths = [(len(s), len(t)) for s, t in zip(*training, strict=True)]
        left = sum(t > 0 and max(s, t) <= longest for s, t in lengths)
        size = {"batch_size": min(options.batch_size, max(left, 1))}
    with as_user_errors(ValueError):
        return text.PairBatches(
            *training, **size, buckets=options.buckets, max_length=max_length, seed=options.seed
        )


def facts(batches: Any) -> dict[str, Any]:
    """Return what is trained on, what is left out, and which part of it all is no padding."""
    names = ("without_target", "too_long", "real_fraction")
    return {"pairs": batches.size} | {name: getattr(batches, name) for name in names}


def train(
    model: Any,
    batches: Any,
    dev: Pairs | None,
    options: FitOptions,
    directory: Path,
    *,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    log_every: int = 100,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> Any:
    """Train; return the `training.Fit` whose model has the lowest dev loss, the last without dev.

    `evaluate` adds numbers to each evaluation. An interrupted training goes on where it was.
    """
    import optax

    from attn_jax import text

    dev_loss = None if dev is None else dev_losses(dev, options)

    def loss(model, batch, rng):
        return model.loss(batch, start=text.START, label_smoothing=options.label_smoothing, rng=rng)

    def judged(model):
        return dev_loss(model) | (evaluate(model) if evaluate is not None else {})

    every = min(options.evaluate_every, options.steps)
    return fit(
        model,
        loss,
        batches,
        options,
        optimizer=optax.adam(rates(options), b2=0.98),
        clip_norm=options.clip_norm,
        evaluate=None if dev is None else judged,
        evaluate_every=every,
        metric="loss" if dev is None else "dev_loss",
        restore_best=dev is not None,
        directory=directory,
        checkpoint_every=every,
        keep=options.keep,
        log_every=min(log_every, every),
        on_row=on_row,
    )


def rates(options: FitOptions) -> Callable[[Any], Any]:
    """Return step -> learning rate: a warm-up of a quarter at most, then along a cosine."""
    warmup = min(options.warmup, options.steps // 4)
    return warmup_cosine(options.learning_rate, options.steps, warmup=warmup, end=0.01)


def dev_losses(dev: Pairs, options: FitOptions) -> Callable[[Any], dict[str, float]]:
    """Return model -> mean loss, perplexity and accuracy on held-out pairs."""
    import jax
    from flax import nnx

    from attn_jax import metrics, text

    padded = text.padded_batches(
        *dev, batch_size=options.batch_size, batch_positions=POSITIONS, buckets=options.buckets
    )

    @functools.partial(jax.jit, static_argnums=0)
    def loss_of(graphdef, state, batch):
        return nnx.merge(graphdef, state).loss(batch, start=text.START)

    def evaluate(model: Any) -> dict[str, float]:
        total, right, tokens = 0.0, 0.0, 0
        for each in padded:
            loss, numbers = loss_of(*nnx.split(model), each.batch)
            count = int(numbers["tokens"])
            total += float(loss) * count
            right += float(numbers["accuracy"]) * count
            tokens += count
        return {
            "dev_loss": total / tokens,
            "dev_perplexity": float(metrics.perplexity(total, tokens)),
            "dev_accuracy": right / tokens,
        }

    return evaluate
