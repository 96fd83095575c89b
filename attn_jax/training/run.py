"""One training under way: what is due at each step boundary, and the step itself."""

import collections
import contextlib
import dataclasses
import re
import time
import warnings
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

from attn_jax.checks import require
from attn_jax.training import checkpoints, processes, progress, rows, sharding, step
from attn_jax.training.arrays import from_arrays, to_arrays
from attn_jax.training.checkpoints import CheckpointError
from attn_jax.training.interrupt import Interrupt

SECONDS_BETWEEN_CHECKPOINTS = 120.0

Stopped = Literal["steps", "patience", "interrupted"]


@dataclasses.dataclass
class Record:
    """What a checkpoint must remember beside arrays; plain JSON."""

    seed: int
    metric: str
    mode: str
    optimizer: str = ""  # the structure of its state
    step: int = 0
    seconds: float = 0.0
    pending: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # since the last row
    best: float | None = None
    best_step: int | None = None
    stale: int = 0  # evaluations since the best one
    batches: Any = None  # the position in the data


class Run:
    """The state of one training and what can be done with it at a step boundary."""

    def __init__(self, *, model, loss, optimizer, batches, record, directory, **options):
        self.record, self.batches, self.directory = record, batches, directory
        self.options = options
        self.history: list[dict[str, Any]] = []
        self.best: Any = None
        self.saved_step: int | None = None
        self.mesh = sharding.mesh_or_all(options.pop("mesh", None))
        self.graphdef = step.split(model)[0]
        state = step.initial_state(model, optimizer, record.seed)
        record.optimizer = _structure(state.optimizer)
        shard = options.pop("shard", None)
        self.places = sharding.shardings(state, self.mesh, shard, optimizer)
        self.state = sharding.put(state, self.places)
        self._step = step.make_step(self.graphdef, loss, optimizer, self.places)
        self._started = self._saved_time = time.perf_counter()
        self._placed: tuple[Any, Any] = (None, None)
        self._seen: dict[Any, int | None] = {}  # shapes that have been compiled → examples
        self._in_flight: collections.deque = collections.deque()
        self._agreed = (False, False)  # of several processes: stop, and save

    def train(self, visible: bool) -> Stopped:
        """Step until there is a reason to stop, and leave a checkpoint there."""
        visible = visible and processes.is_first()
        display = progress.show(self.options["steps"], self.record.step, visible)
        with Interrupt() as interrupt, display:
            try:
                while not (stopped := self._boundary(interrupt, display)):
                    self._advance(display, interrupt)
            except KeyboardInterrupt:
                # Raised by the caller's own code, or where no handler could be installed.
                if interrupt.twice:
                    raise
                stopped = "interrupted"
            except jax.errors.JaxRuntimeError as error:
                if processes.is_loss(error):
                    raise processes.lost(f"at step {self.record.step}") from error
                raise
            self._save()
            if stopped != "steps":
                display.note(f"stopped at step {self.record.step}: {stopped}")
        return stopped

    def model(self) -> nnx.Module:
        """The model with the last parameters, in its own buffers."""
        variables = step.copy((self.state.parameters, self.state.others))
        return nnx.merge(self.graphdef, *variables)

    def best_model(self) -> nnx.Module:
        """The model with the best parameters, the last ones where nothing was evaluated."""
        if self.best is None:
            return self.model()
        template = (self.state.parameters, self.state.others)
        return nnx.merge(self.graphdef, *from_arrays(template, self.best))

    def resume(self) -> None:
        """Go back to the directory's newest whole checkpoint, if there is one."""
        found, damaged = checkpoints.paths(self.directory), []
        for path in found:
            try:
                manifest = checkpoints.read_manifest(path)
            except checkpoints.DamagedCheckpointError as error:
                damaged.append((path, error))
                continue
            self._restore(manifest)
            self.saved_step = self.record.step
            break
        if found and self.saved_step is None:
            raise damaged[0][1]
        for path, error in damaged:
            fate = f"left out, as {path.name}.damaged" if path is damaged[0][0] else "deleted"
            told = f"{error} It is {fate}: training goes on from {self.saved_step}."
            warnings.warn(told, checkpoints.DamagedCheckpointWarning, stacklevel=3)
        processes.wait("checkpoints are read")
        if damaged and processes.is_first():
            checkpoints.set_aside(*(path for path, _ in damaged))
        self.history = rows.rewind(self.directory / "metrics.jsonl", self.record.step)

    def _restore(self, manifest: checkpoints.Manifest) -> None:
        try:
            record = Record(**manifest.record)
        except TypeError as error:
            told = f"{manifest.path} was written by another version of attn_jax"
            raise CheckpointError(f"{told}: {error}.") from error
        for name in ("seed", "metric", "mode"):
            there, here = getattr(record, name), getattr(self.record, name)
            if there != here:
                raise CheckpointError(
                    f"{manifest.path} is of a run with {name}={there!r}, not {here!r}."
                )
        items = {
            name: checkpoints.restore(manifest, name, template)
            for name, template in _items(self.state).items()
        }
        if record.optimizer != self.record.optimizer:
            # Same arrays, other transformations: Adam's state, say, read as AdamW's.
            raise CheckpointError(
                f"{manifest.path} is of a run with another optimizer: its state was built as "
                f"{record.optimizer}, not as {self.record.optimizer}."
            )
        if record.best_step is not None:
            template = (self.state.parameters, self.state.others)
            self.best = to_arrays(checkpoints.restore(manifest, "best", template))
        self.batches.set_state(record.batches)
        parameters, others = items["model"]
        state = self.state._replace(parameters=parameters, others=others, **items["training"])
        self.state, self.record = sharding.put(state, self.places), record

    def _boundary(self, interrupt: Interrupt, display: progress.Progress) -> Stopped | None:
        """What is due between two steps; the reason to stop, if there is one."""
        if self.record.pending and self._row_is_due():
            self._report(display)
        if self._agreed[0] if processes.several() else interrupt.requested:
            return "interrupted"
        if self.record.step >= self.options["steps"]:
            return "steps"
        patience = self.options["patience"]
        if patience is not None and self.record.stale >= patience:
            return "patience"
        if self._checkpoint_is_due():
            self._save()
        return None

    def _every(self, name: str) -> bool:
        return self.record.step % self.options[name] == 0

    def _row_is_due(self) -> bool:
        last = self.record.step >= self.options["steps"]
        return last or self._every("log_every") or self._every("evaluate_every")

    def _checkpoint_is_due(self) -> bool:
        if self.directory is None:
            return False
        if self.options["checkpoint_every"] is not None:
            return self.record.step > 0 and self._every("checkpoint_every")
        return self._agreed[1] if processes.several() else self._time_is_up()

    def _time_is_up(self) -> bool:
        return time.perf_counter() - self._saved_time >= SECONDS_BETWEEN_CHECKPOINTS

    def _noticed(self, interrupt: Interrupt) -> tuple[Any, ...]:
        """What goes into the next step for the other processes to know, where there are any."""
        if not processes.several():
            return ()
        due = processes.is_first() and self._time_is_up()
        return (processes.flags(self.mesh, interrupt.requested, due),)

    def _advance(self, display: progress.Progress, interrupt: Interrupt) -> None:
        """Take one batch, hand out one step."""
        try:
            batch = next(self.batches)
        except StopIteration:
            wanted = f"last for steps={self.options['steps']}"
            require(False, "batches", wanted, f"{self.record.step} batches (repeat them)")
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch))
        compiles = shapes not in self._seen
        if compiles:
            self._seen[shapes] = sharding.examples(batch)
        with display.compiling(self.record.step) if compiles else contextlib.nullcontext():
            noticed = self._noticed(interrupt)
            self.state, metrics = self._step(self.state, self._place(batch), *noticed)
            if compiles:
                jax.block_until_ready(metrics)
        self.record.step += 1
        waited = metrics.pop(step.FLAGS, metrics["loss"])
        self.record.pending.append(metrics)
        self._in_flight.append(waited)
        if len(self._in_flight) > step.run_ahead(self.mesh):
            waited = jax.block_until_ready(self._in_flight.popleft())
            if processes.several():
                self._agreed = tuple(bool(each) for each in np.asarray(waited))
        display.stepped(self.record.step, self._seen[shapes])

    def _place(self, batch: Any) -> Any:
        # Full-batch training gives the same object each time: place it once.
        if batch is not self._placed[0]:
            self._placed = (batch, sharding.place(batch, self.mesh))
        return self._placed[1]

    def _settle(self) -> None:
        """Wait for the device, fetch what is pending, and refuse to go on if it is not finite."""
        pending = jax.device_get(self.record.pending)
        self.record.pending = [{name: float(m[name]) for name in m} for m in pending]
        if not bool(self.state.finite):
            raise self._non_finite()

    def _non_finite(self) -> step.NonFiniteLoss:
        failed = int(self.state.step) + 1
        value = self.record.pending[failed - self.record.step - 1]["loss"]
        what = f"The loss is {value:.6g} at step {failed}"
        if rows.number_or_none(value) is not None:
            what += ", but its gradient or the updated parameters are not finite"
        path = None if self.directory is None else checkpoints.latest(self.directory)
        good = f"The last good checkpoint is {path}" if path else "There is no checkpoint yet"
        message = f"{what}. {good}."
        return step.NonFiniteLoss(message, failed, path)

    def _report(self, display: progress.Progress) -> None:
        """Write the row of this step, with an evaluation if one is due."""
        self._settle()
        row = {"step": self.record.step} | rows.mean_rows(self.record.pending)
        judged = self._every("evaluate_every") or self.record.step >= self.options["steps"]
        if judged:
            results, evaluate = row, self.options["evaluate"]
            if evaluate is not None:
                model = self.model()
                model.eval()
                results = {name: rows.number_or_none(v) for name, v in evaluate(model).items()}
                row["evaluation"] = results = processes.from_first(results)
            self._judge(results)
        row["seconds"] = round(self._seconds(), 3)
        self.record.pending = []
        if self.directory is not None and processes.is_first():
            rows.append(self.directory / "metrics.jsonl", row)
        self.history.append(row)
        display.reported(self.record.step, row)
        if self.options["on_row"] is not None and processes.is_first():
            self.options["on_row"](row)

    def _judge(self, results: dict[str, Any]) -> None:
        """Is this the best model so far? A metric that is not finite never is."""
        record = self.record
        there = sorted(results.keys() - {"step"})
        known = record.metric in there
        require(known, "metric", f"be one of the evaluation's entries {there}", record.metric)
        value = results[record.metric]
        sign = 1 if record.mode == "min" else -1
        better = value is not None and (record.best is None or sign * value < sign * record.best)
        record.stale = 0 if better else record.stale + 1
        if better:
            record.best, record.best_step = value, record.step
            self.best = to_arrays((self.state.parameters, self.state.others))

    def _seconds(self) -> float:
        return self.record.seconds + time.perf_counter() - self._started

    def _save(self) -> None:
        """Checkpoint this step, unless nothing would change."""
        self._settle()
        if self.directory is None or self.saved_step == self.record.step:
            return
        record = dataclasses.replace(
            self.record, seconds=self._seconds(), batches=self.batches.get_state()
        )
        items = _items(self.state)
        if self.best is not None:
            items["best"] = self.best
        checkpoints.save(self.directory, items, dataclasses.asdict(record), self.options["keep"])
        self.saved_step, self._saved_time = self.record.step, time.perf_counter()
        self._in_flight.clear()  # what was noticed before is done
        self._agreed = (False, False)


def _items(state: step.State) -> dict[str, Any]:
    """The state as a checkpoint's items. `finite` is no part of it: what is saved is."""
    training = {name: getattr(state, name) for name in ("optimizer", "rng", "step")}
    return {"model": (state.parameters, state.others), "training": training}


def _structure(tree: Any) -> str:
    # Memory addresses of functions say nothing.
    return re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(tree)))
