"""What transcriptions are worth: error rates, and whether attention follows the sound."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx

from attn_jax import metrics, text
from experiments.data.pairs import Pairs
from experiments.data.speech import Utterance, regions
from experiments.harness import tables
from experiments.harness.errors import as_user_errors
from experiments.harness.runs import Run, require_same
from experiments.seq2seq import train as engine
from experiments.seq2seq.alignments import forced_weights
from experiments.seq2seq.evaluate import load, load_ensemble, systems
from experiments.seq2seq.figures import learning
from experiments.seq2seq.options import SearchOptions
from experiments.seq2seq.saved import Saved
from experiments.seq2seq.train import Task
from experiments.seq2seq.translator import Translation, Translator
from experiments.speech_recognition import NAME, Evaluate, ModelOptions, Sound, Train, data, figures

LENGTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024)  # frames that sources are padded to
SHOWN, DRAWN = 6, 3


def train(options: Train) -> None:
    """Train a model, and its twin with --twin; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(options.output.directory(NAME), options)
    sounds = data.load(options.sound)
    with as_user_errors(ValueError):
        written = [each.text for each in sounds.training]
        target = text.Vocabulary.train(written, kind="character")
    training, dev = (pairs_of(each, target) for each in (sounds.training, sounds.dev))
    seconds = sum(len(each.features) for each in sounds.training) * figures.SECONDS
    print(f"{len(sounds.training):,} utterances to train on, {seconds / 3600:.2f} hours")
    task = Task(None, target, engine.batches(training, options.fit), dev)
    others = load_ensemble(NAME, options, (None, target), kind=ModelOptions)
    output = engine.train(NAME, options, task, twin=options.twin)
    report(options, sounds, load(NAME, options, kind=ModelOptions), others, output)


def evaluate(options: Evaluate) -> None:
    """Evaluate a trained model on the test utterances of its training."""
    loaded = load(NAME, options, kind=ModelOptions)
    before = dict(loaded.options["sound"])
    for name in ("recordings", "audio", "transcripts", "data_dir"):
        before[name] = before[name] and data.Path(before[name])
    before["test_speakers"] = tuple(before["test_speakers"])
    with as_user_errors(TypeError):  # a run of another version has other options
        sounds = data.load(Sound(**before))
    others = load_ensemble(NAME, options, loaded.vocabularies, kind=ModelOptions)
    report(options, sounds, loaded, others, Run(loaded.directory))


def pairs_of(some: Sequence[Utterance], target: text.Vocabulary) -> Pairs:
    """Return features and the ids of what is said."""
    return Pairs([each.features for each in some], target.encode_batch([e.text for e in some]))


def report(
    options: Evaluate, sounds: data.Sounds, loaded: Saved, others: Sequence[Saved], output: Run
) -> None:
    """Transcribe each test; print, write and draw what that is worth."""
    found = systems(loaded, others, average=options.average)
    rows, columns, drawn = [], [], []
    for name, every in sounds.tests.items():
        some = every[: options.limit]
        references = [each.text for each in some]
        for system, models in found.items():
            best = transcriptions(models, loaded.target, options.search, some)
            texts = [each.text for each in best]
            row = {"test": name, "system": system, "search": options.search.name}
            row |= {"utterances": len(some)} | error_rates(texts, references)
            if system == next(iter(found)):
                if loaded.attends:
                    row |= pointing(models[0], some, loaded.target)
                row["by_length"] = by_length(texts, references)
                drawn += list(zip(some, best, strict=True))[:DRAWN]
            rows.append(row)
            columns += [
                {
                    "test": name,
                    "system": system,
                    "reference": r,
                    "transcription": t,
                    "voice": u.voice,
                }
                for r, t, u in zip(references, texts, some, strict=True)
            ]
    first = rows[0]
    names = ("character_error_rate", "word_error_rate", "exact", "pointing_accuracy")
    numbers = {name: first.get(name) for name in names}
    how = {name: getattr(options, name) for name in ("average", "ensemble", "search")}
    output.update_metrics({"how": how, "tests": rows} | numbers)
    output.write_predictions({name: [row[name] for row in columns] for name in columns[0]})
    print("\nerror rates, per cent")
    tables.print_table(list(map(readable, rows)))
    print("\nby words of the utterance")
    tables.print_table(first["by_length"])
    tables.print_table([{"said": u.text, "written": b.text} for u, b in drawn[:SHOWN]])
    output.clear_figures("alignment_*")
    for number, (utterance, best) in enumerate(drawn, 1):
        if best.weights is not None:
            figure = figures.alignment(utterance, best, loaded.model.memory_length)
            output.write_figure(f"alignment_{number}", figure)
    if curve := learning(loaded.directory):
        output.write_figure("learning_curve", curve)
    output.say_where()


