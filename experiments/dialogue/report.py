"""What answers are worth: perplexity beside a twin's and a unigram's, length, variety."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from flax import nnx

from attn_jax import text
from experiments.data import parallel_text
from experiments.data.pairs import Pairs
from experiments.data.parallel_text import Corpus
from experiments.dialogue import Evaluate, Train, Turns
from experiments.harness import tables
from experiments.harness.glyphs import say_missing
from experiments.harness.runs import Run, require_same
from experiments.seq2seq import figures
from experiments.seq2seq import train as engine
from experiments.seq2seq.evaluate import TWIN, load, load_ensemble, output_for, systems
from experiments.seq2seq.options import FitOptions, SearchOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translator, cut

NAME = "dialogue"
DRAWN = 4  # answers whose weights are drawn
SHOWN = 8  # examples that are printed
ANSWERED = 1000  # test turns, at most, that are answered for length and variety


def train(options: Train) -> None:
    """Train a model and its twin; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    corpus, task = engine.text_task(options.corpus, options.fit)
    both = task.source, task.target
    others = load_ensemble(NAME, options, both)
    output = engine.train(NAME, options, task, twin=True)
    output.update_metrics(
        {"unigram": unigram(task.target.encode_batch(corpus.train.target), len(task.target))}
    )
    report(options, corpus, load(NAME, options), others, output)


def evaluate(options: Evaluate) -> None:
    """Evaluate on the test turns of the training, or on other ones, of which evaluation/ is."""
    loaded = load(NAME, options)
    corpus = parallel_text.load_test(options.corpus, loaded.options["corpus"], Turns)
    others = load_ensemble(NAME, options, loaded.vocabularies)
    report(options, corpus, loaded, others, output_for(loaded, options.corpus))


def report(
    options: Evaluate, corpus: Corpus, loaded: Saved, others: Sequence[Saved], output: Run
) -> None:
    """Print, write and draw what the answers are worth."""
    part, lines = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    pairs = lines.encoded(*loaded.vocabularies)
    found = systems(loaded, others, average=options.average)
    few = Pairs(*(side[:ANSWERED] for side in lines))
    rows, answers = [], {}
    sampled = options.search.temperature > 0
    greedy = dataclasses.replace(options.search, temperature=0.0, beam=1)
    for name, models in found.items():
        for search in [options.search, greedy] if sampled else [options.search]:
            translator = answering(models, loaded.target, search)
            sources = cut(loaded.source.encode_batch(few.source), translator.most_source)
            best = [first for first, *_ in translator(sources)]
            answers[name, search.name] = best
            rows.append(
                {"system": name, "answers": search.name} | variety([each.text for each in best])
            )
    losses = engine.dev_losses(pairs, FitOptions())
    perplexity = {name: losses(models[0])["dev_perplexity"] for name, models in found.items()}
    words = variety(few.target)
    how = {name: getattr(options, name) for name in ("average", "ensemble", "search")}
    metrics = {
        "how": how,
        "part": part,
        "perplexity": perplexity[next(iter(found))],
        "twin_perplexity": perplexity.get(TWIN),
        "answers": [*rows, {"system": "reference", "answers": "-"} | words],
    }
    if unigrams := _unigram_of(loaded):
        metrics["unigram_perplexity"] = unigram_perplexity(unigrams, pairs.target)
    output.update_metrics(metrics)
    columns = {f"{name}, {how}": [a.text for a in best] for (name, how), best in answers.items()}
    output.write_predictions({"said": few.source, "reference": few.target} | columns)
    _show(metrics, few, columns)
    output.clear_figures("answer_*")
    _draw(output, loaded, few, answers)
    if output.directory == loaded.directory and (curve := figures.learning(loaded.directory)):
        output.write_figure("learning_curve", curve)
    output.say_where()


def answering(
    models: Sequence[nnx.Module], target: text.Vocabulary, search: SearchOptions
) -> Translator:
    """Return what answers: no answer holds the token of unknown words."""
    return Translator(models, target, search, forbidden=(text.PAD, text.UNKNOWN, text.START))


def variety(answers: Sequence[str]) -> dict[str, float]:
    """Return the mean length in words, and the share of different words and pairs of words.

    distinct-n is the number of different n-grams over that of all. (Li et al. 2016, section 5.)

    >>> variety(["a b", "a b"])
    {'words': 2.0, 'distinct_1': 0.5, 'distinct_2': 0.5}
    """
    split = [answer.split() for answer in answers]
    words = [word for each in split for word in each]
    pairs = [pair for each in split for pair in itertools.pairwise(each)]
    return {
        "words": len(words) / max(len(split), 1),
        "distinct_1": len(set(words)) / max(len(words), 1),
        "distinct_2": len(set(pairs)) / max(len(pairs), 1),
    }


def unigram(targets: Sequence[Sequence[int]], size: int) -> list[int]:
    """Return how often each token of the vocabulary is the next one; each target has an end."""
    counts = collections.Counter(token for each in targets for token in (*each, text.END))
    return [counts[token] for token in range(size)]


def unigram_perplexity(counts: Sequence[int], targets: Sequence[Sequence[int]]) -> float:
    """Return the perplexity of targets by the share of each token, one added to each count."""
    total = sum(counts) + len(counts)
    tokens = [token for each in targets for token in (*each, text.END)]
    nats = -sum(math.log((counts[token] + 1) / total) for token in tokens)
    return math.exp(nats / max(len(tokens), 1))


def _unigram_of(loaded: Saved) -> list[int] | None:
    """The counts that the training wrote."""
    return Run(loaded.directory).read_metrics().get("unigram")


def _show(metrics: dict[str, Any], lines: Pairs, columns: dict[str, list[str]]) -> None:
    first = metrics["answers"][0]["system"]
    names = {"perplexity": first, "twin_perplexity": TWIN, "unigram_perplexity": "unigram"}
    rows = [
        {"model": name, "perplexity": metrics[key]}
        for key, name in names.items()
        if metrics.get(key) is not None
    ]
    part = metrics["part"]
    print(f"\n{len(lines.source):,} {part} turns answered; perplexity of all {part} answers")
    tables.print_table(rows)
    headings = {"distinct_1": "distinct-1", "distinct_2": "distinct-2"}
    answers = [{headings.get(k, k): v for k, v in row.items()} for row in metrics["answers"]]
    tables.print_table(answers)
    examples = zip(lines.source[:SHOWN], next(iter(columns.values()))[:SHOWN], strict=True)
    tables.print_table([{"said": said, "answer": answer} for said, answer in examples])


def _draw(output: Run, loaded: Saved, lines: Pairs, answers: dict[Any, Any]) -> None:
    pairs = zip(lines.source, next(iter(answers.values())), strict=True)
    chosen = [each for each in pairs if each[1].weights is not None and len(each[1].ids) > 2][
        :DRAWN
    ]
    say_missing([each for source, answer in chosen for each in (source, answer.text)])
    for number, (source, answer) in enumerate(chosen, 1):
        figure = figures.heat_map(source, answer, loaded.vocabularies, ("said", "answer"))
        output.write_figure(f"answer_{number}", figure)
