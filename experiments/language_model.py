r"""A language model on any text: bits per character, attention maps, text that it writes.

    python -m experiments language-model                                  Python's own help texts
    python -m experiments language-model --text FILE --tokens bpe --name mine
    python -m experiments language-model generate --prompt "The import statement"
    python -m experiments language-model --compare             masks × positions × normalizers

`train` trains a Transformer, reports bits per character on the held-out text, and draws the maps of
every head on a sentence (`--sentence`) and each head's entropy. `generate` writes on from a prompt,
token by token, from a cache. An interrupted run goes on with `--resume`.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments import language_model_training as lm
from experiments import tables
from experiments.errors import UserError
from experiments.language_model_training import FitOptions, TextOptions, TransformerOptions
from experiments.runs import Output, Run, checked_name, start

NAME = "language-model"
SENTENCE = "The for statement is used to iterate over the elements of a sequence."
COMPARED = {
    "softmax, rotary": {},
    "softmax, ALiBi": {"positions": "alibi"},
    "softmax, no positions": {"positions": "none"},
    "softmax, rotary, window 32": {"window": 32},
    "off-by-one, rotary": {"normalizer": "off-by-one"},
    "entmax 1.5, rotary": {"normalizer": "entmax15"},
    "sparsemax, rotary": {"normalizer": "sparsemax"},
}


@dataclass(frozen=True)
class LanguageModel:
    """Train a Transformer to predict the next token of a text, evaluate it, let it write."""

    action: tyro.conf.Positional[Literal["train", "evaluate", "generate"]] = "train"
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
        if self.count < 1:
            raise UserError(f"--count must be at least 1. Got {self.count}.")
        if self.temperature < 0:
            raise UserError(f"--temperature must not be negative. Got {self.temperature}.")
        if not self.sentence:
            raise UserError("--sentence must not be empty.")


def run(options: LanguageModel) -> None:
    """Train, evaluate or generate."""
    if options.smoke:  # nearly all of its time is compiling
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        options = tiny(options)
    {"train": train, "evaluate": evaluate, "generate": generate}[options.action](options)


def tiny(options: LanguageModel) -> LanguageModel:
    """Return the options of a run that takes seconds."""
    fit = dataclasses.replace(
        options.fit, steps=min(options.fit.steps, 6), context=32, batch_size=4, evaluate_every=3
    )
    model = dataclasses.replace(options.model, features=16, heads=2, layers=2)
    return dataclasses.replace(options, fit=fit, model=model, count=min(options.count, 20))


def train(options: LanguageModel) -> None:
    """Train the model, or each of the comparison, and report."""
    corpus = lm.load(options.data)
    if options.smoke:
        corpus = corpus._replace(train=corpus.train[:4000], dev=corpus.dev[:500])
    output = start(NAME, options, options.output, resume=options.resume)
    vocabulary = lm.train_vocabulary(corpus, options.data)
    vocabulary.save(output.directory / "vocabulary.json")
    tokens, dev = (lm.encode(vocabulary, each) for each in (corpus.train, corpus.dev))
    if len(tokens) <= options.fit.context or len(dev) < 2:
        sizes = f"{len(tokens)} and {len(dev)}"
        raise UserError(
            f"the text needs more tokens than --context, and two held out. Got {sizes}."
        )
    passages = lm.Passages(dev, len(corpus.dev), options.fit.context)
    print(
        f"{corpus.source}: {len(corpus.train):,} characters, {len(corpus.dev):,} held out; "
        f"{len(tokens):,} tokens of {len(vocabulary):,} kinds"
    )
    chosen = {"": options.model}
    if options.compare:
        chosen = {
            name: dataclasses.replace(options.model, **changes)
            for name, changes in COMPARED.items()
        }
    rows, model = [], None
    for name, each in chosen.items():
        if name:
            print(name)
        fit = fitted(each, vocabulary, tokens, passages, options, output, name)
        model = model or fit.model
        rows.append(row_of(name or each.normalizer, fit.model, passages))
        output.write_metrics({"rows": rows})  # what is done stays
    tables.print_table([readable(row) for row in rows])
    report(options, model, vocabulary, output)


def fitted(
    model: TransformerOptions,
    vocabulary: Any,
    tokens: np.ndarray,
    passages: lm.Passages,
    options: LanguageModel,
    output: Run,
    name: str,
) -> Any:
    """Return one trained model; each of a comparison has a directory of its own."""
    folder = "-".join(name.replace(",", " ").replace(".", " ").split()).lower()
    directory = output.directory / "training" / folder if folder else output.directory / "training"
    built = lm.build(model, len(vocabulary), options.fit)
    fit = lm.train(built, tokens, passages, options.fit, directory)
    if fit.stopped == "interrupted":
        raise KeyboardInterrupt
    return fit


def row_of(name: str, model: Any, passages: lm.Passages) -> dict[str, Any]:
    """Return the numbers of one model."""
    numbers = passages.evaluate(model)
    sparse = lm.sparsity(model, passages.passages[:4, :-1])
    return {"model": name, **numbers, **sparse}


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    return {
        "model": row["model"],
        "bits per\ncharacter": row["bits_per_character"],
        "perplexity\nper token": row["perplexity"],
        "weights\nthat are 0": row["zero_weights"],
        "entropy,\nnats": float(np.mean(row["entropy"])),
    }


def report(options: LanguageModel, model: Any, vocabulary: Any, output: Run) -> None:
    """Draw, and say where everything is."""
    from experiments import language_model_figures as figures

    for name, figure in figures.draw(model, vocabulary, options.sentence, output.directory):
        output.write_figure(name, figure)
    print(f"results in  {output.directory}/")
    print(f"pictures in {output.directory / 'figures'}/")


def restored(options: LanguageModel) -> tuple[Any, Any, dict[str, Any], Run]:
    """Return a trained model, its vocabulary, its options and its directory."""
    from attn_jax import text
    from attn_jax.training import load

    directory = options.output.output_dir / NAME / checked_name(options.output.name)
    if not (directory / "config.json").exists():
        raise UserError(f"{directory} holds no run. Train a model of this --name first.")
    before = json.loads((directory / "config.json").read_text("utf-8"))["options"]
    if before["compare"]:
        raise UserError(f"{directory} holds a comparison. Train one model under another --name.")
    try:
        vocabulary = text.Vocabulary.load(directory / "vocabulary.json")
        fit = FitOptions(**before["fit"])
        model = lm.build(TransformerOptions(**before["model"]), len(vocabulary), fit)
        model = load(model, directory / "training")
    except ValueError as error:
        raise UserError(str(error)) from error
    return model, vocabulary, before, Run(directory)


def evaluate(options: LanguageModel) -> None:
    """Evaluate a trained model on its held-out text, or on another one."""
    model, vocabulary, before, output = restored(options)
    kept = {
        name: each and Path(each)
        for name, each in before["data"].items()
        if name in ("text", "dev")
    }
    named = {name: getattr(options.data, name) for name in kept if getattr(options.data, name)}
    corpus = lm.load(dataclasses.replace(options.data, **kept | named))
    if before["smoke"]:
        corpus = corpus._replace(dev=corpus.dev[:500])
    tokens = lm.encode(vocabulary, corpus.dev)
    passages = lm.Passages(tokens, len(corpus.dev), before["fit"]["context"])
    row = row_of(before["model"]["normalizer"], model, passages)
    tables.print_table([readable(row)])
    output.write_metrics({"rows": [row]})
    report(options, model, vocabulary, output)


# Writing


def generate(options: LanguageModel) -> None:
    """Write on from a prompt, each token as soon as it is there."""
    model, vocabulary, *_ = restored(options)
    ids = vocabulary.encode(options.prompt)
    if not ids:
        raise UserError(f"--prompt must hold a token at least. Got {options.prompt!r}.")
    sys.stdout.write(options.prompt)
    shown = vocabulary.decode(ids)
    written = list(ids)
    for token in drawn(model, np.asarray(ids)[None], options):
        written.append(token)
        text = vocabulary.decode(written)
        if text.startswith(shown):  # a piece of a character waits for the rest
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
    sys.stdout.write("\n")


def drawn(model: Any, prompt: np.ndarray, options: LanguageModel) -> Iterator[int]:
    """Yield tokens one by one: the prompt fills the cache at once, then each token asks it."""
    import jax

    from attn_jax import decoding, text

    forbidden = (text.PAD, text.UNKNOWN, text.START, text.END)
    step, state = model.begin(prompt, longest=options.count)
    filters = {"top_k": options.top_k, "top_p": options.top_p}

    @jax.jit
    def following(token, state, rng):
        logits, state, _ = step(token, state)
        how = {"start": token, "end": text.END, "max_length": 1, "forbidden": forbidden}
        one = (lambda token, kept: (logits, kept, None), token)
        if options.temperature == 0:
            found = decoding.greedy(*one, **how)
        else:
            how |= {"rng": rng, "temperature": options.temperature}
            found = decoding.sample(*one, **how, **filters)
        return found.tokens[:, 0], state

    token, rng = jax.numpy.asarray(prompt[:, -1]), jax.random.key(options.fit.seed)
    for number in range(options.count):
        token, state = following(token, state, jax.random.fold_in(rng, number))
        yield int(token[0])
