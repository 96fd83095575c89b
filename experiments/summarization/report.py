"""What summaries are worth: ROUGE beside the first words and the model without copying."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx

from attn_jax import text
from experiments.data import parallel_text
from experiments.data.pairs import Pairs
from experiments.data.parallel_text import Corpus
from experiments.harness import tables
from experiments.harness.runs import Run, require_same
from experiments.seq2seq import saved
from experiments.seq2seq import train as engine
from experiments.seq2seq.evaluate import load, load_ensemble, output_for
from experiments.seq2seq.figures import learning
from experiments.seq2seq.options import SearchOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation, Translator, cut
from experiments.summarization import NAME, Evaluate, ModelOptions, Texts, Train, figures
from experiments.summarization.rouge import first_words, in_text, rouge, unknown_words

SHOWN, DRAWN = 6, 4  # examples that are printed, and drawn
COPYING, PLAIN = "copying", "no copying"


def train(options: Train) -> None:
    """Train a model, and the same without copying; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    corpus, plain = engine.text_task(options.corpus, options.fit)
    both = plain.source, plain.target
    task = plain
    if options.model.copy:
        task = engine.task_of(corpus, options.corpus, options.fit, both, copy=True)
    others = load_ensemble(NAME, options, both, kind=ModelOptions)
    output = engine.train(NAME, options, task)
    if options.model.copy:
        place = output.directory / saved.TWIN
        engine.fit(without(options.model), options.fit, plain, place)
    loaded = load(NAME, options, kind=ModelOptions)
    report(options, corpus, loaded, others, output)


def without(model: ModelOptions) -> ModelOptions:
    """Return the same model without copying."""
    return dataclasses.replace(model, copy=False)


def evaluate(options: Evaluate) -> None:
    """Evaluate on the test texts of the training, or on other ones, of which evaluation/ is."""
    loaded = load(NAME, options, kind=ModelOptions)
    corpus = parallel_text.load_test(options.corpus, loaded.options["corpus"], Texts)
    others = load_ensemble(NAME, options, loaded.vocabularies, kind=ModelOptions)
    report(options, corpus, loaded, others, output_for(loaded, options.corpus))


def report(
    options: Evaluate, corpus: Corpus, loaded: Saved, others: Sequence[Saved], output: Run
) -> None:
    """Summarize the test texts; print, write and draw what that is worth."""
    part, lines = ("test", corpus.test) if corpus.test.source else ("dev", corpus.dev)
    lines = Pairs(*(side[: options.limit] for side in lines))
    copies = loaded.model_options.copy
    found = {
        COPYING if copies else PLAIN: summaries(
            [each.model for each in (loaded, *others)], loaded, options.search, lines.source
        )
    }
    if copies:
        plain = without(loaded.model_options)
        twin = saved.load_twin(loaded, average=options.average, options=plain)
        if twin is not None:
            one = loaded._replace(model=twin, model_options=plain)
            found[PLAIN] = summaries([twin], one, options.search, lines.source)
    normal = Pairs(*(list(map(loaded.target.normal, side)) for side in lines))
    lacking = [text.encode_copyable(loaded.source, line).unknown for line in lines.source]
    lead = first_words(*normal)
    rows = [{"system": "first words"} | rouge(lead, normal.target)]
    for name, best in found.items():
        texts = [each.text for each in best]
        row = {"system": name} | rouge(texts, normal.target)
        row |= {"words": float(np.mean([len(each.split()) for each in texts]))}
        row |= {"in_text": in_text(texts, normal.source)}
        rows.append(row | unknown_words(texts, normal.target, lacking))
    first = next(iter(found))
    own = next(row for row in rows if row["system"] == first)
    how = {name: getattr(options, name) for name in ("average", "ensemble", "search")}
    metrics = {"how": how, "part": part, "systems": rows}
    metrics |= {name: own[name] for name in ("rouge1", "rouge2", "rougeL")}
    metrics |= {f"lead_{name}": rows[0][name] for name in ("rouge1", "rouge2", "rougeL")}
    output.update_metrics(metrics)
    columns = {name: [each.text for each in best] for name, best in found.items()}
    given = {"text": lines.source, "reference": lines.target}
    output.write_predictions(given | {"first words": lead} | columns)
    print(f"\n{len(lines.source):,} {part} texts; ROUGE, F1 in per cent")
    tables.print_table(list(map(readable, rows)))
    examples = zip(lines.source[:SHOWN], lines.target, columns[first], strict=False)
    for body, reference, summary in examples:
        print(f"\ntext       {body}\nreference  {reference}\nsummary    {summary}")
    output.clear_figures("summary_*")
    for number, figure in enumerate(figures.draw(loaded, lines.source, found[first], DRAWN), 1):
        output.write_figure(f"summary_{number}", figure)
    if output.directory == loaded.directory and (curve := learning(loaded.directory)):
        output.write_figure("learning_curve", curve)
    output.say_where()


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    shown = {"system": row["system"]}
    shown |= {f"ROUGE-{name[5:]}": row[name] for name in ("rouge1", "rouge2", "rougeL")}
    right = None
    if "unknown_words" in row:
        right = f"{row['unknown_words_right']} of {row['unknown_words']}"
    share = row.get("in_text")
    return shown | {
        "words": row.get("words"),
        "in the\ntext, %": None if share is None else 100 * share,
        "unknown words\nright": right,
    }


def summaries(
    models: Sequence[nnx.Module], loaded: Saved, search: SearchOptions, texts: Sequence[str]
) -> list[Translation]:
    """Return the best summary of each text; none holds the token of unknown words."""
    forbidden = (text.PAD, text.UNKNOWN, text.START)
    translator = Translator(models, loaded.target, search, forbidden=forbidden)
    if not loaded.model_options.copy:
        sources = loaded.source.encode_batch(texts)
        return [best for best, *_ in translator(cut(sources, translator.most_source))]
    copyable = [text.encode_copyable(loaded.source, line) for line in texts]
    sources = cut([each.ids for each in copyable], translator.most_source)
    found = translator(sources, [each.unknown for each in copyable])
    return [best for best, *_ in found]
