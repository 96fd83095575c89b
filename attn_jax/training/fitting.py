"""`fit` and `load`: what a caller sees of training."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from attn_jax.checks import require
from attn_jax.training import checkpoints, processes, step
from attn_jax.training.checkpoints import CheckpointError
from attn_jax.training.lock import InUse, Lock
from attn_jax.training.run import Record, Run, Stopped
from attn_jax.training.sharding import Shard


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a training ended.

    Attributes:
        model: The trained model, with its last parameters (the best ones under `restore_best`).
        step: The number of steps done.
        stopped: Why it stopped: all `steps` done, `patience` lost, or `interrupted` by Ctrl-C, or
            by a SIGTERM whose handler returned.
        best: The best value of the metric; None where nothing was evaluated.
        best_step: The step it was reached at.
        history: The rows of metrics.jsonl, those from before a resume included.
    """

    model: nnx.Module
    step: int
    stopped: Stopped
    best: float | None
    best_step: int | None
    history: list[dict[str, Any]]


def fit(
    model: nnx.Module,
    loss: Callable[[nnx.Module, Any, jax.Array], Any],
    batches: Iterable[Any],
    *,
    steps: int,
    optimizer: optax.GradientTransformation | float | Callable[[Any], Any] = 1e-3,
    clip_norm: float | None = None,
    mesh: Mesh | None = None,
    shard: Shard | None = None,
    seed: int = 0,
    evaluate: Callable[[nnx.Module], dict[str, Any]] | None = None,
    evaluate_every: int | None = None,
    metric: str = "loss",
    mode: Literal["min", "max"] = "min",
    patience: int | None = None,
    restore_best: bool = False,
    directory: Path | str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    resume: bool = True,
    log_every: int = 100,
    progress: bool = True,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> Fit:
    """Train a model: the same loop, whatever the model, its loss and its data.

    The same arguments give the same bits, however often the run was interrupted or killed and
    resumed in between. `model` itself is left alone.

    In the main thread Ctrl-C and SIGTERM (Slurm's, Kubernetes') finish the step and save; a second
    one stops at once. After Ctrl-C `fit` returns what there is. After SIGTERM the program's own
    handler is called; where it has none, the program ends with exit code 143 (`SystemExit`). In a
    `fit` inside another's evaluation either stops both.

    Args:
        model: Any NNX module; its `nnx.Param`s are trained, its other variables carried along.
        loss: `(model, batch, rng) -> loss`, or `-> (loss, {name: number})`; traced by `jax.jit`.
        batches: An endless iterable; to be resumed, its iterator has `get_state` and `set_state`.
        steps: Stop after this many steps, those from before a resume included.
        optimizer: An Optax optimizer, or a learning rate or schedule for Adam.
        clip_norm: Scale gradients down to this global norm.
        mesh: Devices, over whose first axis the examples of a batch are divided where it divides
            them; None: all devices along one axis, "batch".
        shard: (name, shape) of a parameter -> PartitionSpec: how it is divided over the mesh, and
            its moments in the optimizer with it; None: each device has all of it. See `fsdp` and
            `tensor`.
        seed: Seed of the `rng` that `loss` gets, a new one each step.
        evaluate: `model -> {name: number}`, called with the model in evaluation mode.
        evaluate_every: Steps between evaluations, `log_every` if None; always after the last step.
        metric: The entry of `evaluate`'s result by which a model is the best; without
            `evaluate`, of the mean training metrics since the row before.
        mode: Whether the best metric is the smallest or the largest.
        patience: Stop after this many evaluations in a row that brought no improvement.
        restore_best: Return the best parameters, by `evaluate`, rather than the last ones.
        directory: Where metrics.jsonl and checkpoints go. Without one, nothing is written. While
            one training is under way in it, a second one is refused.
        checkpoint_every: Steps between checkpoints; if None, a checkpoint every two minutes. There
            is always one at the end, on Ctrl-C and on SIGTERM.
        keep: How many checkpoints stay. Each holds the best parameters so far, too.
        resume: Go on from the directory's newest checkpoint; one that is damaged is left out, with
            a warning. False refuses a directory that has one.
        log_every: Steps between rows: the mean of the loss and its metrics since the row before.
        progress: Show a bar on a terminal, plain lines elsewhere.
        on_row: Called with each row as it is written.

    Returns:
        The trained model and how training went.

    Raises:
        NonFiniteLoss: The loss, its gradient or the new parameters were inf or NaN.
        CheckpointError: The directory's checkpoints are damaged, belong to another run, or cannot
            be written; or another training is under way there.
    """
    evaluate_every = evaluate_every or log_every
    counts = {"steps": steps, "evaluate_every": evaluate_every, "keep": keep}
    counts |= {"log_every": log_every, "checkpoint_every": checkpoint_every, "patience": patience}
    for name, count in counts.items():
        require(count is None or count >= 1, name, "be at least 1", count)
    require(clip_norm is None or clip_norm > 0, "clip_norm", "be positive", clip_norm)
    require(mode in ("min", "max"), "mode", "be 'min' or 'max'", mode)
    needs = "be False without evaluate: a row's loss is that of parameters before the row's steps"
    require(evaluate is not None or not restore_best, "restore_best", needs, restore_best)
    iterator = iter(batches)
    with _kept(directory, iterator, resume) as directory:
        run = Run(
            model=model,
            loss=loss,
            optimizer=_optimizer(optimizer, clip_norm),
            batches=iterator,
            record=Record(seed=seed, metric=metric, mode=mode),
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            log_every=log_every,
            steps=steps,
            patience=patience,
            mesh=mesh,
            shard=shard,
            directory=directory,
            checkpoint_every=checkpoint_every,
            keep=keep,
            on_row=on_row,
        )
        if directory is not None:
            run.resume()
        stopped = run.train(progress)
    return Fit(
        model=run.best_model() if restore_best else run.model(),
        step=run.record.step,
        stopped=stopped,
        best=run.record.best,
        best_step=run.record.best_step,
        history=run.history,
    )


def load(
    model: nnx.Module, directory: Path | str, *, which: Literal["best", "last"] = "best"
) -> nnx.Module:
    """A copy of the model with the parameters of a directory's newest checkpoint.

    `best` are those of the best evaluation up to that checkpoint. `model` itself is left alone.
    A damaged checkpoint is refused, also where an older one is whole: `fit` goes on from that.
    """
    require(which in ("best", "last"), "which", "be 'best' or 'last'", which)
    item = {"best": "best", "last": "model"}[which]
    graphdef, *variables = step.split(model)

    def read(paths: list[Path]) -> Any:
        if not paths:
            raise CheckpointError(f"{directory} has no checkpoint.")
        manifest = checkpoints.read_manifest(paths[0])
        if item not in manifest.items:
            raise CheckpointError(
                f"{paths[0]} has no best model: nothing was evaluated up to there."
            )
        return checkpoints.restore(manifest, item, tuple(variables))

    return nnx.merge(graphdef, *checkpoints.read(Path(directory).absolute(), read))


def load_average(model: nnx.Module, directory: Path | str, count: int) -> nnx.Module:
    """A copy of the model with the mean of the parameters of the newest `count` checkpoints.

    (Junczys-Dowmunt et al. 2016, section 4.) Other variables are the newest checkpoint's.
    """
    require(count >= 1, "count", "be at least 1", count)
    graphdef, *variables = step.split(model)

    def read(paths: list[Path]) -> tuple[Any, Any]:
        rule = f"be at most {len(paths)}, the checkpoints that {directory} keeps"
        require(count <= len(paths), "count", rule, count)
        total, others = None, None
        for path in reversed(paths[:count]):
            manifest = checkpoints.read_manifest(path)
            parameters, others = checkpoints.restore(manifest, "model", tuple(variables))
            total = parameters if total is None else jax.tree.map(jax.numpy.add, total, parameters)
        return jax.tree.map(lambda each: each / count, total), others

    return nnx.merge(graphdef, *checkpoints.read(Path(directory).absolute(), read))


def _optimizer(optimizer: Any, clip_norm: float | None) -> optax.GradientTransformation:
    if not isinstance(optimizer, optax.GradientTransformation):
        optimizer = optax.adam(optimizer)
    if clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)


