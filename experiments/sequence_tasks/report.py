"""What sequence tasks are evaluated by: BLEU, exact match, perplexity, sentences a second."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.data import integers
from experiments.data.integers import TaskName
from experiments.data.pairs import Pairs, Parts
from experiments.harness import tables
from experiments.harness.runs import Run
from experiments.seq2seq import saved
from experiments.seq2seq.evaluate import GREEDY, searches, systems
from experiments.seq2seq.options import FitOptions, SearchOptions
from experiments.seq2seq.scoring import Scoring
from experiments.seq2seq.train import dev_losses
from experiments.seq2seq.translator import Translation, Translator
from experiments.sequence_tasks import figures

PARTS = ("dev", "test")
TIMINGS = 5  # the fastest of so many counts
COLUMNS = {
    "system": "system",
    "part": "part",
    "search": "search",
    "bleu": "BLEU",
    "exact_match": "exact match",
    "perplexity": "perplexity",
    "sentences_per_second": "sentences/s",
}

Found = Mapping[tuple[str, str], Sequence[Translation]]  # of (system, part), greedily


def report(output: Run, name: TaskName, beam: int) -> None:
    """Decode dev and test greedily and by beam search; print, write and draw what is right."""
    loaded = saved.load(output.directory)
    task = integers.task(name, smoke=loaded.options["smoke"])
    data = integers.generate(task, seed=loaded.options["data_seed"])
    parts = {part: getattr(data, part) for part in PARTS}
    encoded = {part: lines.encoded(*loaded.vocabularies) for part, lines in parts.items()}
    losses = {part: dev_losses(pairs, FitOptions(buckets=1)) for part, pairs in encoded.items()}
    chosen, scoring = systems(loaded), Scoring(loaded.target, "none")
    perplexity = {
        (system, part): loss(model)["dev_perplexity"]
        for system, (model,) in chosen.items()
        for part, loss in losses.items()
    }
    rows, found = [], {}
    search = SearchOptions(beam=beam, longest=1.0, length_penalty=1.0)
    for row, translator in searches(chosen, loaded.target, search):
        for part, lines in parts.items():
            decoded, speed = timed(translator, encoded[part].source)
            texts = [each.text for each in decoded]
            bleu = scoring.bleu(texts, lines.target)
            numbers = {
                "part": part,
                "bleu": bleu.score,
                "exact_match": scoring.exact_match(texts, lines.target),
                "bleu_signature": bleu.signature,
                "perplexity": perplexity[row["system"], part],
                "sentences_per_second": speed,
            }
            rows.append(row | numbers)
            if row["search"] == GREEDY:
                found[row["system"], part] = decoded
    lengths = by_length(data, found)
    metrics = {"task": name, "longest_in_training": task.train.longest}
    output.update_metrics(metrics | {"scores": rows, "by_length": lengths})
    texts = {name: [each.text for each in found[name, "test"]] for name in chosen}
    output.write_predictions(data.test._asdict() | texts)
    tables.print_table([{COLUMNS[name]: row[name] for name in COLUMNS} for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}\n\nexact match by length, greedy, dev and test")
    tables.print_table(in_fives(lengths))
    output.clear_figures()
    first = found[next(iter(chosen)), "test"]
    for name, figure in figures.draw(loaded, data.test, first, lengths, task.train.longest):
        output.write_figure(name, figure)
    output.say_where()


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


def by_length(data: Parts, found: Found) -> list[dict[str, Any]]:
    """Return the exact match of each system at each length, over dev and test."""
    length = np.array([len(line.split()) for line in (*data.dev.source, *data.test.source)])
    right = {
        system: np.concatenate([exact(getattr(data, part), found[system, part]) for part in PARTS])
        for system in dict.fromkeys(system for system, _ in found)
    }
    return [
        {"length": int(each), "sequences": int(np.sum(length == each))}
        | {system: float(np.mean(values[length == each])) for system, values in right.items()}
        for each in np.unique(length)
    ]


def exact(lines: Pairs, found: Sequence[Translation]) -> np.ndarray:
    """Return which targets were found exactly."""
    return np.array([a.text == b for a, b in zip(found, lines.target, strict=True)])


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
        for system in list(group[0])[2:]:
            shares = [row[system] for row in group]
            merged[system] = float(np.average(shares, weights=counts))
        rows.append(merged)
    return rows
