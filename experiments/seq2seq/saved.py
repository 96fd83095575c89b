"""A run's directory as a model that can be used: its options, its vocabularies, its checkpoints.

config.json                the run's options, its vocabularies' checksums; `runs.py` writes it
vocabulary.source.json     and vocabulary.target.json
training/                  checkpoints, metrics.jsonl; under twin/ those of the model without
                           attention, so that no later run of the name inherits them
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from attn_jax import text, training
from experiments.data import vocabularies
from experiments.harness import runs
from experiments.harness.errors import UserError, as_user_errors
from experiments.seq2seq import models
from experiments.seq2seq.options import ModelOptions

SIDES = ("source", "target")
TRAINING, TWIN = "training", "training/twin"


class Saved(NamedTuple):
    """What a directory holds."""

    model: nnx.Module
    source: text.Vocabulary
    target: text.Vocabulary
    options: dict[str, Any]  # as config.json has them
    directory: Path

    @property
    def vocabularies(self) -> tuple[text.Vocabulary, text.Vocabulary]:
        """Source and target."""
        return self.source, self.target

    @property
    def attends(self) -> bool:
        """Whether the model has attention weights."""
        return self.options["model"]["score"] != "none"


def vocabulary_file(directory: Path, side: str) -> Path:
    """Return where the vocabulary of a side is."""
    return directory / f"vocabulary.{side}.json"


def load(directory: Path, *, average: int = 1) -> Saved:
    """Return the best model of a run's directory, or the mean of its newest checkpoints."""
    config = runs.read_config(directory)
    model = _model_options(config["options"])
    both = [
        vocabularies.load(
            vocabulary_file(directory, side), config["checksums"].get(f"{side} vocabulary")
        )
        for side in SIDES
    ]
    restored = _restored(model, directory / TRAINING, map(len, both), average)
    return Saved(restored, *both, config["options"], directory)


def load_twin(loaded: Saved, *, average: int = 1) -> nnx.Module | None:
    """Return the model without attention, None where none was trained."""
    directory, sizes = loaded.directory / TWIN, list(map(len, loaded.vocabularies))
    if not (directory / "checkpoints").is_dir():
        return None
    return _restored(models.twin(_model_options(loaded.options), *sizes), directory, sizes, average)


def _model_options(options: dict[str, Any]) -> ModelOptions:
    with as_user_errors(TypeError):  # a run of another version has other options
        return ModelOptions(**options.get("model", {}))


def _restored(options: ModelOptions, directory: Path, sizes: Any, average: int) -> nnx.Module:
    model = models.build(options, *sizes)
    try:
        if average > 1:
            return training.load_average(model, directory, average)
        return training.load(model, directory)
    except ValueError as error:
        raise UserError(re.sub("^count", "--average", str(error))) from error
