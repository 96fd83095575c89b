"""A run's directory as a model that can be used: its options, its vocabularies, its checkpoints.

config.json                the run's options, its vocabularies' checksums; `runs.py` writes it
vocabulary.source.json     and vocabulary.target.json; without the first, sources are arrays
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
    source: text.Vocabulary | None  # None: sources are arrays
    target: text.Vocabulary
    options: dict[str, Any]  # as config.json has them
    directory: Path
    model_options: ModelOptions

    @property
    def vocabularies(self) -> tuple[text.Vocabulary | None, text.Vocabulary]:
        """Source and target."""
        return self.source, self.target

    @property
    def attends(self) -> bool:
        """Whether the model has attention weights."""
        return self.model_options.score != "none"


def vocabulary_file(directory: Path, side: str) -> Path:
    """Return where the vocabulary of a side is."""
    return directory / f"vocabulary.{side}.json"


def load(directory: Path, *, average: int = 1, kind: type[ModelOptions] = ModelOptions) -> Saved:
    """Return the best model of a run's directory, or the mean of its newest checkpoints.

    `kind` is the class of the experiment's options of models.
    """
    config = runs.read_config(directory)
    with as_user_errors(TypeError):  # a run of another version has other options
        model = kind(**config["options"].get("model", {}))
    both = [
        vocabularies.load(vocabulary_file(directory, side), config["checksums"].get(name))
        if (name := f"{side} vocabulary") in config["checksums"] or side == "target"
        else None
        for side in SIDES
    ]
    restored = _restored(model, directory / TRAINING, sizes(*both), average)
    return Saved(restored, *both, config["options"], directory, model)


def sizes(source: text.Vocabulary | None, target: text.Vocabulary) -> tuple[int | None, int]:
    """The sizes of both vocabularies; None for sources that are arrays."""
    return None if source is None else len(source), len(target)


def load_twin(
    loaded: Saved, *, average: int = 1, options: ModelOptions | None = None
) -> nnx.Module | None:
    """Return the model beside it, None where none was trained: that without attention."""
    directory, both = loaded.directory / TWIN, sizes(*loaded.vocabularies)
    if not (directory / "checkpoints").is_dir():
        return None
    twin = options or models.twin(loaded.model_options, *both)
    return _restored(twin, directory, both, average)


def _restored(options: ModelOptions, directory: Path, sizes: Any, average: int) -> nnx.Module:
    model = models.build(options, *sizes)
    try:
        if average > 1:
            return training.load_average(model, directory, average)
        return training.load(model, directory)
    except ValueError as error:
        raise UserError(re.sub("^count", "--average", str(error))) from error
