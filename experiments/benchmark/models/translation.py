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
import optax

from attn_jax import text
from experiments.benchmark.models import training_step
from experiments.benchmark.timing import interleaved
from experiments.data.parallel_text import Corpus
from experiments.seq2seq import models
from experiments.seq2seq.options import ModelOptions, SearchOptions, UpdateOptions
from experiments.seq2seq.train import Task
from experiments.seq2seq.translator import Translator

BATCHES, LINES = 12, 1000
SECONDS = 30  # of each in interleaved rounds
BAHDANAU = {  # what PyTorch's model is
    "model": "recurrent",
    "score": "additive",
    "normalizer": "softmax",
    "cell": "gru",
    "order": "attend_then_step",
    "encoder": "recurrent",
    "layers": 1,
}


def compare(
    options: ModelOptions, fit: UpdateOptions, task: Task, corpus: Corpus
) -> list[dict[str, Any]]:
    """Return target tokens a second in training, and lines a second in greedy translation."""
    batches = list(itertools.islice(task.batches, BATCHES))
    tokens = sum(int(each["target_length"].sum()) for each in batches)
    model = models.build(options, *task.sizes, seed=fit.seed)
    lines = task.source.encode_batch((corpus.test.source or corpus.train.source)[:LINES])
    train, compiled = training(model, batches, fit)
    translator = Translator([model], task.target, SearchOptions(), align_up_to=0)
    calls = {"attn_jax": (train, lambda: translator(lines))}
    same = all(getattr(options, name) == value for name, value in BAHDANAU.items())
    if same and importlib.util.find_spec("torch"):
        calls["PyTorch"] = in_torch(options, task.sizes, batches, lines, fit)
    for call in itertools.chain(*calls.values()):
        call()  # compiles
    trained, translated = (
        np.median(interleaved(each, SECONDS), axis=1) for each in zip(*calls.values(), strict=True)
    )
    return [
        {
            "": name,
            "target tokens/s": tokens / trained[i],
            "greedy lines/s": len(lines) / translated[i],
            "compile, s": compiled if name == "attn_jax" else None,
        }
        for i, name in enumerate(calls)
    ]


def training(model: Any, batches: Sequence[Any], fit: UpdateOptions) -> tuple[Callable, float]:
    """Return what trains on all batches, and the seconds that its largest shape compiles."""
    optimizer = optax.chain(
        optax.clip_by_global_norm(fit.clip_norm), optax.adam(fit.learning_rate, b2=0.98)
    )

    def loss(model, batch, rng):
        return model.loss(batch, start=text.START, label_smoothing=fit.label_smoothing, rng=rng)

    one, state = training_step.compiled(model, loss, optimizer, fit.seed)
    largest = max(batches, key=lambda batch: batch["target"].size)
    start = time.perf_counter()
    one.lower(state, largest).compile()
    compiled = time.perf_counter() - start

    def run():
        nonlocal state
        for batch in batches:
            state, numbers = one(state, batch)
        return float(numbers["loss"])

    return run, compiled


def in_torch(
    options: ModelOptions,
    sizes: tuple[int, int],
    batches: Sequence[Any],
    lines: Sequence[Sequence[int]],
    fit: UpdateOptions,
) -> tuple[Callable, Callable]:
    """Return PyTorch's training on all batches, and its greedy translation of all lines."""
    import torch

    from experiments.benchmark.models.torch_translation import Twin

    twin = Twin(options, *sizes)
    optimizer = torch.optim.Adam(twin.parameters(), fit.learning_rate, (0.9, 0.98), fused=True)

    def tensors(batch):
        trimmed = {
            name: each[:, : batch[f"{name}_length"].max()] if each.ndim == 2 else each
            for name, each in batch.items()
        }
        return {name: torch.as_tensor(each).long() for name, each in trimmed.items()}

    given = list(map(tensors, batches))
    ordered = sorted(lines, key=len)
    rows = [ordered[at : at + 128] for at in range(0, len(ordered), 128)]
    padded = [text.padded_batches(each, batch_size=len(each), buckets=1)[0].batch for each in rows]
    sources = list(map(tensors, padded))

    def train():
        twin.train()
        for batch in given:
            loss = twin.loss(batch, fit.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), fit.clip_norm)
            optimizer.step()
        return loss.item()

    def translate():
        twin.eval()
        for batch in sources:
            twin.greedy(batch, 2 * batch["source"].shape[1] + 10)

    return train, translate
