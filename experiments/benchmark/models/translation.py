"""How fast a translator trains and translates, beside PyTorch where it is installed.

Both get the same batches, in the same minutes: a round of one, a round of the other. PyTorch, which
compiles nothing, gets each batch without the padding that all its rows share.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.data.parallel_text import Corpus
from experiments.seq2seq import models
from experiments.seq2seq.models import ModelOptions
from experiments.seq2seq.train import FitOptions
from experiments.seq2seq.translator import SearchOptions, Translator

BATCHES, ROUNDS, LINES = 12, 5, 1000


def compare(
    options: ModelOptions,
    fit: FitOptions,
    corpus: Corpus,
    vocabularies: tuple[Any, Any],
    batches: Any,
) -> list[dict[str, Any]]:
    """Return target tokens a second in training, and lines a second in greedy translation."""
    some = list(itertools.islice(batches, BATCHES))
    tokens = sum(int(each["target_length"].sum()) for each in some)
    sizes = tuple(map(len, vocabularies))
    model = models.build(options, *sizes, seed=fit.seed)
    lines = vocabularies[0].encode_batch(corpus.test.source or corpus.train.source[:LINES])[:LINES]
    training, translating = {}, {}
    training["attn_jax"], compiled = ours(model, some, fit)
    translator = Translator([model], vocabularies[1], SearchOptions(), align_up_to=0)
    translating["attn_jax"] = lambda: translator(lines)
    plain = (options.model, options.score, options.normalizer, options.cell)
    plain += (options.order, options.encoder)
    bahdanau = ("recurrent", "additive", "softmax", "gru", "attend_then_step", "recurrent")
    if importlib.util.find_spec("torch") and plain == bahdanau and options.layers == 1:
        training["PyTorch"], translating["PyTorch"] = torchs(options, sizes, some, lines, fit)
    seconds = {**timed(training), **{f"{n} ": s for n, s in timed(translating).items()}}
    rows = []
    for name in training:
        row = {"": name, "target tokens/s": tokens / seconds[name]}
        row["greedy lines/s"] = len(lines) / seconds[f"{name} "]
        row["compile, s"] = compiled if name == "attn_jax" else None
        rows.append(row)
    return rows


def timed(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median seconds of each function in interleaved rounds, the first one left out."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(each[1:])) for name, each in seconds.items()}


def ours(model: Any, batches: Sequence[Any], fit: FitOptions) -> tuple[Callable, float]:
    """Return what trains on all batches, and the seconds that its largest shape compiles."""
    import optax

    from attn_jax import text
    from attn_jax.training import step

    optimizer = optax.chain(
        optax.clip_by_global_norm(fit.clip_norm), optax.adam(fit.learning_rate, b2=0.98)
    )
    state = step.initial_state(model, optimizer, fit.seed)

    def loss(model, batch, rng):
        return model.loss(batch, start=text.START, label_smoothing=fit.label_smoothing, rng=rng)

    one = step.make_step(step.split(model)[0], loss, optimizer, None)
    largest = max(batches, key=lambda batch: batch["target"].size)
    start = time.perf_counter()
    one.lower(state, largest).compile()
    compiled = time.perf_counter() - start
    kept = [state]

    def run():
        for batch in batches:
            kept[0], numbers = one(kept[0], batch)
        return float(numbers["loss"])

    return run, compiled


def torchs(
    options: ModelOptions,
    sizes: tuple[int, int],
    batches: Sequence[Any],
    lines: Sequence[Sequence[int]],
    fit: FitOptions,
) -> tuple[Callable, Callable]:
    """Return PyTorch's training on all batches, and its greedy translation of all lines."""
    import torch

    from attn_jax import text
    from experiments.benchmark.models.torch_translation import Twin

    twin = Twin(options, *sizes)
    optimizer = torch.optim.Adam(twin.parameters(), fit.learning_rate, (0.9, 0.98), fused=True)
    given = [{name: torch.as_tensor(each) for name, each in _cut(b).items()} for b in batches]
    for batch in given:
        for name in ("source", "target"):
            batch[name] = batch[name].long()

    def train():
        twin.train()
        for batch in given:
            loss = twin.loss(batch, fit.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), fit.clip_norm)
            optimizer.step()
        return loss.item()

    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    rows = [[lines[i] for i in order[at : at + 128]] for at in range(0, len(order), 128)]
    padded = [text.padded_batches(each, batch_size=len(each), buckets=1)[0].batch for each in rows]
    asked = [{name: torch.as_tensor(each).long() for name, each in b.items()} for b in padded]

    def translate():
        twin.eval()
        for batch in asked:
            twin.greedy(batch, 2 * batch["source"].shape[1] + 10)

    return train, translate


def _cut(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch without the padding that all its rows share."""
    return {
        name: each[:, : batch[f"{name}_length"].max()] if each.ndim == 2 else each
        for name, each in batch.items()
    }
