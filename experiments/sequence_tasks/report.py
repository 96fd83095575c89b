"""What sequence tasks are judged by: BLEU, exact match, perplexity, sentences a second."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.data.integers import Lines, Sequences
from experiments.seq2seq import train as fits
from experiments.seq2seq.train import Pairs
from experiments.seq2seq.translator import SearchOptions, Translation, Translator

PARTS, GREEDY = ("dev", "test"), "greedy"
TIMINGS = 5  # the fastest of so many counts

Found = Mapping[tuple[str, str], Sequence[Translation]]  # of (system, part), greedily


def encoded(lines: Lines, vocabulary: Any) -> Pairs:
    """Return both sides as ids."""
    return Pairs(*map(vocabulary.encode_batch, lines))


def judged(
    model: Any, data: Sequences, vocabulary: Any, beam: int
) -> Iterator[tuple[dict[str, Any], list[Translation]]]:
    """Yield a row of metrics.json and what was decoded: each part, greedily and by beam search."""
    parts = {part: getattr(data, part) for part in PARTS}
    perplexity = {part: perplexity_of(model, each, vocabulary) for part, each in parts.items()}
    for width in sorted({1, beam}):
        search = SearchOptions(beam=width, longest=1.0, length_penalty=1.0)
        translator = Translator([model], vocabulary, search)
        for part, lines in parts.items():
            decoded, speed = timed(translator, vocabulary.encode_batch(lines.source))
            row = {"part": part, "search": GREEDY if width == 1 else f"beam {width}"}
            row |= scores(lines, decoded)
            row |= {"perplexity": perplexity[part], "sentences_per_second": speed}
            yield row, decoded


def timed(
    translator: Translator, sources: Sequence[Sequence[int]]
) -> tuple[list[Translation], float]:
    """Return the best target of each source, and how many a second are found once compiled."""
    best = [first for first, *_ in translator(sources)]
    seconds = []
    for _ in range(TIMINGS):
        started = time.perf_counter()
        translator(sources)
        seconds.append(time.perf_counter() - started)
    return best, len(sources) / min(seconds)


def perplexity_of(model: Any, lines: Lines, vocabulary: Any) -> float:
    """Return exp of the mean loss of a target's token, given those before it."""
    losses = fits.dev_losses(encoded(lines, vocabulary), fits.FitOptions(buckets=1))
    return losses(model)["dev_perplexity"]


def scores(lines: Lines, found: Sequence[Translation]) -> dict[str, Any]:
    """Return BLEU over the integers as they are, and exact match."""
    from attn_jax import metrics

    texts = [each.text for each in found]
    bleu = metrics.bleu(texts, lines.target, tokenize="none")
    exact = metrics.exact_match(texts, lines.target)
    return {"bleu": bleu.score, "exact_match": exact, "bleu_signature": bleu.signature}


HEADINGS = {
    "bleu": "BLEU",
    "exact_match": "exact match",
    "sentences_per_second": "sentences/s",
}


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    return {HEADINGS.get(name, name): row[name] for name in row if name != "bleu_signature"}


def by_length(data: Sequences, found: Found) -> list[dict[str, Any]]:
    """Return the exact match of each system at each length, over dev and test."""
    length = np.array([len(line.split()) for line in (*data.dev.source, *data.test.source)])
    right = {
        system: np.concatenate(
            [right_of(getattr(data, part), found[system, part]) for part in PARTS]
        )
        for system in dict.fromkeys(system for system, _ in found)
    }
    return [
        {"length": int(each), "sequences": int(np.sum(length == each))}
        | {system: float(np.mean(values[length == each])) for system, values in right.items()}
        for each in np.unique(length)
    ]


def in_fives(lengths: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of five lengths as one, to be printed.

    >>> in_fives([{"length": 3, "sequences": 3, "a": 1.0}, {"length": 5, "sequences": 1, "a": 0.0}])
    [{'lengths': '3-5', 'sequences': 4, 'a': 0.75}]
    """
    rows = []
    for _, group in itertools.groupby(lengths, lambda row: max(row["length"] - 1, 0) // 5):
        group = list(group)
        ends = dict.fromkeys((group[0]["length"], group[-1]["length"]))
        counts = [row["sequences"] for row in group]
        merged = {"lengths": "-".join(map(str, ends)), "sequences": sum(counts)}
        for system in [name for name in group[0] if name not in ("length", "sequences")]:
            shares = [row[system] for row in group]
            merged[system] = float(np.average(shares, weights=counts))
        rows.append(merged)
    return rows


def right_of(lines: Lines, found: Sequence[Translation]) -> np.ndarray:
    """Return which targets were found exactly."""
    return np.array([a.text == b for a, b in zip(found, lines.target, strict=True)])


def predictions(data: Sequences, found: Found) -> dict[str, list[str]]:
    """Return the columns of predictions.csv: the test part, greedily decoded."""
    columns = {"source": data.test.source, "target": data.test.target}
    decoded = {system: each for (system, part), each in found.items() if part == "test"}
    return columns | {name: [each.text for each in texts] for name, texts in decoded.items()}
