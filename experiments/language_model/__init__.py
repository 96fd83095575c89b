r"""A language model on any text: bits per character, attention maps, text that it writes.

    python -m experiments language-model                                  Python's own help texts
    python -m experiments language-model --text FILE --tokens bpe --name mine
    python -m experiments language-model generate --prompt "The import statement"
    python -m experiments language-model --compare             masks × positions × normalizers
    python -m experiments language-model speed             beside flax.nnx's modules and PyTorch's

`train` trains a Transformer, reports bits per character on the held-out text, and draws the maps of
every head on a sentence (`--sentence`) and each head's entropy. `evaluate` does so again, on a file
that `--text` names if it does, and writes evaluation.json. `generate` writes on from a prompt,
token by token, from a cache. An interrupted run goes on with `--resume`. `speed` measures models of
its own sizes: training, a long context's memory, decoding, compiling.
"""

import dataclasses
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments.data import long_text as texts
from experiments.data.long_text import TextOptions
from experiments.harness import tables
from experiments.harness.actions import require_heeded
from experiments.harness.errors import UserError, as_user_errors
from experiments.harness.runs import (
    Output,
    Run,
    checked_name,
    compile_quickly,
    read_config,
    require_same,
    start,
    to_json,
    write,
)
from experiments.language_model import report as measures
from experiments.language_model import train as lm
from experiments.language_model.train import FitOptions, TransformerOptions
from experiments.seq2seq import vocabularies

NAME = "language-model"
EVALUATION = "evaluation.json"
SENTENCE = "The for statement is used to iterate over the elements of a sequence."
HEEDED = {
    "compare": ("train",),
    "resume": ("train",),
    "sentence": ("train", "evaluate"),
    **dict.fromkeys(("prompt", "count", "temperature", "top_k", "top_p"), ("generate",)),
}
VARIED = ("normalizer", "positions", "window")
COMPARED = {  # the normalizer, the positions, the window; all else is as the options say
    "softmax, rotary": ("softmax", "rotary", None),
    "softmax, ALiBi": ("softmax", "alibi", None),
    "softmax, no positions": ("softmax", "none", None),
    "softmax, rotary, window 32": ("softmax", "rotary", 32),
    "off-by-one, rotary": ("off-by-one", "rotary", None),
    "entmax 1.5, rotary": ("entmax15", "rotary", None),
    "sparsemax, rotary": ("sparsemax", "rotary", None),
}


