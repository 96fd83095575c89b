r"""Reverse, copy and sort sequences of integers: what attention learns, counted exactly.

    python -m experiments sequence-tasks                     reverse
    python -m experiments sequence-tasks sort --twin         and a model without attention beside
    python -m experiments sequence-tasks reverse evaluate    the numbers, and how fast it decodes

The tasks are JoeyNMT's and Sockeye's (`sequences.py`), and so are the models' sizes and the numbers
of updates. A sixth of what reverse is tested with is longer than any sequence in training.
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tyro

from experiments import sequences, tables
from experiments.errors import UserError
from experiments.runs import Output, Run, checked_name, start
from experiments.sequences import TASKS, Lines, Sequences, TaskName
from experiments.translation import fits, models, saved
from experiments.translation.fits import Pairs
from experiments.translation.models import ModelOptions
from experiments.translation.translator import SearchOptions, Translation, Translator

NAME = "sequence-tasks"
TIMINGS = 5  # the fastest of so many counts
ATTENTION, TWIN = "attention", "no attention"
PARTS, GREEDY = ("dev", "test"), "greedy"

Found = Mapping[tuple[str, str], Sequence[Translation]]  # of (system, part), greedily


@dataclass(frozen=True)
class FitOptions(fits.FitOptions):
    """How to train."""

    steps: int | None = None
    """Training steps; None: as many as the toolkit that the task is from takes."""
    batch_size: int | None = None
    """Sequences in a batch; None: as many as there."""
    learning_rate: float = 3e-3
    """Adam's, after a warm-up, falling along a cosine to nearly 0."""
    buckets: int = 3
    """The most padded shapes: each is compiled once."""
    seed: int = 0
    """Seed of parameters, order and dropout."""

    def __post_init__(self):
        self.of(TASKS["reverse"])  # refuses what is wrong

    def of(self, task: sequences.Task) -> fits.FitOptions:
        """Return the options with the task's own where there are none."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return fits.FitOptions(**{"steps": task.steps, "batch_size": task.batch_size} | given)


@dataclass(frozen=True)
class SequenceTasks:
    """Train an encoder-decoder with attention to reverse, copy or sort, and count what is right."""

    task: tyro.conf.Positional[TaskName] = "reverse"
    """What to do to a sequence."""
    action: tyro.conf.Positional[Literal["train", "evaluate"]] = "train"
    """Train and evaluate, or evaluate what was trained."""
    model: ModelOptions = field(
        default_factory=lambda: ModelOptions(
            score="bilinear",
            order="step_then_attend",
            cell="lstm",
            embedding=16,
            features=60,
            dropout=0.0,
        )
    )
    fit: FitOptions = field(default_factory=FitOptions)
    beam: int = 5
    """Hypotheses of the beam search beside the greedy one."""
    data_seed: int = 42
    """Seed of the sequences."""
    output: Output = field(default_factory=Output)
    twin: bool = False
    """Train the model without attention as well, of as many parameters."""
    resume: bool = False
    """Go on with an interrupted run of this name and these options."""
    smoke: bool = False
    """A tiny run that takes seconds: few short sequences, a small model, few steps."""

    def __post_init__(self):
        if self.beam < 1:
            raise UserError(f"--beam must be at least 1. Got {self.beam}.")
        if self.data_seed < 0:
            raise UserError(f"--data-seed must not be negative. Got {self.data_seed}.")


def run(options: SequenceTasks) -> None:
    """Train or evaluate."""
    if options.smoke:  # nearly all of its time is compiling
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        options = tiny(options)
    {"train": train, "evaluate": evaluate}[options.action](options)


def tiny(options: SequenceTasks) -> SequenceTasks:
    """Return the options of a run that takes seconds."""
    fit = dataclasses.replace(
        options.fit, steps=options.fit.steps or 20, batch_size=16, evaluate_every=10, buckets=1
    )
    model = dataclasses.replace(options.model, embedding=8, features=8)
    return dataclasses.replace(options, fit=fit, model=model)


def task_of(name: TaskName, *, smoke: bool) -> sequences.Task:
    """Return a task; a tiny run's has few sequences."""
    return dataclasses.replace(TASKS[name], **sequences.TINY) if smoke else TASKS[name]


