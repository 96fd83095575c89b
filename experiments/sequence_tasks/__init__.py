r"""Reverse, copy and sort sequences of integers: what attention learns, counted exactly.

    python -m experiments sequence-tasks                     reverse
    python -m experiments sequence-tasks sort --twin         and a model without attention beside
    python -m experiments sequence-tasks reverse evaluate    the numbers, and how fast it decodes

The tasks, and how many updates a model gets, are those of JoeyNMT's and Sockeye's own tests
(`sequences.py`). A sixth of what reverse is tested with is longer than any sequence in training.

Expected, with 100,182 parameters and greedily: reverse gets 99.9 to 100 BLEU and 99.4 to 100 %
exactly right on dev and test, in 8,000 steps, two to three minutes on two cores; without attention
it gets 32 to 33 BLEU and 39 to 41 %, none of the sequences longer than 20. Copy and sort are
learned within a minute: perplexity 1.00 and 100 BLEU.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from experiments.data import integers as sequences
from experiments.data.integers import TASKS, TaskName
from experiments.harness import tables
from experiments.harness.actions import require_heeded
from experiments.harness.errors import UserError
from experiments.harness.runs import Output, Run, checked_name, compile_quickly, require_same, start
from experiments.seq2seq import models, saved
from experiments.seq2seq import train as fits
from experiments.seq2seq.models import ModelOptions
from experiments.sequence_tasks import report as results

NAME = "sequence-tasks"
ATTENTION, TWIN = "attention", "no attention"


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
        require_heeded(self, {"twin": ("train",), "resume": ("train",)})
        if self.beam < 1:
            raise UserError(f"--beam must be at least 1. Got {self.beam}.")
        if self.data_seed < 0:
            raise UserError(f"--data-seed must not be negative. Got {self.data_seed}.")


def run(options: SequenceTasks) -> None:
    """Train or evaluate."""
    if options.smoke:
        compile_quickly()
        options = tiny(options)
    {"train": train, "evaluate": evaluate}[options.action](options)


def tiny(options: SequenceTasks) -> SequenceTasks:
    """Return the options of a run that takes seconds."""
    fit = dataclasses.replace(
        options.fit, steps=options.fit.steps or 20, batch_size=16, evaluate_every=10, buckets=1
    )
    model = dataclasses.replace(options.model, embedding=8, features=2 * options.model.heads)
    return dataclasses.replace(options, fit=fit, model=model)


def task_of(name: TaskName, *, smoke: bool) -> sequences.Task:
    """Return a task; a tiny run's has few sequences."""
    return dataclasses.replace(TASKS[name], **sequences.TINY) if smoke else TASKS[name]


def train(options: SequenceTasks) -> None:
    """Train a model, and its twin if asked for; evaluate."""
    if options.resume:  # what cannot be is refused at once
        require_same(run_directory(options), options)
    task = task_of(options.task, smoke=options.smoke)
    fit_options = options.fit.of(task)
    vocabulary = sequences.vocabulary(task)
    data = sequences.generate(task, seed=options.data_seed)
    pairs, dev = (results.encoded(part, vocabulary) for part in (data.train, data.dev))
    batches = fits.batches(pairs, fit_options)
    sizes = (len(vocabulary), len(vocabulary))
    chosen = {saved.TRAINING: options.model}
    if options.twin:
        chosen[saved.TWIN] = models.twin(options.model, *sizes)
    counts = {directory: models.parameters(each, *sizes) for directory, each in chosen.items()}
    # All that can be refused is refused by now: from here on an earlier run of the name is gone.
    checksums = saved.checksums(vocabulary, vocabulary, batches)
    name = f"{NAME}/{options.task}"
    output = start(name, options, options.output, resume=options.resume, checksums=checksums)
    saved.write_vocabularies(output.directory, vocabulary, vocabulary)
    for directory, each in chosen.items():
        what, count = TWIN if each.score == "none" else ATTENTION, counts[directory]
        print(f"{options.task}, {what}: {count:,} parameters, {fit_options.steps:,} steps")
        model = models.build(each, *sizes, seed=fit_options.seed)
        fits.train(model, batches, dev, fit_options, output.directory / directory)
    report(options, saved.load(output.directory), output)


def evaluate(options: SequenceTasks) -> None:
    """Evaluate a trained model on the sequences of its training's dev and test parts."""
    directory = run_directory(options)
    report(options, saved.load(directory), Run(directory))


def run_directory(options: SequenceTasks) -> Path:
    """Return the directory of the run that is named."""
    return options.output.output_dir / NAME / options.task / checked_name(options.output.name)


def report(options: SequenceTasks, loaded: saved.Saved, output: Run) -> None:
    """Print, write and draw what is right, and how fast it was found."""
    from experiments.sequence_tasks import figures

    task = task_of(options.task, smoke=loaded.options["smoke"])
    data = sequences.generate(task, seed=loaded.options["data_seed"])
    systems = {ATTENTION if loaded.attends else TWIN: loaded.model}
    if loaded.attends and (twin := saved.load_twin(loaded)):
        systems[TWIN] = twin
    rows, found = [], {}
    for system, model in systems.items():
        for row, decoded in results.judged(model, data, loaded.source, options.beam):
            rows.append({"system": system} | row)
            if row["search"] == results.GREEDY:
                found[system, row["part"]] = decoded
    lengths = results.by_length(data, found)
    metrics = {"task": options.task, "longest_in_training": task.train.longest}
    output.write_metrics(metrics | {"scores": rows, "by_length": lengths})
    output.write_predictions(results.predictions(data, found))
    tables.print_table([results.readable(row) for row in rows])
    print(f"BLEU {rows[0]['bleu_signature']}\n\nexact match by length, greedy, dev and test")
    tables.print_table(results.in_fives(lengths))
    output.clear_figures()
    first = found[next(iter(systems)), "test"]
    for name, figure in figures.draw(output.directory, loaded, data.test, first, lengths, task):
        output.write_figure(name, figure)
    output.say_where()


COMMANDS = {"run": run}
