"""Training: encoded pairs, models, checkpoints, and the best one by the loss on held-out pairs."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from attn_jax import metrics, text
from attn_jax.training import Fit
from experiments.data import parallel_text
from experiments.data.pairs import Pairs
from experiments.data.parallel_text import Corpus, TextPairs
from experiments.harness import training
from experiments.harness.errors import as_user_errors
from experiments.harness.runs import Run, start
from experiments.seq2seq import models, saved
from experiments.seq2seq.options import FitOptions, ModelOptions, TrainOptions, UpdateOptions

POSITIONS = 2**14  # of a batch to evaluate, on its longer side: a long line comes with few others


@dataclass(frozen=True)
class Task:
    """What models are trained on: batches, pairs held out of them, the vocabularies of both."""

    source: text.Vocabulary | None  # None: sources are arrays
    target: text.Vocabulary
    batches: text.PairBatches
    dev: Pairs | None

    @property
    def sizes(self) -> tuple[int | None, int]:
        """The sizes of both vocabularies."""
        return saved.sizes(self.source, self.target)

    @property
    def vocabularies(self) -> dict[str, text.Vocabulary]:
        """Those that there are, by their side."""
        both = {side: getattr(self, side) for side in saved.SIDES}
        return {side: each for side, each in both.items() if each is not None}

    @property
    def checksums(self) -> dict[str, Any]:
        """What ties checkpoints to the tokens and the pairs that they were trained on."""
        names = {f"{side} vocabulary": each.checksum for side, each in self.vocabularies.items()}
        return names | {"training pairs": self.batches.get_state()["checksum"]}


def batches(
    pairs: Pairs, options: UpdateOptions, *, max_length: int | None = None
) -> text.PairBatches:
    """Return endless batches of the pairs to train on, none larger than what is left of these.

    A pair without a target, or with a side longer than `max_length`, is left out.
    """
    size = {"batch_tokens": options.batch_tokens}
    if options.batch_tokens is None:
        longest = float("inf") if max_length is None else max_length
        lengths = [(len(s), len(t)) for s, t in zip(*pairs, strict=True)]
        left = sum(t > 0 and max(s, t) <= longest for s, t in lengths)
        size = {"batch_size": min(options.batch_size, max(left, 1))}
    shapes = {"buckets": options.buckets, "max_length": max_length}
    with as_user_errors(ValueError):
        return text.PairBatches(*pairs, **size, **shapes, seed=options.seed)


def text_task(corpus: TextPairs, options: UpdateOptions) -> tuple[Corpus, Task]:
    """Return pairs of lines, said what they are, and what a model is trained on of them."""
    loaded = parallel_text.load(corpus)
    for note in loaded.notes:
        print(note)
    both = loaded.vocabularies(corpus)
    return loaded, task_of(loaded, corpus, options, both)


def task_of(
    loaded: Corpus,
    corpus: TextPairs,
    options: UpdateOptions,
    both: tuple[Any, Any],
    *,
    copy: bool = False,
) -> Task:
    """Return what a model is trained on of pairs of lines; with `copy` one that copies."""
    parts = loaded.train, loaded.dev
    encoded = (each.copyable(both[0]) if copy else each.encoded(*both) for each in parts)
    pairs, dev = encoded
    return Task(*both, batches(pairs, options, max_length=corpus.max_length), dev)


def facts(batches: text.PairBatches) -> dict[str, Any]:
    """Return what is trained on, what is left out, and which part of it all is no padding."""
    names = ("without_target", "too_long", "real_fraction")
    return {"pairs": batches.size} | {name: getattr(batches, name) for name in names}


def train(
    experiment: str,
    options: TrainOptions,
    task: Task,
    *,
    twin: bool = False,
    evaluate: Callable[[nnx.Module], dict[str, float]] | None = None,
) -> Run:
    """Train the model, and with `twin` its twin; return the run's directory, for `saved.load`.

    `evaluate` adds numbers to each evaluation. What can be refused is refused before `start`, with
    which an earlier run of the name is gone.
    """
    chosen = {saved.TRAINING: options.model}
    if twin and options.model.score != "none":
        chosen[saved.TWIN] = models.twin(options.model, *task.sizes)
    for each in chosen.values():
        models.parameters(each, *task.sizes)  # refuses what cannot be built
    how = {"resume": options.resume, "checksums": task.checksums}
    output = start(experiment, options, options.output, **how)
    for side, each in task.vocabularies.items():
        each.save(saved.vocabulary_file(output.directory, side))
    numbers = facts(task.batches)
    output.update_metrics({"training": numbers})
    left_out = f"{numbers['without_target']:,} without a target, {numbers['too_long']:,} too long"
    real = f"{numbers['real_fraction']:.0%} of the positions in batches are no padding"
    print(f"{numbers['pairs']:,} pairs to train on (left out: {left_out}); {real}")
    for directory, each in chosen.items():
        fit(each, options.fit, task, output.directory / directory, evaluate=evaluate)
    return output


def fit(
    model: ModelOptions,
    options: FitOptions,
    task: Task,
    directory: Path,
    *,
    evaluate: Callable[[nnx.Module], dict[str, float]] | None = None,
) -> Fit:
    """Return the fit whose model has the lowest dev loss, the last where no dev is.

    An interrupted training goes on where it was.
    """
    print(f"{models.described(model, *task.sizes)}, {options.steps:,} steps")
    dev_loss = task.dev and dev_losses(task.dev, options)

    how = {"label_smoothing": options.label_smoothing}
    penalties = {"doubly_stochastic": options.doubly_stochastic, "coverage": options.coverage_loss}
    if model.recurrent_attention:  # a twin has no weights
        how |= {name: factor for name, factor in penalties.items() if factor}

    def loss(model, batch, rng):
        return model.loss(batch, start=text.START, rng=rng, **how)

    def evaluated(model):
        return dev_loss(model) | (evaluate(model) if evaluate is not None else {})

    every = min(options.evaluate_every, options.steps)
    warmup = min(options.warmup, options.steps // 4)
    rates = training.warmup_cosine(options.learning_rate, options.steps, warmup=warmup, end=0.01)
    return training.fit(
        models.build(model, *task.sizes, seed=options.seed),
        loss,
        task.batches,
        options,
        optimizer=optax.adam(rates, b2=0.98),
        clip_norm=options.clip_norm,
        evaluate=dev_loss and evaluated,
        evaluate_every=every,
        metric="dev_loss" if dev_loss else "loss",
        restore_best=dev_loss is not None,
        directory=directory,
        checkpoint_every=every,
        keep=options.keep,
        log_every=min(100, every, max(1, options.steps // 20)),
    )


def dev_losses(dev: Pairs, options: UpdateOptions) -> Callable[[nnx.Module], dict[str, float]]:
    """Return model -> mean loss, perplexity and accuracy on held-out pairs."""
    padded = text.padded_batches(
        *dev, batch_size=options.batch_size, batch_positions=POSITIONS, buckets=options.buckets
    )

    @functools.partial(jax.jit, static_argnums=0)
    def loss_of(graphdef, state, batch):
        return nnx.merge(graphdef, state).loss(batch, start=text.START)

    def evaluate(model: nnx.Module) -> dict[str, float]:
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