@contextlib.contextmanager
def _kept(
    directory: Path | str | None, batches: Iterator[Any], resume: bool
) -> Iterator[Path | None]:
    """The directory, which exists, can be written and is locked until the end."""
    if directory is None:
        yield None
        return
    positioned = hasattr(batches, "get_state") and hasattr(batches, "set_state")
    rule = "have get_state and set_state, with a state that JSON can hold, to be checkpointed"
    try:
        proper = positioned and json.dumps(batches.get_state()) != ""
    except TypeError:
        proper = False
    require(proper, "batches", rule, type(batches).__name__)
    directory = Path(directory).absolute()
    if not processes.is_first():
        processes.wait("the first one has the directory")
        yield directory
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = Lock(directory / "training.lock")
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        told = f"{directory}: {getattr(error, 'strerror', None) or error}"
        raise CheckpointError(
            f"directory must be a folder that can be written. Got {told}."
        ) from error
    except InUse as holder:
        rule = "be no other training's while that is under way"
        raise CheckpointError(f"directory must {rule}. Got {directory}: {holder}.") from holder
    with lock:
        fresh = resume or checkpoints.latest(directory) is None
        require(fresh, "directory", "hold no checkpoint when resume=False", str(directory))
        processes.wait("the first one has the directory")
        yield directory