def transcriptions(
    models: Sequence[nnx.Module],
    target: text.Vocabulary,
    search: SearchOptions,
    some: Sequence[Utterance],
) -> list[Translation]:
    """Return the best transcription of each utterance."""
    forbidden = (text.PAD, text.UNKNOWN, text.START)
    how = {"batch_size": 64, "lengths": LENGTHS, "forbidden": forbidden}
    translator = Translator(models, target, search, **how)
    sources = [each.features[: translator.most_source] for each in some]
    return [best for best, *_ in translator(sources)]


def error_rates(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return character and word error rate (jiwer's), and the share that is right.

    >>> error_rates(["a cat"], ["a bat"])["word_error_rate"]
    0.5
    """
    import jiwer

    return {
        "character_error_rate": float(jiwer.cer(list(references), list(texts))),
        "word_error_rate": float(jiwer.wer(list(references), list(texts))),
        "exact": metrics.exact_match(texts, references),
    }


def by_length(texts: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """Return the character error rate of utterances of about as many words."""
    counts = np.array([len(each.split()) for each in references])
    rows = []
    for low, high in ((1, 2), (3, 4), (5, 6), (7, 99)):
        chosen = np.flatnonzero((counts >= low) & (counts <= high))
        if len(chosen):
            pair = [texts[i] for i in chosen], [references[i] for i in chosen]
            rates = error_rates(*pair)
            span = f"{low} to {high}" if high < 99 else f"{low} and more"
            rows.append({"words": span, "utterances": len(chosen)} | rates)
    return rows


def pointing(
    model: nnx.Module, some: Sequence[Utterance], target: text.Vocabulary
) -> dict[str, float]:
    """Return where weights are, the decoder being fed what was said."""
    timed = [each for each in some if len(each.words)]
    if not timed:
        return {}
    weights = forced_weights(model, pairs_of(timed, target))
    found = metrics.pointing(weights, gold_regions(model, timed))
    return {
        "pointing_accuracy": found.hit,
        "weight_in_time": found.mass,
        "chance": found.chance,
        "monotonicity": monotonicity(weights),
    }


def gold_regions(model: nnx.Module, some: Sequence[Utterance]) -> list[np.ndarray]:
    """Return for each character which positions of the model's memory are its word's time."""
    frames = round(10**6 / model.memory_length(10**6))  # of a position
    lengths = [model.memory_length(len(each.features)) for each in some]
    return [regions(each, length, frames) for each, length in zip(some, lengths, strict=True)]


def monotonicity(weights: Sequence[np.ndarray]) -> float:
    """Return how often the largest weight does not go back from a character to the next.

    >>> monotonicity([np.eye(3)[[0, 2, 1]]])
    0.5
    """
    steps = [np.diff(table.argmax(axis=1)) >= 0 for table in weights if len(table) > 1]
    return float(np.mean(np.concatenate(steps))) if steps else float("nan")


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics.json as a row of the table."""

    def percent(name: str) -> float | None:
        return None if row.get(name) is None else 100 * row[name]

    return {
        "test": row["test"],
        "system": row["system"],
        "character\nerrors": percent("character_error_rate"),
        "word\nerrors": percent("word_error_rate"),
        "sentences\nright": percent("exact"),
        "largest weight\nin the word": percent("pointing_accuracy"),
        "by\nchance": percent("chance"),
        "forward": percent("monotonicity"),
    }
