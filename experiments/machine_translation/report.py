"""What translations are worth: scores, BLEU by length, the worst ones, alignments."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.data import parallel_text
from experiments.data.pairs import Pairs
from experiments.data.parallel_text import Corpus
from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.harness.runs import Run
from experiments.machine_translation import figures
from experiments.machine_translation.options import Evaluate
from experiments.seq2seq import alignments
from experiments.seq2seq.evaluate import load, load_ensemble, output_for, searches, systems
from experiments.seq2seq.figures import learning
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.scoring import Scoring
from experiments.seq2seq.translator import cut

NAME = "machine-translation"
BLEU_TOKENIZE = "13a"
MOST_LENGTHS = 8  # groups of source lengths, of about equally many lines
WORST = 3  # of the worst lines, that are printed


class Others(NamedTuple):
    """Further runs: those of the ensemble, and that of the other direction."""

    ensemble: list[Saved]
    backward: Saved | None


def load_others(options: Evaluate, vocabularies: tuple[Any, Any], corpus: Corpus) -> Others:
    """Return the further runs of the options; refuse those of other tokens."""
    ensemble = load_ensemble(NAME, options, vocabularies)
    if options.backward is None:
        return Others(ensemble, None)
    if corpus.gold is None:
        raise UserError("--backward needs gold alignments: --data greek-english, or the other way.")
    loaded = load(NAME, options, options.backward)
    back = [each.checksum for each in loaded.vocabularies[::-1]]
    if [each.checksum for each in vocabularies] != back or not loaded.attends:
        what = f"{options.backward} has other vocabularies, the same direction or no attention"
        raise UserError(f"--backward needs a run of the other direction of this one's. {what}.")
    return Others(ensemble, loaded)


def evaluate(options: Evaluate) -> None:
    """Evaluate a trained model on the test lines of its training, or on other ones.

    The numbers of other lines go to evaluation/, those of the training's lines to metrics.json
    again, with how the translations were made.
    """
    loaded = load(NAME, options)
    before = loaded.options["corpus"]
    corpus = parallel_text.load_test(options.corpus, before)
    others = load_others(options, loaded.vocabularies, corpus)
    report(options, corpus, loaded, others, output_for(loaded, options.corpus))


def report(options: Evaluate, corpus: Corpus, loaded: Saved, others: Others, output: Run) -> None:
    """Translate the test lines, the dev lines where there are none; print, write and draw.

    The alignments of the first system, which is the run's own, are drawn.
    """
    tokenize = options.bleu_tokenize or loaded.options.get("bleu_tokenize") or BLEU_TOKENIZE
    how = {name: getattr(options, name) for name in ("average", "ensemble", "backward", "search")}
    chosen = systems(loaded, others.ensemble, average=options.average)
    part, lines = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    scoring = Scoring(loaded.target, tokenize)
    encoded = loaded.source.encode_batch(lines.source)
    translators = searches(chosen, loaded.target, options.search)
    sources = cut(encoded, min(each.most_source for _, each in translators))
    rows, found = [], {}  # of each system, by the widest search
    for row, translator in translators:
        found[row["system"]] = [best for best, *_ in translator(sources)]
        texts = [each.text for each in found[row["system"]]]
        rows.append(row | scoring.scores(texts, lines.target))
    texts = {name: [each.text for each in translations] for name, translations in found.items()}
    first = next(iter(chosen))
    metrics = {
        "how": how | {"bleu_tokenize": tokenize},
        "part": part,
        "scores": rows,
        "by_length": by_length(lengths_of(lines.source, encoded), texts, lines.target, scoring),
        "worst": worst(lines, texts[first], scoring),
    }
    if corpus.gold is not None and loaded.attends:
        metrics["alignment"] = alignments.errors(loaded, corpus.train, corpus.gold, others.backward)
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
