"""Progress: a live bar on a terminal, plain lines now and then elsewhere."""

import contextlib
import datetime
import time
from typing import Any

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REDRAWS = 0.1


class Progress:
    """Speed and remaining time of a run, printed as lines; without `visible`, not at all."""

    def __init__(self, steps: int, step: int, visible: bool):
        self.steps, self.visible = steps, visible
        self._first_step = self._row_step = step
        self._started = self._row_time = time.perf_counter()
        self._compiling = self._row_compiling = 0.0
        self._examples = 0
        self._last_line = -float("inf")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        pass

    @contextlib.contextmanager
    def compiling(self, step: int):
        """Say that XLA compiles; its time is no part of the speed."""
        self._say(f"step {step}/{self.steps}  compiling")
        started = time.perf_counter()
        yield
        elapsed = time.perf_counter() - started
        self._compiling += elapsed
        self._row_compiling += elapsed

    def stepped(self, step: int, examples: int | None) -> None:
        """Count one step's examples."""
        self._examples += examples or 0

    def reported(self, step: int, row: dict[str, Any]) -> None:
        """Show a row, with the speed since the one before."""
        now = time.perf_counter()
        seconds = max(now - self._row_time - self._row_compiling, 1e-9)
        speed, examples = (step - self._row_step) / seconds, self._examples / seconds
        working = now - self._started - self._compiling
        left = working / max(step - self._first_step, 1) * (self.steps - step)
        self._row_step, self._row_time, self._row_compiling, self._examples = step, now, 0.0, 0
        if now - self._last_line >= SECONDS_BETWEEN_LINES or step >= self.steps:
            self._last_line = now
            self._say("  ".join(_words(step, self.steps, row, speed, examples, left)))

    def note(self, words: str) -> None:
        """Say something that happens once."""
        self._say(words)

    def _say(self, words: str) -> None:
        if self.visible:
            print(words, flush=True)


class Bar(Progress):
    """The same on one live line of a terminal."""

    def __init__(self, steps: int, step: int, console: Any):
        import rich.progress

        super().__init__(steps, step, True)
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=steps, completed=step)
        self._redrawn, self._done = 0.0, step

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *error) -> None:
        self._bar.update(self._task, completed=self._done)
        self._bar.stop()

    def stepped(self, step: int, examples: int | None) -> None:
        """Count one step's examples and move the bar, a few times a second at most."""
        super().stepped(step, examples)
        self._done = step
        now = time.perf_counter()
        if now - self._redrawn >= SECONDS_BETWEEN_REDRAWS:
            self._redrawn = now
            self._bar.update(self._task, completed=step)

    def reported(self, step: int, row: dict[str, Any]) -> None:
        """Show every row: a live line cannot flood anyone."""
        self._last_line = -float("inf")
        super().reported(step, row)
        self._bar.update(self._task, completed=step)

    def note(self, words: str) -> None:
        """Print above the bar."""
        self._bar.console.print(words, markup=False, highlight=False)

    def _say(self, words: str) -> None:
        # The bar counts the steps itself.
        self._bar.update(self._task, description=words.split("  ", 1)[-1].replace("[", r"\["))


def show(steps: int, step: int, progress: bool) -> Progress:
    """A bar where stdout is a terminal, lines where it is not, silence where none is wanted."""
    if not progress:
        return Progress(steps, step, False)
    import rich.console

    console = rich.console.Console()
    return Bar(steps, step, console) if console.is_terminal else Progress(steps, step, True)


def _words(
    step: int, steps: int, row: dict[str, Any], speed: float, examples: float, left: float
) -> list[str]:
    numbers = {name: row[name] for name in row if name not in {"step", "seconds", "evaluation"}}
    evaluation = row.get("evaluation", {})
    words = [f"step {step}/{steps}"]
    words += [f"{name} {_short(number)}" for name, number in numbers.items()]
    words += [f"evaluation {name} {_short(number)}" for name, number in evaluation.items()]
    words.append(f"{speed:,.3g} steps/s" if speed < 1000 else f"{speed:,.0f} steps/s")
    if examples:
        words.append(f"{examples:,.0f} examples/s")
    return [*words, f"{datetime.timedelta(seconds=round(left))} left"]


def _short(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.4g}"
