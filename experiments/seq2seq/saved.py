"""A run's directory as a model that can be used: its options, its vocabularies, its checkpoints.

config.json                the run's options, its vocabularies' checksums; `runs.py` writes it
vocabulary.source.json     and vocabulary.target.json
training/                  checkpoints, metrics.jsonl; under twin/ those of the model without
                           attention, so that no later run of the name inherits them
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data import vocabularies
from experiments.harness import runs
from experiments.harness.errors import UserError, as_user_errors
from experiments.seq2seq.models import ModelOptions, build, twin

SIDES = ("source", "target")
TRAINING, TWIN = "training", "training/twin"


class Saved(NamedTuple):
    """What a directory holds."""

    model: Any
    source: Any  # Vocabulary
    target: Any
    options: dict[str, Any]  # as config.json has them
    directory: Path

    @property
    def model_options(self) -> ModelOptions:
        """The options that the model was built with."""
        return model_options(self.options)

    @property
    def vocabularies(self) -> tuple[Any, Any]:
        """Source and target."""
        return self.source, self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes of both vocabularies."""
        return len(self.source), len(self.target)

    @property
    def attends(self) -> bool:
        """Whether there are weights to look at."""
        return self.options["model"]["score"] != "none"


def checksums(source: Any, target: Any, batches: Any) -> dict[str, Any]:
    """Return what ties checkpoints to the tokens and the pairs that they were trained on."""
    vocabularies = {
        f"{side} vocabulary": each.checksum
        for side, each in zip(SIDES, (source, target), strict=True)
    }
    return vocabularies | {"training pairs": batches.get_state()["checksum"]}


def write_vocabularies(directory: Path, source: Any, target: Any) -> None:
    """Write both vocabularies beside the checkpoints that only they can read.

    In a resumed run they are the same again: `runs.start` has compared their checksums.
    """
    for side, vocabulary in zip(SIDES, (source, target), strict=True):
        vocabulary.save(vocabulary_file(directory, side))


def vocabulary_file(directory: Path, side: str) -> Path:
    """Return where the vocabulary of a side is."""
    return directory / f"vocabulary.{side}.json"


def load(directory: Path, *, average: int = 1) -> Saved:
    """Return the best model of a run's directory, or the mean of its newest checkpoints."""
    config = read_config(directory)
    source, target = (_vocabulary(directory, side, config) for side in SIDES)
    built = build(model_options(config["options"]), len(source), len(target))
    model = _with_parameters(built, directory / TRAINING, average)
    return Saved(model, source, target, config["options"], directory)


def load_twin(loaded: Saved, *, average: int = 1) -> Any | None:
    """Return the model without attention, None where none was trained."""
    directory = loaded.directory / TWIN
    if not (directory / "checkpoints").is_dir():
        return None
    options = twin(loaded.model_options, *loaded.sizes)
    return _with_parameters(build(options, *loaded.sizes), directory, average)


def read_config(directory: Path) -> dict[str, Any]:
    """Return what a run was started with."""
    config = runs.read_config(directory)
    model_options(config["options"])
    return config


def model_options(options: dict[str, Any]) -> ModelOptions:
    """Return a run's options of its model."""
    with as_user_errors(TypeError):  # a run of another version has other options
        return ModelOptions(**options.get("model", {}))


def _vocabulary(directory: Path, side: str, config: dict[str, Any]) -> Any:
    """Return a side's vocabulary, which has to be the one that was trained with."""
    trained = config["checksums"].get(f"{side} vocabulary")
    return vocabularies.load(vocabulary_file(directory, side), trained)


def _with_parameters(model: Any, training: Path, average: int) -> Any:
    from attn_jax.training import load as load_checkpoint
    from attn_jax.training import load_average

    try:
        if average > 1:
            return load_average(model, training, average)
        return load_checkpoint(model, training)
    except ValueError as error:
        raise UserError(re.sub("^count", "--average", str(error))) from error


def require_same_vocabulary(first: tuple[Any, Any], other: Saved, name: str) -> None:
    """Refuse a run that would vote on tokens of different meaning."""
    for side, vocabulary in zip(SIDES, first, strict=True):
        if vocabulary.checksum != getattr(other, side).checksum:
            what = f"The {side} vocabulary of {name} is another"
            raise UserError(f"--ensemble needs runs with the same vocabularies. {what}.")


def require_opposite(first: tuple[Any, Any], other: Saved, name: str) -> None:
    """Refuse a run that does not translate back, token by token, what the first translates."""
    back = [other.target.checksum, other.source.checksum]
    if [vocabulary.checksum for vocabulary in first] != back or not other.attends:
        what = f"{name} has other vocabularies, the same direction or no attention"
        raise UserError(f"--backward needs a run of the other direction of this one's. {what}.")
