"""The command line of all experiments: list them, or run one.

An experiment NAME is one folder `experiments/NAME` (hyphens as underscores) and one row of
`EXPERIMENTS`. The folder's `COMMANDS` are its subcommands (`harness.commands.Command`); the first
is the default. `--help` answers at once: a command's function is imported when it is run.
"""

import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from experiments.harness import runs
from experiments.harness.commands import Command
from experiments.harness.errors import Terminated, UserError, unknown

PROGRAM = "python -m experiments"
# a full or read-only disk
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True)
class Experiment:
    """One row of the table: its name (the folder's, with hyphens) and what it does."""

    name: str
    summary: str


EXPERIMENTS = (
    Experiment(
        "kernel-regression",
        "Fit a curve by attention: a fixed kernel bandwidth against a learned one.",
    ),
    Experiment(
        "invariants",
        "Which implementations of attention, ours and others', obey its invariants.",
    ),
    Experiment(
        "date-translation",
        "Read dates in many languages with attention: which characters make which digit.",
    ),
    Experiment(
        "machine-translation",
        "Train a translator with attention on your own pairs of lines, and translate with it.",
    ),
    Experiment(
        "speech-recognition",
        "Write down speech with attention: audio against characters, on your own recordings too.",
    ),
    Experiment(
        "image-captioning",
        "Describe pictures with attention: which region each word looks at, and whether it should.",
    ),
    Experiment(
        "summarization",
        "Say in a line what a text says, with attention that copies words; on your own texts.",
    ),
    Experiment(
        "dialogue",
        "Answer what is said with attention, trained on conversations; chat with the model.",
    ),
    Experiment(
        "attention-truth",
        "Whether attention looks where it should, by score and normalizer, where that is known.",
    ),
    Experiment(
        "sequence-tasks",
        "Reverse, copy or sort sequences of integers with attention, and count what is right.",
    ),
    Experiment(
        "language-model",
        "Train a Transformer on any text: bits per character, attention maps, text it writes.",
    ),
    Experiment(
        "self-attention",
        "Self-attention in six steps on your sentence; long distance and parallelism, measured.",
    ),
    Experiment(
        "benchmark",
        "How fast and how large implementations of attention are, each checked first.",
    ),
    Experiment(
        "compile",
        "Compile attention for TPUs and GPUs that are not here: time, code, memory, collectives.",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (default: the process's own) and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)

    def chosen():
        if not argv or argv[0] in ("-h", "--help"):
            print(listing())
        else:
            run(find(argv[0]), argv[1:])

    return answered(chosen)


def answered(function: Callable[[], None]) -> int:
    """Call a function, say in a line what a person has to know, and return the exit code."""
    try:
        with terminable():
            function()
        if sys.stdout is not None:
            sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        terminated = isinstance(stop, Terminated)
        what = "terminated" if terminated else "interrupted"
        print(f"{what}: what is done is kept", file=sys.stderr)
        return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
    except BrokenPipeError:  # the reader closed the pipe
        _discard_output()
        return 141
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = "" if error.filename is None else f" {error.filename}"
        print(f"error: cannot write{where}: {error.strerror}.", file=sys.stderr)
        _discard_output()
        return 2
    except SystemExit as stop:  # tyro's, after --help (0) or an option that it refused (2)
        return stop.code if isinstance(stop.code, int) else 2
    return 0


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, where nobody else has a use for it."""

    def terminate(*_):
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _discard_output() -> None:
    """Write what the standard output refuses nowhere: at the end it would be tried again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def listing() -> str:
    """Return the usage and one line per experiment."""
    width = max(len(each.name) for each in EXPERIMENTS)
    rows = [f"  {each.name:{width}}  {each.summary}" for each in EXPERIMENTS]
    return "\n".join(
        [
            f"usage: {PROGRAM} NAME [COMMAND] [options]",
            "",
            "experiments:",
            *rows,
            "",
            f"{PROGRAM} NAME --help shows the commands of one, or its options.",
        ]
    )


def find(name: str) -> Experiment:
    """Return the experiment of that name."""
    by_name = {each.name: each for each in EXPERIMENTS}
    written = name.replace("_", "-")  # the module's name is understood too
    if written not in by_name:
        raise unknown("experiment", name, by_name)
    return by_name[written]


def run(experiment: Experiment, argv: Sequence[str]) -> None:
    """Parse the options of one of the experiment's commands and run it."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        raise UserError("the command line needs tyro: pip install -r requirements.txt") from error
    package = f"experiments.{experiment.name.replace('-', '_')}"
    commands: Mapping[str, Command] = importlib.import_module(package).COMMANDS
    classes = {name: each.options for name, each in commands.items()}
    command, *rest = argv if argv and argv[0] in commands else (next(iter(commands)), *argv)
    name = f"{PROGRAM} {experiment.name}"
    how = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    try:
        if len(commands) == 1:
            options = tyro.cli(classes[command], args=rest, prog=name, config=how)
        else:
            about = f"{experiment.summary} Without a command: {command} ({name} {command} --help)."
            args = argv if argv[:1] in (["-h"], ["--help"]) else [command, *rest]
            options = tyro.extras.subcommand_cli_from_dict(
                classes, args=args, prog=name, description=about, config=how
            )
    except SystemExit as stop:
        late = [each for each in rest if each in commands]
        if stop.code and late:
            print(f"A command comes before its options: {name} {late[0]} …", file=sys.stderr)
        raise
    try:
        commands[command].run(options)
    finally:
        runs.end()
