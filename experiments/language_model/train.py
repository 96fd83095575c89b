"""From options and a text to trained models, their numbers and their pictures."""

import zlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attn_jax import Window, normalizers
from attn_jax.nn import LanguageModel
from attn_jax.training import Batches
from experiments.harness.errors import UserError
from experiments.harness.runs import start
from experiments.harness.training import fit, warmup_cosine
from experiments.language_model import (
    Compare,
    FitOptions,
    Train,
    Transformer,
    data,
    figures,
    report,
)

NAME = "language-model"
TRAINING, VOCABULARY, EVALUATION = "training", "vocabulary.json", "evaluation.json"
COMPARED: dict[str, dict[str, Any]] = {  # what differs from the defaults of `Transformer`
    "softmax, rotary": {},
    "softmax, ALiBi": {"positions": "alibi"},
    "softmax, no positions": {"positions": "none"},
    "softmax, rotary, window 32": {"window": 32},
    "off-by-one, rotary": {"normalizer": "off-by-one"},
    "entmax 1.5, rotary": {"normalizer": "entmax15"},
    "sparsemax, rotary": {"normalizer": "sparsemax"},
}


def run(options: Compare) -> None:
    """Train the model, or those of the comparison; print their numbers, draw the first one."""
    models = models_of(options)
    corpus = data.load(options.data, smoke=options.smoke)
    vocabulary = data.train_vocabulary(corpus, options.data)
    tokens = data.encode(vocabulary, corpus.train)
    if len(tokens) <= options.fit.context:
        rule = f"must have more tokens than --context, {options.fit.context}"
        raise UserError(f"what the text leaves to train on {rule}. Got {len(tokens)}.")
    passages = report.passages_of(vocabulary, corpus.dev, options.fit.context)
    checksums = {
        "vocabulary": vocabulary.checksum,
        "training text": zlib.crc32(tokens.tobytes()),
        "held-out text": zlib.crc32(corpus.dev.encode()),
    }
    output = start(NAME, options, options.output, resume=options.resume, checksums=checksums)
    if output.writes:
        (output.directory / EVALUATION).unlink(missing_ok=True)  # of an earlier model
        vocabulary.save(output.directory / VOCABULARY)
    print(
        f"{corpus.source}: {len(corpus.train):,} characters, {len(corpus.dev):,} held out; "
        f"{len(tokens):,} tokens of {len(vocabulary):,} kinds"
    )
    rows, first = [], None
    for name, each in models.items():
        directory = output.directory / TRAINING
        if len(models) > 1:
            print(name)
            directory /= "-".join(name.replace(",", " ").replace(".", " ").split()).lower()
        model = build(each, len(vocabulary), options.fit)
        model = train(model, tokens, passages, options.fit, directory)
        first = first or model
        rows.append(report.row_of(name, model, passages, each.window))
        output.write_metrics({"rows": rows})  # what is done stays
    report.print_rows(rows)
    for name, figure in figures.of_sentence(first, vocabulary, options.sentence):
        output.write_figure(name, figure)
    if curve := figures.learning(output.directory / TRAINING):
        output.write_figure("learning_curve", curve)
    output.say_where()


def models_of(options: Compare) -> dict[str, Transformer]:
    """Return the models to train by their names."""
    if isinstance(options, Train):
        return {options.model.normalizer: options.model}
    return {name: Transformer(**vars(options.model), **own) for name, own in COMPARED.items()}


def build(options: Transformer, vocabulary: int, fit: FitOptions) -> LanguageModel:
    """Return a model with new parameters.

    Its linear maps have a bias beside layer norm, as in GPT-2, and none beside RMS norm, as in
    Llama.
    """
    return LanguageModel(
        vocabulary,
        options.features,
        options.heads,
        options.layers,
        positions=options.positions,
        longest=fit.context,
        mask=None if options.window is None else Window(options.window, 0),
        normalizer=normalizers.BY_NAME[options.normalizer](),
        norm=options.norm,
        activation=options.activation,
        dropout=options.dropout,
        remat=options.remat,
        bias=options.norm == "layer",
        rngs=nnx.Rngs(fit.seed),
    )


def train(
    model: LanguageModel,
    tokens: np.ndarray,
    dev: report.Passages,
    options: FitOptions,
    directory: Path,
) -> LanguageModel:
    """Return the model of the fewest bits per character."""
    starts = np.arange(0, len(tokens) - options.context, max(options.context // 8, 1))
    starts = np.resize(starts, max(len(starts), options.batch_size))  # a short text repeats itself
    text, within = jnp.asarray(tokens), jnp.arange(options.context + 1)

    def loss(model, batch, rng):
        return model.loss(text[batch["start"][:, None] + within[None, :]], rng=rng)

    warmup = min(100, max(options.steps // 10, 1))
    rate = warmup_cosine(options.learning_rate, options.steps, warmup=warmup, end=0.05)
    every = min(options.evaluate_every, options.steps)
    return fit(
        model,
        loss,
        Batches({"start": starts}, batch_size=options.batch_size, seed=options.seed),
        options,
        optimizer=optax.adamw(rate, b2=0.99, weight_decay=0.05),
        clip_norm=1.0,
        evaluate=dev.evaluate,
        evaluate_every=every,
        metric="bits_per_character",
        restore_best=True,
        directory=directory,
        log_every=min(50, every),
    ).model
