"""Which models a trained run is evaluated with, and by which searches."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.harness.errors import UserError
from experiments.harness.options import Positive
from experiments.harness.smoke import RunOptions
from experiments.seq2seq import saved
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import SearchOptions, Translator

ATTENTION, TWIN, GREEDY = "attention", "no attention", "greedy"

Systems = Mapping[str, Sequence[Any]]  # name → the models of an ensemble


@dataclass(frozen=True)
class SystemOptions(RunOptions):
    """The models of a run, and how to search with them."""

    search: SearchOptions = field(default_factory=SearchOptions)
    average: Positive[int] = 1
    """Translate with the mean of so many of the last checkpoints. 1: with the best checkpoint."""
    ensemble: tuple[str, ...] = ()
    """Names of further runs of the same vocabularies, in an ensemble with this one."""

    def load(self, experiment: str) -> Saved:
        """Return the run of the name."""
        return saved.load(self.output.directory(experiment), average=self.average)

    def load_others(self, experiment: str, vocabularies: tuple[Any, Any]) -> list[Saved]:
        """Return the other runs of the ensemble; refuse tokens of different meaning."""
        others = [self.load_other(experiment, name) for name in self.ensemble]
        for name, other in zip(self.ensemble, others, strict=True):
            for side, ours, its in zip(saved.SIDES, vocabularies, other.vocabularies, strict=True):
                if ours.checksum != its.checksum:
                    what = f"The {side} vocabulary of {name} is another"
                    raise UserError(f"--ensemble needs runs with the same vocabularies. {what}.")
        return others

    def load_other(self, experiment: str, name: str) -> Saved:
        """Return the run of another name."""
        output = dataclasses.replace(self.output, name=name)
        return dataclasses.replace(self, output=output).load(experiment)


def systems(loaded: Saved, others: Sequence[Saved] = (), *, average: int = 1) -> Systems:
    """Return the run's model, in an ensemble with others, and its twin if one was trained."""
    found = {ATTENTION if loaded.attends else TWIN: [each.model for each in (loaded, *others)]}
    if loaded.attends and (twin := saved.load_twin(loaded, average=average)):
        found[TWIN] = [twin]
    return found


def searches(
    systems: Systems, target: Any, options: SearchOptions
) -> list[tuple[dict[str, str], Translator]]:
    """Return {system, search} and what translates: each system, greedily and by beam search.

    The first system's weights are kept, of sources that are not very long.
    """
    from attn_jax import text

    first, found = next(iter(systems)), []
    for system, models in systems.items():
        for beam in sorted({1, options.beam}):
            search = dataclasses.replace(options, beam=beam, n_best=1)
            kept = text.LENGTHS[-1] if system == first else 0
            name = GREEDY if beam == 1 else f"beam {beam}"
            translator = Translator(models, target, search, align_up_to=kept)
            found.append(({"system": system, "search": name}, translator))
    return found
