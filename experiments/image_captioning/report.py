"""What captions are worth, and where each word looks, beside the boxes of what it names."""

from collections.abc import Sequence
from typing import Any

from attn_jax import metrics, text
from experiments.data.captions import Captioned, pairs
from experiments.data.pairs import Parts
from experiments.harness import tables
from experiments.harness.files import plain
from experiments.harness.runs import Run, require_same
from experiments.image_captioning import CaptionModel, Evaluate, Pictures, Train, data, figures
from experiments.seq2seq import evaluate as evaluation
from experiments.seq2seq import figures as curves
from experiments.seq2seq import train as engine
from experiments.seq2seq.alignments import forced_weights
from experiments.seq2seq.options import FitOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.translator import Translation, Translator

NAME = "image-captioning"
DRAWN = 4  # pictures whose words are drawn
SHOWN = 8  # captions that are printed
PERCENT = {
    "pointing_accuracy": "largest weight\nin the box, %",
    "pointing_mass": "weight in\nthe box, %",
    "chance": "the box's\narea, %",
    "zeros": "weights\nthat are 0, %",
}


def train(options: Train) -> None:
    """Train a model, and with --twin the one without attention; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    parts, task = prepare(options.pictures, options.fit)
    how = {"kind": CaptionModel}
    others = evaluation.load_ensemble(NAME, options, (None, task.target), **how)
    output = engine.train(NAME, options, task, twin=options.twin)
    report(options, parts.test, evaluation.load(NAME, options, **how), others, output)


def evaluate(options: Evaluate) -> None:
    """Evaluate on the test pictures of the training, or on others, of which evaluation/ is."""
    loaded = evaluation.load(NAME, options, kind=CaptionModel)
    test = data.load_test(options.pictures, loaded.options["pictures"])
    output, now = Run(loaded.directory), plain(options.pictures)
    if options.pictures.images is not None:
        output = Run(loaded.directory / "evaluation")
        output.clear_figures()
        output.write_metrics({"test": {name: now[name] for name in ("images", "captions")}})
    others = evaluation.load_ensemble(NAME, options, loaded.vocabularies, kind=CaptionModel)
    report(options, test, loaded, others, output)


def prepare(options: Pictures, fit: FitOptions) -> tuple[Parts, engine.Task]:
    """Return pictures with captions, and what a model is trained on of them."""
    parts = data.load(options)
    target = data.vocabulary(parts.train)
    training, dev = (data.encoded(pairs(part), target) for part in (parts.train, parts.dev))
    return parts, engine.Task(None, target, engine.batches(training, fit), dev)


def report(
    options: Evaluate,
    test: Sequence[Captioned],
    loaded: Saved,
    others: Sequence[Saved],
    output: Run,
) -> None:
    """Print, write and draw what captions are worth, and where their words look."""
    found = evaluation.systems(loaded, others, average=options.average)
    rows, columns, best = [], {}, []
    for row, translator in evaluation.searches(found, loaded.target, options.search):
        written = described(translator, test)
        best = best or written
        columns[" ".join(row.values())] = [each.text for each in written]
        rows.append(row | scores(written, test))
    how = {name: getattr(options, name) for name in ("average", "ensemble", "search")}
    looks = pointing(loaded.model, loaded.target, test) if loaded.attends else {}
    numbers = {"how": how, "pictures": len(test), "captions": rows}
    numbers |= {"exact_match": rows[0]["exact_match"], "bleu": rows[0]["bleu"]} | looks
    output.update_metrics(numbers)
    names = {"picture": [e.name for e in test], "reference": [e.captions[0] for e in test]}
    output.write_predictions(names | columns)
    print(f"\n{len(test):,} pictures never trained on")
    tables.print_table([readable(row) for row in rows])
    if looks:
        print(f"\nWhere attention looks while {looks['pointed']:,} names are written")
        tables.print_table([{name: 100 * looks[key] for key, name in PERCENT.items()}])
    shown = zip(names["reference"][:SHOWN], next(iter(columns.values())), strict=False)
    tables.print_table([{"reference": said, "caption": ours} for said, ours in shown])
    draw(output, loaded.target, test, best)
    if output.directory == loaded.directory and (curve := curves.learning(loaded.directory)):
        output.write_figure("learning_curve", curve)
    output.say_where()


def described(translator: Translator, test: Sequence[Captioned]) -> list[Translation]:
    """Return a caption of each picture."""
    return [best for best, *_ in translator([each.image for each in test])]


def scores(found: Sequence[Translation], test: Sequence[Captioned]) -> dict[str, float]:
    """Return how many captions are one of the references, and their BLEU."""
    exact = [each.text in example.captions for each, example in zip(found, test, strict=True)]
    bleu = metrics.bleu([each.text for each in found], [list(each.captions) for each in test])
    return {"exact_match": sum(exact) / len(exact), "bleu": bleu.score}


def pointing(model: Any, target: text.Vocabulary, test: Sequence[Captioned]) -> dict[str, Any]:
    """Return where the decoder looks, which is fed the first captions, while it writes a name."""
    weights = forced_weights(model, data.encoded(data.first(test), target))
    gold = data.gold(test, target, weights[0].shape[1])
    found = metrics.pointing(weights, gold)
    if not found.steps:
        return {}
    return {
        "pointing_accuracy": found.hit,
        "pointing_mass": found.mass,
        "chance": found.chance,
        "entropy": found.entropy,
        "zeros": found.zeros,
        "pointed": found.steps,
    }


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""
    numbers = {"exact, %": 100 * row["exact_match"], "BLEU": row["bleu"]}
    return {"system": row["system"], "search": row["search"]} | numbers


def draw(
    output: Run,
    target: text.Vocabulary,
    test: Sequence[Captioned],
    found: Sequence[Translation],
) -> None:
    """Draw the first pictures word by word, and the weights of their words against boxes."""
    for name in ("picture", "boxes"):
        output.clear_figures(f"{name}_*")
    if page := figures.page(test[0], found[0], target):
        output.write_figure("attention", page)
    for number, (example, written) in enumerate(zip(test[:DRAWN], found, strict=False), 1):
        drawn = {
            "picture": figures.words(example, written, target),
            "boxes": figures.boxes(example, written, target),
        }
        for name, figure in drawn.items():
            if figure is not None:
                output.write_figure(f"{name}_{number}", figure)
