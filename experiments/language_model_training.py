"""The language model of the experiment: options, text, training, bits per character."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.errors import UserError

HELD_OUT = 0.1  # the last part of a text, where no other is named
PART = 64 * 1024  # characters that are encoded at a time


@dataclass(frozen=True)
class TextOptions:
    """The text."""

    text: Path | None = None
    """A plain text file, UTF-8. Default: the topics of Python's own help, 465 KB."""
    dev: Path | None = None
    """Held-out text. Default: the last tenth of the text."""
    tokens: Literal["character", "bpe"] = "character"
    """What is predicted."""
    vocabulary: int | None = None
    """The most tokens. Default: all characters, or 2,000 pieces."""


@dataclass(frozen=True)
class TransformerOptions:
    """The Transformer."""

    features: int = 128
    """Features of a position."""
    heads: int = 4
    """Heads of each attention."""
    layers: int = 4
    """Blocks."""
    positions: Literal["rotary", "alibi", "sinusoidal", "learned", "none"] = "rotary"
    """How it knows where a token stands."""
    window: int | None = None
    """The most tokens back that a position sees. Default: all."""
    normalizer: Literal["softmax", "off-by-one", "sparsemax", "entmax15"] = "softmax"
    """What turns scores into weights; off-by-one is softmax with a sink of 0."""
    norm: Literal["rms", "layer"] = "rms"
    """How it normalizes the inputs of its layers."""
    activation: Literal["swiglu", "gelu", "relu"] = "swiglu"
    """The non-linearity of the feed-forward layers."""
    dropout: float = 0.1
    """Rate, in training."""
    remat: bool = False
    """Recompute each block in the backward pass: less memory, a third more time."""

    def __post_init__(self):
        for name in ("features", "heads", "layers"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1. Got {getattr(self, name)}.")
        if self.features % self.heads:
            raise UserError(f"--heads must divide --features, {self.features}. Got {self.heads}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout must be at least 0 and below 1. Got {self.dropout}.")
        if self.window is not None and self.window < 0:
            raise UserError(f"--window must not be negative. Got {self.window}.")


@dataclass(frozen=True)
class FitOptions:
    """How to train."""

    steps: int = 1500
    """Training steps."""
    context: int = 256
    """Tokens that are predicted together."""
    batch_size: int = 16
    """Passages in a batch."""
    learning_rate: float = 3e-3
    """AdamW's, after a warm-up, falling along a cosine."""
    evaluate_every: int = 250
    """Steps between evaluations."""
    seed: int = 0
    """Seed of parameters, order and dropout."""

    def __post_init__(self):
        for name in ("steps", "context", "batch_size", "evaluate_every"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} must be at least 1. Got {getattr(self, name)}.")
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"--learning-rate must be positive. Got {self.learning_rate}.")


class Corpus(NamedTuple):
    """A text, and one that is held out."""

    train: str
    dev: str
    source: str


def load(options: TextOptions) -> Corpus:
    """Read the text."""
    if options.text is None:
        if options.dev is not None:
            raise UserError("--dev needs --text.")
        whole, source = python_topics(), "the topics of Python's help"
    else:
        whole, source = read(options.text), str(options.text)
    if options.dev is not None:
        return Corpus(whole, read(options.dev), source)
    cut = int(len(whole) * (1 - HELD_OUT))
    return Corpus(whole[:cut], whole[cut:], source)


def read(path: Path) -> str:
    """Read a text file."""
    from attn_jax import text

    try:
        return "\n".join(text.read_lines(path)) + "\n"
    except ValueError as error:
        raise UserError(str(error)) from error


def python_topics() -> str:
    """Return a text that every Python brings: what `help` says about the language."""
    from pydoc_data import topics

    return "\n".join(f"{name}\n\n{written}" for name, written in sorted(topics.topics.items()))


def train_vocabulary(corpus: Corpus, options: TextOptions) -> Any:
    """Return the vocabulary of the training text."""
    from attn_jax import text

    size = options.vocabulary or (2000 if options.tokens == "bpe" else None)
    return text.Vocabulary.train(parts(corpus.train), kind=options.tokens, size=size)


def parts(written: str) -> list[str]:
    """Cut a text into lines, each with its end, so that tokens do not cross them."""
    return written.splitlines(keepends=True)


def encode(vocabulary: Any, written: str) -> np.ndarray:
    """Return a text's ids."""
    ids = [i for line in vocabulary.encode_batch(parts(written)) for i in line]
    return np.asarray(ids, np.int32)