@dataclass(frozen=True)
class LanguageModel:
    """Train a Transformer to predict the next token of a text, evaluate it, let it write."""

    action: tyro.conf.Positional[Literal["train", "evaluate", "generate", "speed"]] = "train"
    """What to do."""
    data: TextOptions = field(default_factory=TextOptions)
    model: TransformerOptions = field(default_factory=TransformerOptions)
    fit: FitOptions = field(default_factory=FitOptions)
    output: Output = field(default_factory=Output)
    compare: bool = False
    """train: train masks, positions and normalizers with the same budget, and print a table."""
    sentence: str = SENTENCE
    """train, evaluate: a sentence whose attention is drawn."""
    prompt: str = "The "
    """generate: what the text begins with."""
    count: int = 400
    """generate: the most tokens to write."""
    temperature: float = 0.8
    """generate: 0 takes the most probable token each time."""
    top_k: int | None = None
    """generate: draw from so many of the most probable tokens only."""
    top_p: float | None = 0.95
    """generate: draw from the fewest tokens that hold this probability."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds."""

    def __post_init__(self):
        require_heeded(self, HEEDED)
        if self.compare and [getattr(self.model, name) for name in VARIED] != [
            getattr(TransformerOptions(), name) for name in VARIED
        ]:
            raise UserError("--compare chooses --normalizer, --positions and --window itself.")
        if self.count < 1:
            raise UserError(f"--count must be at least 1. Got {self.count}.")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature must not be negative. Got {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"--top-k must be at least 1. Got {self.top_k}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"--top-p must be above 0 and at most 1. Got {self.top_p}.")
        if not self.sentence:
            raise UserError("--sentence must not be empty.")


def run(options: LanguageModel) -> None:
    """Train, evaluate or generate."""
    if options.smoke:
        compile_quickly()
        options = tiny(options)
    actions = {"train": train, "evaluate": evaluate, "generate": generate, "speed": speed}
    actions[options.action](options)


def tiny(options: LanguageModel) -> LanguageModel:
    """Return the options of a run that takes seconds."""
    fit = dataclasses.replace(
        options.fit, steps=min(options.fit.steps, 6), context=32, batch_size=4, evaluate_every=3
    )
    model = dataclasses.replace(options.model, features=16, heads=2, layers=2)
    count = min(options.count, 20) if options.action == "generate" else options.count
    return dataclasses.replace(options, fit=fit, model=model, count=count)


def train(options: LanguageModel) -> None:
    """Train the model, or each of the comparison, and report."""
    if options.resume:  # what cannot be is refused at once
        require_same(run_directory(options), options)
    corpus = texts.load(options.data)
    if options.smoke:
        corpus = corpus._replace(train=corpus.train[:4000], dev=corpus.dev[:500])
    chosen = models_of(options)
    vocabulary = texts.train_vocabulary(corpus, options.data)
    tokens = texts.encode(vocabulary, corpus.train)
    if len(tokens) <= options.fit.context:
        rule = f"must have more tokens than --context, {options.fit.context}"
        raise UserError(f"what the text leaves to train on {rule}. Got {len(tokens)}.")
    passages = measures.passages_of(vocabulary, corpus.dev, options.fit.context)
    data = {"vocabulary": vocabulary.checksum, "training text": zlib.crc32(tokens.tobytes())}
    data["held-out text"] = zlib.crc32(corpus.dev.encode())
    output = start(NAME, options, options.output, resume=options.resume, checksums=data)
    (output.directory / EVALUATION).unlink(missing_ok=True)  # of an earlier model
    vocabulary.save(output.directory / "vocabulary.json")
    print(
        f"{corpus.source}: {len(corpus.train):,} characters, {len(corpus.dev):,} held out; "
        f"{len(tokens):,} tokens of {len(vocabulary):,} kinds"
    )
    rows, model = [], None
    for name, each in chosen.items():
        if options.compare:
            print(name)
        fit = fitted(each, vocabulary, tokens, passages, options, output, name)
        model = model or fit.model
        rows.append(row_of(name, fit.model, passages, each.window))
        output.write_metrics({"rows": rows})  # what is done stays
    print_rows(rows)
    report(options, model, vocabulary, output)


def models_of(options: LanguageModel) -> dict[str, TransformerOptions]:
    """Return the models to train by their names: the one asked for, or those of the comparison."""
    if not options.compare:
        return {options.model.normalizer: options.model}
    return {
        name: dataclasses.replace(options.model, **dict(zip(VARIED, chosen, strict=True)))
        for name, chosen in COMPARED.items()
    }


def fitted(
    model: TransformerOptions,
    vocabulary: Any,
    tokens: np.ndarray,
    passages: measures.Passages,
    options: LanguageModel,
    output: Run,
    name: str,
) -> Any:
    """Return one trained model; each of a comparison has a directory of its own."""
    directory = output.directory / "training"
    if options.compare:
        directory /= "-".join(name.replace(",", " ").replace(".", " ").split()).lower()
    built = lm.build(model, len(vocabulary), options.fit)
    return lm.train(built, tokens, passages, options.fit, directory)


def row_of(
    name: str, model: Any, passages: measures.Passages, window: int | None
) -> dict[str, Any]:
    """Return the numbers of one model."""
    numbers = passages.evaluate(model) | measures.sparsity(model, passages, window)
    return {"model": name, **numbers}


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows of metrics.json as a table."""
    tables.print_table(
        [
            {
                "model": row["model"],
                "bits per\ncharacter": row["bits_per_character"],
                "perplexity\nper token": row["perplexity"],
                "weights that\nare 0 *": row["zero_weights"],
                "entropy,\nnats *": float(np.mean(row["entropy"])),
            }
            for row in rows
        ]
    )
    print(f"* over {rows[0]['passages_looked_at']} passages, all layers and heads")


def report(
    options: LanguageModel, model: Any, vocabulary: Any, output: Run, *, trained: bool = True
) -> None:
    """Draw, and say where everything is; a later evaluation has pictures of its own."""
    from experiments.language_model import figures

    prefix = "" if trained else "evaluation_"
    for name, figure in figures.of_sentence(model, vocabulary, options.sentence):
        output.write_figure(prefix + name, figure)
    curve = figures.learning(output.directory) if trained else None
    if curve is not None:
        output.write_figure("learning_curve", curve)
    output.say_where()


def restored(options: LanguageModel) -> tuple[Any, Any, dict[str, Any], Run]:
    """Return a trained model, its vocabulary, its options and its directory."""
    from attn_jax.training import load

    directory = run_directory(options)
    config = read_config(directory)
    before = config["options"]
    if before.get("compare"):
        raise UserError(f"{directory} holds a comparison. Train one model under another --name.")
    trained = config["checksums"].get("vocabulary")
    vocabulary = vocabularies.load(directory / "vocabulary.json", trained)
    with as_user_errors(ValueError, TypeError, KeyError):  # another version has other options
        fit = FitOptions(**before["fit"])
        model = lm.build(TransformerOptions(**before["model"]), len(vocabulary), fit)
        model = load(model, directory / "training")
    return model, vocabulary, before, Run(directory)


def run_directory(options: LanguageModel) -> Path:
    """Return the directory of the run that is asked for."""
    return options.output.output_dir / NAME / checked_name(options.output.name)


def evaluate(options: LanguageModel) -> None:
    """Evaluate a trained model on its held-out text, or on another one."""
    from attn_jax import text

    model, vocabulary, before, output = restored(options)
    written, source = evaluated(options.data, before)
    passages = measures.passages_of(vocabulary, written, before["fit"]["context"])
    chosen = before["model"]
    row = row_of(chosen["normalizer"], model, passages, chosen["window"])
    unknown = float((passages.passages == text.UNKNOWN)[:, 1:][passages.real].mean())
    print(f"{source}: {len(written):,} characters, {100 * unknown:.2g} % of its tokens unknown")
    print_rows([row])
    row |= {"text": source, "unknown_tokens": unknown}
    write(output.directory / EVALUATION, to_json({"rows": [row]}))
    report(options, model, vocabulary, output, trained=False)


def evaluated(data: TextOptions, before: dict[str, Any]) -> tuple[str, str]:
    """Return the text to evaluate and what it is: a named file, all of it, or what was held out."""
    named = [each for each in (data.text, data.dev) if each is not None]
    if len(named) > 1:
        raise UserError("evaluate takes one text. Got --text and --dev.")
    if named:
        return texts.read(named[0]), str(named[0])
    kept = {name: before["data"][name] for name in ("text", "dev")}
    corpus = texts.load(TextOptions(**{name: each and Path(each) for name, each in kept.items()}))
    return corpus.dev[:500] if before["smoke"] else corpus.dev, f"held out of {corpus.source}"


def speed(options: LanguageModel) -> None:
    """Measure how fast a Transformer trains, decodes and compiles, and in how much memory."""
    from experiments.benchmark.models import language_model as measured

    sizes = measured.TINY if options.smoke else measured.Sizes()
    output = start(f"{NAME}-speed", options, options.output)
    metrics: dict[str, Any] = {}
    for name, part in measured.PARTS.items():
        metrics[name] = part(sizes)
        tables.print_table(metrics[name])
        output.write_metrics(metrics)  # what is done stays


def generate(options: LanguageModel) -> None:
    """Write on from a prompt."""
    from experiments.language_model import generate as writing

    model, vocabulary, *_ = restored(options)
    writing.generate(model, vocabulary, options)


COMMANDS = {"run": run}
