"""Which models a trained run is evaluated with, and by which searches."""

import dataclasses
from collections.abc import Mapping, Sequence

from flax import nnx

from attn_jax import text
from experiments.data.parallel_text import EvaluationFiles
from experiments.harness.errors import UserError
from experiments.harness.files import plain
from experiments.harness.runs import Run
from experiments.seq2seq import saved
from experiments.seq2seq.options import ModelOptions, SearchOptions, SystemOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translator

ATTENTION, TWIN, GREEDY = "attention", "no attention", "greedy"

Systems = Mapping[str, Sequence[nnx.Module]]  # name → the models of an ensemble


def load(
    experiment: str,
    options: SystemOptions,
    name: str | None = None,
    *,
    kind: type[ModelOptions] = ModelOptions,
) -> Saved:
    """Return the run of the options, or that of another name; `kind` as for `saved.load`."""
    output = dataclasses.replace(options.output, name=name or options.output.name)
    return saved.load(output.directory(experiment), average=options.average, kind=kind)


def load_ensemble(
    experiment: str,
    options: SystemOptions,
    vocabularies: tuple[text.Vocabulary | None, text.Vocabulary],
    *,
    kind: type[ModelOptions] = ModelOptions,
) -> list[Saved]:
    """Return the further runs of the ensemble; refuse tokens of different meaning."""
    others = [load(experiment, options, name, kind=kind) for name in options.ensemble]
    for name, other in zip(options.ensemble, others, strict=True):
        for side, ours, its in zip(saved.SIDES, vocabularies, other.vocabularies, strict=True):
            if ours is not None and ours.checksum != its.checksum:
                what = f"The {side} vocabulary of {name} is another"
                raise UserError(f"--ensemble needs runs with the same vocabularies. {what}.")
    return others


def output_for(loaded: Saved, files: EvaluationFiles) -> Run:
    """Return where results go: other test files than the training's have evaluation/ for them."""
    now, before = plain(files.files("test")), loaded.options["corpus"]
    if now in ([None, None], [before["test_source"], before["test_target"]]):
        return Run(loaded.directory)
    output = Run(loaded.directory / "evaluation")
    output.clear_figures()
    output.write_metrics({"test": now})
    return output


def systems(loaded: Saved, others: Sequence[Saved] = (), *, average: int = 1) -> Systems:
    """Return the run's model, in an ensemble with others, and its twin if one was trained."""
    found = {ATTENTION if loaded.attends else TWIN: [each.model for each in (loaded, *others)]}
    if loaded.attends and (twin := saved.load_twin(loaded, average=average)):
        found[TWIN] = [twin]
    return found


def searches(
    systems: Systems, target: text.Vocabulary, options: SearchOptions
) -> list[tuple[dict[str, str], Translator]]:
    """Return {system, search} and what translates: each system, greedily and by beam search.

    The first system's weights are kept, of sources that are not very long.
    """
    first, found = next(iter(systems)), []
    for system, models in systems.items():
        for beam in sorted({1, options.beam}):
            search = dataclasses.replace(options, beam=beam)
            kept = text.LENGTHS[-1] if system == first else 0
            translator = Translator(models, target, search, align_up_to=kept)
            found.append(({"system": system, "search": search.name}, translator))
    return found
