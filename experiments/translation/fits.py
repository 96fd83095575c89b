"""Training: pairs of encoded lines, a model, checkpoints and the best one by the dev loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError


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
    """Pairs in a batch."""
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
        for name in ("steps", "batch_size", "evaluate_every", "buckets", "keep"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be at least 1. Got {getattr(self, name)}.")
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"--learning-rate must be positive. Got {self.learning_rate}.")


class Pairs(NamedTuple):
    """Encoded lines: a source and a target for each example."""

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]


def train(
    model: Any,
    training: Pairs,
    dev: Pairs | None,
    options: FitOptions,
    directory: Path,
    *,
    max_length: int | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    log_every: int = 100,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> Any:
    """Train; return the `training.Fit` whose model has the lowest dev loss, the last without dev.

    `evaluate` adds numbers to each evaluation. An interrupted training goes on where it was.
    """
    import optax

    from attn_jax import text
    from attn_jax.training import fit

    batches = text.PairBatches(
        training.sources,
        training.targets,
        batch_size=min(options.batch_size, len(training.sources)),
        buckets=options.buckets,
        max_length=max_length,
        seed=options.seed,
    )
    warmup = min(options.warmup, options.steps // 4)
    rate = optax.warmup_cosine_decay_schedule(
        0.0 if warmup else options.learning_rate,
        options.learning_rate,
        warmup,
        max(options.steps, warmup + 1),
        options.learning_rate / 100,
    )
    dev_loss = None if dev is None else dev_losses(dev, options)

    def loss(model, batch, rng):
        return model.loss(batch, start=text.START, label_smoothing=options.label_smoothing, rng=rng)

    def judged(model):
        return dev_loss(model) | (evaluate(model) if evaluate is not None else {})

    return fit(
        model,
        loss,
        batches,
        steps=options.steps,
        optimizer=optax.adam(rate, b2=0.98),
        clip_norm=options.clip_norm,
        seed=options.seed,
        evaluate=None if dev is None else judged,
        evaluate_every=min(options.evaluate_every, options.steps),
        metric="loss" if dev is None else "dev_loss",
        restore_best=dev is not None,
        directory=directory,
        checkpoint_every=min(options.evaluate_every, options.steps),
        keep=options.keep,
        log_every=min(log_every, options.evaluate_every, options.steps),
        on_row=on_row,
    )


def dev_losses(dev: Pairs, options: FitOptions) -> Callable[[Any], dict[str, float]]:
    """Return model -> mean loss, perplexity and accuracy on held-out pairs."""
    import jax
    from flax import nnx

    from attn_jax import metrics, text

    padded = text.padded_batches(
        dev.sources, dev.targets, batch_size=options.batch_size, buckets=options.buckets
    )
    compiled: dict[Any, Callable] = {}

    def evaluate(model: Any) -> dict[str, float]:
        graphdef, state = nnx.split(model)
        if graphdef not in compiled:
            compiled[graphdef] = jax.jit(
                lambda state, batch: nnx.merge(graphdef, state).loss(batch, start=text.START)
            )
        total, right, tokens = 0.0, 0.0, 0
        for each in padded:
            batch = dict(each.batch)
            batch["target_length"] = batch["target_length"] * (each.rows >= 0)
            loss, numbers = compiled[graphdef](state, batch)
            count = int(numbers["tokens"])
            total += float(loss) * count
            right += float(numbers["accuracy"]) * count
            tokens += count
        loss = total / max(tokens, 1)
        return {
            "dev_loss": loss,
            "dev_perplexity": float(metrics.perplexity(total, tokens)),
            "dev_accuracy": right / max(tokens, 1),
        }

    return evaluate
