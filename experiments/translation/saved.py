"""A run's directory as a model that can be used: its options, its vocabularies, its checkpoints.

config.json                the run's options; `runs.py` writes it
vocabulary.source.json     and vocabulary.target.json
training/                  checkpoints, metrics.jsonl
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.translation.models import ModelOptions, build

SIDES = ("source", "target")


class Saved(NamedTuple):
    """What a directory holds."""

    model: Any
    source: Any  # Vocabulary
    target: Any
    options: dict[str, Any]  # as config.json has them


def write_vocabularies(directory: Path, source: Any, target: Any) -> None:
    """Write both vocabularies beside the checkpoints that only they can read."""
    for side, vocabulary in zip(SIDES, (source, target), strict=True):
        vocabulary.save(directory / f"vocabulary.{side}.json")


def load(directory: Path, *, training: str = "training") -> Saved:
    """Return the best model of a run's directory."""
    from attn_jax import text
    from attn_jax.training import CheckpointError
    from attn_jax.training import load as load_checkpoint

    config = directory / "config.json"
    if not config.exists():
        raise UserError(f"{directory} holds no run: train a model of this name first.")
    options = json.loads(config.read_text("utf-8"))["options"]
    try:
        source, target = (
            text.Vocabulary.load(directory / f"vocabulary.{side}.json") for side in SIDES
        )
        model = build(ModelOptions(**options["model"]), len(source), len(target))
        model = load_checkpoint(model, directory / training)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    return Saved(model, source, target, options)