def build(options: TransformerOptions, vocabulary: int, fit: FitOptions) -> Any:
    """Return the `LanguageModel`."""
    from flax import nnx

    from attn_jax import Entmax, Softmax, Sparsemax, Window
    from attn_jax.nn import LanguageModel

    normalizer = {
        "softmax": Softmax(),
        "off-by-one": Softmax(0.0),
        "sparsemax": Sparsemax(),
        "entmax15": Entmax(1.5),
    }[options.normalizer]
    return LanguageModel(
        vocabulary,
        options.features,
        options.heads,
        options.layers,
        positions=options.positions,
        longest=fit.context,
        mask=None if options.window is None else Window(options.window, 0),
        normalizer=normalizer,
        norm=options.norm,
        activation=options.activation,
        dropout=options.dropout,
        remat=options.remat,
        bias=options.norm == "layer",
        rngs=nnx.Rngs(fit.seed),
    )


def train(
    model: Any, tokens: np.ndarray, dev: "Passages", options: FitOptions, directory: Path
) -> Any:
    """Train; return the `training.Fit` whose model has the fewest bits per character."""
    import jax.numpy as jnp
    import optax

    from attn_jax.training import Batches, fit

    starts = np.arange(0, len(tokens) - options.context, max(options.context // 8, 1))
    batches = Batches({"start": starts}, batch_size=options.batch_size, seed=options.seed)
    text = jnp.asarray(tokens)
    within = jnp.arange(options.context + 1)

    def loss(model, batch, rng):
        passages = text[batch["start"][:, None] + within[None, :]]
        return model.loss(passages, rng=rng)

    warmup = min(100, max(options.steps // 10, 1))
    peak = options.learning_rate
    rate = optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup, max(options.steps, warmup + 1), peak / 20
    )
    return fit(
        model,
        loss,
        batches,
        steps=options.steps,
        optimizer=optax.adamw(rate, b2=0.99, weight_decay=0.05),
        clip_norm=1.0,
        seed=options.seed,
        evaluate=dev.evaluate,
        evaluate_every=min(options.evaluate_every, options.steps),
        metric="bits_per_character",
        restore_best=True,
        directory=directory,
        log_every=min(50, options.evaluate_every, options.steps),
    )


class Passages:
    """A text in passages of one length, each token of which but the first is predicted once."""

    def __init__(self, tokens: np.ndarray, characters: int, context: int, *, batch_size: int = 16):
        stride = context
        starts = np.arange(0, max(len(tokens) - 1, 1), stride)
        padded = np.concatenate([tokens, np.zeros(context + 1, np.int32)])
        self.passages = np.stack([padded[s : s + context + 1] for s in starts])
        targets = starts[:, None] + 1 + np.arange(context)[None, :]
        self.real = targets < len(tokens)
        self.characters, self.batch_size = characters, batch_size
        self._compiled: dict[Any, Callable] = {}

    def evaluate(self, model: Any) -> dict[str, float]:
        """Return bits per character, and nats and perplexity per token."""
        import jax
        from flax import nnx

        from attn_jax import metrics

        graphdef, state = nnx.split(model)
        if graphdef not in self._compiled:

            def total(state, passages, real):
                logits = nnx.merge(graphdef, state)(passages[:, :-1])
                return metrics.cross_entropy(logits, passages[:, 1:], where=real).sum()

            self._compiled[graphdef] = jax.jit(total)
        nats, size = 0.0, self.batch_size
        for first in range(0, len(self.passages), size):
            some, real = self.passages[first : first + size], self.real[first : first + size]
            fill = [(0, size - len(some)), (0, 0)]
            nats += float(self._compiled[graphdef](state, np.pad(some, fill), np.pad(real, fill)))
        count = int(self.real.sum())
        return {
            "bits_per_character": nats / math.log(2) / max(self.characters - 1, 1),
            "loss": nats / max(count, 1),
            "perplexity": math.exp(min(nats / max(count, 1), 700)),
        }


def sparsity(model: Any, passages: np.ndarray) -> dict[str, Any]:
    """Return the share of visible weights that are 0, and each head's entropy [layers, heads]."""
    weights = np.asarray(attention_maps(model, passages))
    rows = weights.shape[-1]
    visible = np.tril(np.ones((rows, rows), bool))
    inside = weights[..., visible]
    safe = np.where(weights > 0, weights, 1.0)
    entropy = -(weights * np.log(safe)).sum(-1).mean(axis=(1, 3))
    return {"zero_weights": float((inside == 0).mean()), "entropy": entropy}


def attention_maps(model: Any, passages: np.ndarray) -> Any:
    """Return each layer's and head's weights [layers, b, heads, t, t] on some passages."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    graphdef, state = nnx.split(model.stack.blocks)

    def layer(outputs, state):
        block = nnx.merge(graphdef, state)
        weights = block.attention.weights(block.attention_norm(outputs))
        return block(outputs, None, None, None), weights

    return jax.lax.scan(layer, model.embedding(jnp.asarray(passages)), state)[1]
