"""The vocabulary in a run's directory: the one that its checkpoints were trained with, or none."""

from pathlib import Path
from typing import Any

from experiments.harness.errors import UserError, as_user_errors


def load(path: Path, trained: Any) -> Any:
    """Return a `Vocabulary` of the checksum that the run's config.json has."""
    from attn_jax import text

    with as_user_errors(ValueError):
        vocabulary = text.Vocabulary.load(path)
    if vocabulary.checksum != trained:
        found = f"{trained}. Got {vocabulary.checksum}"
        raise UserError(f"{path} must be what the model was trained with, of checksum {found}.")
    return vocabulary