def train(options: SequenceTasks) -> None:
    """Train a model, and its twin if asked for; evaluate."""
    task = task_of(options.task, smoke=options.smoke)
    output = start(f"{NAME}/{options.task}", options, options.output, resume=options.resume)
    vocabulary = sequences.vocabulary(task)
    saved.write_vocabularies(output.directory, vocabulary, vocabulary)
    data = sequences.generate(task, seed=options.data_seed)
    pairs = [encoded(part, vocabulary) for part in (data.train, data.dev)]
    sizes = (len(vocabulary), len(vocabulary))
    chosen = {"training": options.model}
    if options.twin:
        chosen[saved.TWIN] = models.twin(options.model, *sizes)
    fit_options = options.fit.of(task)
    for directory, each in chosen.items():
        what = TWIN if each.score == "none" else ATTENTION
        count = models.parameters(each, *sizes)
        print(f"{options.task}, {what}: {count:,} parameters, {fit_options.steps:,} steps")
        model = models.build(each, *sizes, seed=fit_options.seed)
        fit = fits.train(model, *pairs, fit_options, output.directory / directory)
        if fit.stopped == "interrupted":
            raise KeyboardInterrupt
    report(options, saved.load(output.directory), output)


def encoded(lines: Lines, vocabulary: Any) -> Pairs:
    """Return both sides as ids."""
    return Pairs(*map(vocabulary.encode_batch, lines))


def evaluate(options: SequenceTasks) -> None:
    """Evaluate a trained model on the sequences of its training's dev and test parts."""
    directory = options.output.output_dir / NAME / options.task / checked_name(options.output.name)
    report(options, saved.load(directory), Run(directory))


def report(options: SequenceTasks, loaded: saved.Saved, output: Run) -> None:
    """Print, write and draw what is right, and how fast it was found."""
    from experiments import sequence_tasks_figures as figures

    task = task_of(options.task, smoke=loaded.options["smoke"])
    data = sequences.generate(task, seed=loaded.options["data_seed"])
    systems = {ATTENTION: loaded.model} | ({TWIN: loaded.twin} if loaded.twin else {})
    if loaded.options["model"]["score"] == "none":
        systems = {TWIN: loaded.model}
    rows, found = [], {}
    for system, model in systems.items():
        for row, decoded in judged(model, data, loaded.source, sorted({1, options.beam})):
            rows.append({"system": system} | row)
            if row["search"] == GREEDY:
                found[system, row["part"]] = decoded
    tables.print_table([readable(row) for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}")
    lengths = by_length(data, found)
    metrics = {"task": options.task, "longest_in_training": task.train.longest}
    output.write_metrics(metrics | {"scores": rows, "by_length": lengths})
    output.write_predictions(predictions(data, found))
    first = found[next(iter(systems)), "test"]
    for name, figure in figures.draw(output.directory, loaded, data.test, first, lengths, task):
        output.write_figure(name, figure)
    print(f"results in  {output.directory}/")
    print(f"pictures in {output.directory / 'figures'}/")


def judged(
    model: Any, data: Sequences, vocabulary: Any, beams: Sequence[int]
) -> Iterator[tuple[dict[str, Any], list[Translation]]]:
    """Yield a row of metrics.json, and what was decoded, for each part and search."""
    parts = {part: getattr(data, part) for part in PARTS}
    perplexity = {part: perplexity_of(model, each, vocabulary) for part, each in parts.items()}
    for beam in beams:
        search = SearchOptions(beam=beam, longest=1.0, length_penalty=1.0)
        translator = Translator([model], vocabulary, search)
        for part, lines in parts.items():
            decoded, speed = timed(translator, vocabulary.encode_batch(lines.source))
            row = {"part": part, "search": GREEDY if beam == 1 else f"beam {beam}"}
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


def right_of(lines: Lines, found: Sequence[Translation]) -> np.ndarray:
    """Return which targets were found exactly."""
    return np.array([a.text == b for a, b in zip(found, lines.target, strict=True)])


def predictions(data: Sequences, found: Found) -> dict[str, list[str]]:
    """Return the columns of predictions.csv: the test part, greedily decoded."""
    columns = {"source": data.test.source, "target": data.test.target}
    decoded = {system: each for (system, part), each in found.items() if part == "test"}
    return columns | {name: [each.text for each in texts] for name, texts in decoded.items()}
