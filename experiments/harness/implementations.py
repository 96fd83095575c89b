"""What is compared with others' implementations of the same thing."""

import importlib.util
from dataclasses import dataclass

OURS = "attn_jax"


@dataclass(frozen=True)
class Implementation:
    """One implementation: what it is called, and whose it is (the package that brings it)."""

    name: str
    library: str

    @property
    def missing(self) -> bool:
        """Whether the library is not installed."""
        return importlib.util.find_spec(self.library) is None

    @property
    def ours(self) -> bool:
        """Whether it is attn_jax's own: its failures fail the run."""
        return self.library == OURS
