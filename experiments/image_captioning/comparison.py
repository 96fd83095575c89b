"""The same model with each normalizer: what its captions are worth, and where it looks."""

import dataclasses
from typing import Any

from experiments.data.captions import Captioned
from experiments.harness import tables
from experiments.harness.runs import require_same, start
from experiments.image_captioning import Compare, data, figures
from experiments.image_captioning.report import NAME, PERCENT, described, pointing, prepare, scores
from experiments.seq2seq import models
from experiments.seq2seq import train as engine
from experiments.seq2seq.alignments import forced_weights
from experiments.seq2seq.translator import Translator


def compare(options: Compare) -> None:
    """Train and measure the model with each normalizer; what is done stays, whatever comes."""
    if options.resume:
        require_same(options.output.directory(NAME), options)
    parts, task = prepare(options.pictures, options.fit)
    chosen = [dataclasses.replace(options.model, normalizer=each) for each in options.normalizers]
    for model in chosen:
        models.parameters(model, *task.sizes)  # refuses what cannot be built
    how = {"resume": options.resume, "checksums": task.checksums}
    output = start(NAME, options, options.output, **how)
    table, looks = [], {}
    example = next((each for each in parts.test if each.objects), None)
    for number, model in enumerate(chosen, 1):
        print(f"\nmodel {number} of {len(chosen)}")
        directory = output.directory / "training" / model.normalizer
        trained = engine.fit(model, options.fit, task, directory)
        found = described(Translator([trained.model], task.target, options.search), parts.test)
        row = {"normalizer": model.normalizer, "alpha": alpha_of(trained.model, model.normalizer)}
        row |= scores(found, parts.test) | pointing(trained.model, task.target, parts.test)
        table.append(row | {"seconds": trained.history[-1]["seconds"]})
        output.update_metrics({"comparison": table})
        if example is not None:
            looks[model.normalizer] = first_name(trained.model, task.target, example)
    print(f"\n{len(parts.test):,} pictures never trained on")
    tables.print_table(list(map(readable, table)))
    if all(looks.values()) and example is not None:
        output.write_figure("comparison", figures.of_comparison(table, example, looks))
    output.say_where()


def first_name(model: Any, target: Any, example: Captioned) -> Any:
    """Return the first word of a caption that names a box, its weights and the box."""
    caption = example.captions[0]
    (weights,) = forced_weights(model, data.encoded(data.first([example]), target))
    for named, box in example.named(caption)[:1]:
        row = target.words(caption).index(named[0])
        return caption.split()[named[0]], weights[row], box
    return None


def alpha_of(model: Any, normalizer: str) -> float | None:
    """Return the α that was learned."""
    return float(model.decoder.attention.normalizer.alpha) if normalizer == "entmax" else None


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    first = {"normalizer": row["normalizer"], "α": row["alpha"]}
    first |= {"exact, %": 100 * row["exact_match"], "BLEU": row["bleu"]}
    looks = {name: 100 * row[key] for key, name in PERCENT.items() if key in row}
    return first | looks | {"seconds": row["seconds"]}
