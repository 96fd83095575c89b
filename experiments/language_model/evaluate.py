"""A run's directory as a model that can be used, and what that model is worth on a text."""

from typing import Any

from attn_jax.nn import LanguageModel
from attn_jax.text import Vocabulary
from attn_jax.training import load
from experiments.data import vocabularies
from experiments.harness.errors import UserError, as_user_errors
from experiments.harness.files import to_json, write
from experiments.harness.runs import Output, Run, read_config
from experiments.language_model import (
    Evaluate,
    FitOptions,
    TextOptions,
    Train,
    Transformer,
    data,
    figures,
    report,
)
from experiments.language_model.train import EVALUATION, NAME, TRAINING, VOCABULARY, build


def restored(output: Output) -> tuple[LanguageModel, Vocabulary, Train, Run]:
    """Return the trained model of a run, its vocabulary, its options and its directory."""
    directory = output.directory(NAME)
    config = read_config(directory)
    before: dict[str, Any] = config["options"]
    if "positions" not in before.get("model", ["positions"]):
        raise UserError(f"{directory} holds a comparison. Train one model under another --name.")
    trained = config["checksums"].get("vocabulary")
    vocabulary = vocabularies.load(directory / VOCABULARY, trained)
    parts = {"data": TextOptions, "model": Transformer, "fit": FitOptions}
    with as_user_errors(ValueError, TypeError, KeyError):  # another version has other options
        built = {name: kind(**before[name]) for name, kind in parts.items()}
        options = Train(**built, output=output, smoke=before["smoke"])
        model = load(build(options.model, len(vocabulary), options.fit), directory / TRAINING)
    return model, vocabulary, options, Run(directory)


def run(options: Evaluate) -> None:
    """Evaluate a trained model on the text that was held out, or all of another one."""
    model, vocabulary, before, output = restored(options.output)
    if path := options.text or options.dev:
        written, source = data.read(path), str(path)
    else:
        corpus = data.load(before.data, smoke=before.smoke)
        written, source = corpus.dev, f"held out of {corpus.source}"
    passages = report.passages_of(vocabulary, written, before.fit.context)
    unknown = passages.unknown
    print(f"{source}: {len(written):,} characters, {100 * unknown:.2g} % of its tokens unknown")
    row = report.row_of(before.model.normalizer, model, passages, before.model.window)
    report.print_rows([row])
    row |= {"text": source, "unknown_tokens": unknown}
    write(output.directory / EVALUATION, to_json({"rows": [row]}))
    for name, figure in figures.of_sentence(model, vocabulary, options.sentence):
        output.write_figure(f"evaluation_{name}", figure)
    output.say_where()
