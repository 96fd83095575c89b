"""A run's directory as a model that can be used: its options, its vocabularies, its checkpoints.

config.json                the run's options; `runs.py` writes it
vocabulary.source.json     and vocabulary.target.json
training/                  checkpoints, metrics.jsonl
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.translation.models import ModelOptions, build, twin

SIDES = ("source", "target")
TWIN = "training-twin"


class Saved(NamedTuple):
    """What a directory holds."""

    model: Any
    source: Any  # Vocabulary
    target: Any
    options: dict[str, Any]  # as config.json has them
    twin: Any = None  # the model without attention, where one was trained


def write_vocabularies(directory: Path, source: Any, target: Any) -> None:
    """Write both vocabularies beside the checkpoints that only they can read."""
    for side, vocabulary in zip(SIDES, (source, target), strict=True):
        vocabulary.save(directory / f"vocabulary.{side}.json")


def load(directory: Path, *, average: int = 1) -> Saved:
    """Return the best model of a run's directory, or the mean of its newest checkpoints."""
    from attn_jax import text

    options = read_options(directory)
    try:
        source, target = (
            text.Vocabulary.load(directory / f"vocabulary.{side}.json") for side in SIDES
        )
        model_options = ModelOptions(**options["model"])
        sizes = (len(source), len(target))
        model = _with_parameters(build(model_options, *sizes), directory / "training", average)
        without = None
        if (directory / TWIN).is_dir():
            without = build(twin(model_options, *sizes), *sizes)
            without = _with_parameters(without, directory / TWIN, average)
    except ValueError as error:
        raise UserError(str(error)) from error
    return Saved(model, source, target, options, without)


def read_options(directory: Path) -> dict[str, Any]:
    """Return the options that a run was started with."""
    config = directory / "config.json"
    if not config.exists():
        raise UserError(f"{directory} holds no run. Train a model of this --name first.")
    return json.loads(config.read_text("utf-8"))["options"]


def _with_parameters(model: Any, training: Path, average: int) -> Any:
    from attn_jax.training import load as load_checkpoint
    from attn_jax.training import load_average

    if average > 1:
        return load_average(model, training, average)
    return load_checkpoint(model, training)


def require_same_vocabulary(first: Saved, other: Saved, name: str) -> None:
    """Refuse models that would vote on tokens of different meaning."""
    for side in SIDES:
        if getattr(first, side).checksum != getattr(other, side).checksum:
            what = f"The {side} vocabulary of {name} is another"
            raise UserError(f"--ensemble needs runs with the same vocabularies. {what}.")
