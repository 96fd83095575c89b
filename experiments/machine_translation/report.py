"""What translations are worth: scores, BLEU by length, the worst ones, alignments."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.data.pairs import Pairs
from experiments.data.parallel_text import Corpus
from experiments.harness import tables
from experiments.harness.runs import Run
from experiments.machine_translation import figures
from experiments.seq2seq import alignments
from experiments.seq2seq.evaluate import Systems, searches
from experiments.seq2seq.figures import learning
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.scoring import BleuTokenize, Scoring
from experiments.seq2seq.translator import SearchOptions, cut

MOST_LENGTHS = 8  # groups of source lengths, of about equally many lines
WORST = 3  # of the worst lines, that are printed


def report(
    corpus: Corpus,
    loaded: Saved,
    systems: Systems,
    search: SearchOptions,
    tokenize: BleuTokenize,
    backward: Saved | None,
    output: Run,
) -> None:
    """Translate the test lines, the dev lines where there are none; print, write and draw.

    The first system's alignments are drawn; `backward` translates into the other direction.
    """
    part, lines = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    scoring = Scoring(loaded.target, tokenize)
    encoded = loaded.source.encode_batch(lines.source)
    translators = searches(systems, loaded.target, search)
    sources = cut(encoded, min(each.most_source for _, each in translators))
    rows, found = [], {}  # of each system, by the widest search
    for row, translator in translators:
        found[row["system"]] = [best for best, *_ in translator(sources)]
        texts = [each.text for each in found[row["system"]]]
        rows.append(row | scoring.scores(texts, lines.target))
    texts = {name: [each.text for each in translations] for name, translations in found.items()}
    first = next(iter(systems))
    metrics = {
        "part": part,
        "scores": rows,
        "by_length": by_length(lengths_of(lines.source, encoded), texts, lines.target, scoring),
        "worst": worst(lines, texts[first], scoring),
    }
    if corpus.gold is not None and loaded.attends:
        metrics["alignment"] = alignments.errors(loaded, corpus.train, corpus.gold, backward)
    output.update_metrics(metrics)
    output.write_predictions({"source": lines.source, "reference": lines.target} | texts)
    print(f"\n{part}: {len(lines.source):,} lines")
    show(metrics)
    output.clear_figures()
    drawn = figures.draw(loaded, lines.source, found[first], metrics["by_length"], corpus.names)
    for name, figure in drawn:
        output.write_figure(name, figure)
    if output.directory == loaded.directory and (curve := learning(loaded.directory)):
        output.write_figure("learning_curve", curve)
    output.say_where()


Lengths = tuple[str, np.ndarray]  # in words or in tokens, of each line


def lengths_of(sources: Sequence[str], ids: Sequence[Sequence[int]]) -> Lengths:
    """Return lengths in words, or in tokens where most lines have no space to part words by.

    >>> lengths_of(["一二", "三"], [[5, 6], [7]])
    ('tokens', array([2, 1]))
    """
    words = np.array([len(line.split()) for line in sources])
    if np.median(words) > 1:
        return "words", words
    return "tokens", np.array([len(each) for each in ids])


def by_length(
    lengths: Lengths,
    hypotheses: Mapping[str, Sequence[str]],
    references: Sequence[str],
    scoring: Scoring,
) -> list[dict[str, Any]]:
    """Return each system's BLEU of lines of about one length. (Bahdanau et al. 2014, figure 2.)"""
    unit, counts = lengths
    edges = np.unique(np.quantile(counts, np.linspace(0, 1, MOST_LENGTHS + 1)).round().astype(int))
    groups = np.searchsorted(edges[1:-1], counts, "right")
    rows = []
    for group in np.unique(groups):
        chosen = np.flatnonzero(groups == group)
        row = {unit: float(counts[chosen].mean()), "lines": len(chosen)}
        for name, lines in hypotheses.items():
            pair = [lines[i] for i in chosen], [references[i] for i in chosen]
            row[name] = scoring.bleu(*pair).score
        rows.append(row)
    return rows


def worst(
    lines: Pairs, hypotheses: Sequence[str], scoring: Scoring, *, count: int = 10
) -> list[dict[str, Any]]:
    """Return the lines of the lowest chrF, the worst first."""
    each = list(map(scoring.chrf_of_line, hypotheses, lines.target))
    return [
        {
            "line": int(i) + 1,
            "chrf": each[i],
            "source": lines.source[i],
            "translation": hypotheses[i],
            "reference": lines.target[i],
        }
        for i in np.argsort(each, kind="stable")[:count]
    ]


def show(metrics: Mapping[str, Any]) -> None:
    """Print it."""
    rows, lengths = metrics["scores"], metrics["by_length"]
    names = {"system": "system", "search": "search", "bleu": "BLEU", "chrf": "chrF"}
    tables.print_table([{names[name]: row[name] for name in names} for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}\nchrF {rows[0]['chrf_signature']}")
    print(f"\nBLEU by the source's length, in {next(iter(lengths[0]))}")
    tables.print_table(lengths)
    print("\nthe worst translations, by chrF")
    for each in metrics["worst"][:WORST]:
        for name in ("source", "translation", "reference"):
            print(f"  {name:12}{each[name]}")
        print()
    if "alignment" in metrics:
        print("alignment error rate on the gold links")
        tables.print_table(metrics["alignment"])
