"""All that is told of a trained model: scores of each system and search, by length, alignments."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.data.parallel_text import Corpus, Lines
from experiments.harness import tables
from experiments.seq2seq import alignments
from experiments.seq2seq import report as reports
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.scoring import Scoring
from experiments.seq2seq.translator import (
    LENGTHS,
    SearchOptions,
    Translation,
    Translator,
    cut,
    most_source,
)

ATTENTION, TWIN = "attention", "no attention"
SHOWN = 3  # of the worst lines


class Judged(NamedTuple):
    """What was found, for metrics.json, the terminal, predictions.csv and pictures."""

    metrics: dict[str, Any]
    lines: Lines
    translations: dict[str, list[Translation]]  # of each system, by the widest search

    @property
    def texts(self) -> dict[str, list[str]]:
        """The translations as text."""
        return {name: [x.text for x in found] for name, found in self.translations.items()}


def judge(
    systems: Mapping[str, Sequence[Any]],
    loaded: Saved,
    corpus: Corpus,
    search: SearchOptions,
    scoring: Scoring,
    backward: Saved | None = None,
) -> Judged:
    """Translate the test lines, the dev lines where there are none, and hold them against theirs.

    `systems` are names -> the models that vote; the first one is looked at more closely. `backward`
    translates into the other direction, for alignments.
    """
    part, lines = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    encoded = loaded.source.encode_batch(lines.source)
    voters = [each for members in systems.values() for each in members]
    sources = cut(encoded, most_source(voters, search))
    first, rows, translations = next(iter(systems)), [], {}
    for system, members in systems.items():
        for beam in sorted({1, search.beam}):
            drawn = system == first and beam == search.beam  # only these have their weights drawn
            translator = Translator(
                members,
                loaded.target,
                dataclasses.replace(search, beam=beam, n_best=1),
                align_up_to=LENGTHS[-1] if drawn else 0,
            )
            translations[system] = found = [best for best, *_ in translator(sources)]
            row = {"system": system, "search": "greedy" if beam == 1 else f"beam {beam}"}
            rows.append(row | scoring.scores([each.text for each in found], lines.target))
    judged = Judged({"part": part, "scores": rows}, lines, translations)
    lengths = reports.lengths_of(lines.source, encoded)
    by_length = reports.by_length(lengths, judged.texts, lines.target, scoring)
    worst = reports.worst(lines, judged.texts[first], scoring)
    judged.metrics.update({"by_length": by_length, "worst": worst})
    if corpus.gold is not None and loaded.attends:
        judged.metrics["alignment"] = alignments.errors(loaded, corpus, backward)
    return judged


def show(judged: Judged) -> None:
    """Print it."""
    metrics = judged.metrics
    rows, lengths = metrics["scores"], metrics["by_length"]
    print(f"\n{metrics['part']}: {len(judged.lines.source):,} lines")
    tables.print_table([readable(row) for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}\nchrF {rows[0]['chrf_signature']}")
    print(f"\nBLEU by the source's length, in {next(iter(lengths[0]))}")
    tables.print_table(lengths)
    print("\nthe worst translations, by chrF")
    for each in metrics["worst"][:SHOWN]:
        for name in ("source", "translation", "reference"):
            print(f"  {name:12}{each[name]}")
        print()
    if "alignment" in metrics:
        print("alignment error rate on the gold links")
        tables.print_table(metrics["alignment"])


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    names = {"system": "system", "search": "search", "bleu": "BLEU", "chrf": "chrF"}
    return {shown: row[name] for name, shown in names.items()}
