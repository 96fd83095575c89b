"""What an invariant is, and how it is searched for a counterexample."""

import dataclasses
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, assume
from hypothesis.strategies import SearchStrategy

from attn_jax.checks import require
from attn_jax.testing.frameworks import FRAMEWORKS, NumPy, framework_of
from attn_jax.testing.reports import PropertyViolation, Report, Result
from attn_jax.testing.strategies import representable

Case = dict[str, Any]
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is known of the function that is tested, and how it is tested."""

    examples: int
    skip: frozenset[str]
    only: frozenset[str] | None
    supports_mask: bool
    differentiable: bool
    dtypes: tuple[str, ...]
    output_dtype: str | None
    reference: Callable[..., Any] | None
    tolerance: float | None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The function under test, and the ways in which an invariant evaluates it."""

    function: NumPy
    options: Options

    def __call__(self, *arrays: Any, mask: Any = None) -> np.ndarray:
        """The output, as float64."""
        return self.function(arrays, mask)

    def gradient(self, *arrays: Any, mask: Any = None, cotangent: Any) -> list[np.ndarray]:
        """The gradient of Σ cotangent · output in each array, as float64."""
        return self.function.gradient(arrays, mask, cotangent)

    def promises(self, invariant: str) -> bool:
        """Whether another invariant is expected to hold."""
        return invariant not in self.options.skip

    def tolerance(self, *arrays: np.ndarray, gradient: bool = False) -> float:
        """How far results may differ by rounding: of the least precise array."""
        chosen = self.options.tolerance
        if chosen is None:
            chosen = max(TOLERANCE[each.dtype.name] for each in arrays)
        if gradient:
            chosen *= 10 if "autodiff" in self.function.transforms else 1000
        return chosen


def require_close(what: str, got: Any, expected: Any, tolerance: float) -> None:
    """Raise where got and expected differ by more than tolerance · max(1, |expected|)."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    outputs = {what: got, "expected": expected}
    if got.shape != expected.shape:
        raise PropertyViolation(f"{what} has shape {got.shape}, not {expected.shape}", **outputs)
    with np.errstate(all="ignore"):
        error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
    if np.isnan(error).any():
        raise PropertyViolation(f"{what} is not a number", **outputs)
    if error.max(initial=0) > tolerance:
        raise PropertyViolation(
            f"{what} off by {error.max():.3g}, at most {tolerance:.3g} allowed", **outputs
        )


def require_finite(what: str, got: np.ndarray) -> None:
    """Raise `PropertyViolation` where an entry is NaN or infinite."""
    if not np.isfinite(got).all():
        raise PropertyViolation(f"{what} is not finite", **{what: got})


def require_at_least(what: str, got: np.ndarray, least: Any, tolerance: float) -> None:
    """Raise `PropertyViolation` where an entry is NaN or below its bound."""
    lack = np.max(np.asarray(least) - got, initial=0)
    if not lack <= tolerance:
        raise PropertyViolation(f"{what} too small by {lack:.3g}", **{what: got})


def differences(value: Callable[[np.ndarray], Any], array: np.ndarray) -> np.ndarray:
    """Central differences; where two steps disagree the function is not smooth: no example."""
    array = representable(array, np.dtype("float32"))
    estimates = []
    for step in (2.0**-6, 2.0**-7):
        estimate = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            one = np.zeros_like(array)
            one[place] = step
            above, here, below = value(array + one), value(array), value(array - one)
            estimate[place] = (above - below) / (2 * step)
            assume(abs(above - 2 * here + below) < 5e-2 * step)  # a kink
        estimates.append(estimate)
    assume(np.abs(estimates[0] - estimates[1]).max() < 5e-3)
    return estimates[1]


@dataclass(frozen=True)
class Invariant:
    """One row of a table: what must hold, on which inputs, and what a function needs for it.

    `holds(subject, case)` raises `PropertyViolation` where it fails; `cases(options)` is the
    strategy of its inputs. `needs` names what decides whether it applies: "mask", "gradient",
    "autodiff", "vmap", "jit", "reference", "output_dtype" or an extra option.
    """

    name: str
    statement: str
    holds: Callable[[Subject, Case], None]
    cases: Callable[[Options], SearchStrategy[Case]]
    needs: tuple[str, ...] = ()

    def applies(self, subject: Subject) -> bool:
        """Whether the function has what the invariant is about."""
        options = subject.options
        has = {
            "mask": options.supports_mask,
            "gradient": options.differentiable,
            "reference": options.reference is not None,
            "output_dtype": options.output_dtype is not None,
            **{name: value is not None for name, value in options.extra.items()},
        }
        return all(has.get(need, need in subject.function.transforms) for need in self.needs)

    def broken_by(self, subject: Subject, case: Case) -> PropertyViolation | None:
        """What is wrong on this input, if anything is; an exception of the function is."""
        try:
            self.holds(subject, case)
        except PropertyViolation as broken:
            return broken
        except hypothesis.errors.UnsatisfiedAssumption:
            raise
        except Exception as error:
            line = (str(error).strip() or "no message").splitlines()[0][:200]
            return PropertyViolation(f"it raises {type(error).__name__}: {line}")
        return None

    def examine(self, subject: Subject) -> "Result":
        """Search for an input that breaks it, and for the smallest of those."""
        if not subject.promises(self.name):
            return Result(self.name, self.statement, "not promised")
        if not self.applies(subject):
            return Result(self.name, self.statement, "not applicable")
        seen: list[tuple[Case, PropertyViolation]] = []

        def breaks(case: Case) -> bool:
            broken = self.broken_by(subject, case)
            if broken is not None:
                seen.append((case, broken))
            return broken is not None

        settings = hypothesis.settings(
            max_examples=subject.options.examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        with _nothing_left_on_disk():
            try:
                hypothesis.find(self.cases(subject.options), breaks, settings=settings)
            except hypothesis.errors.NoSuchExample:
                return Result(self.name, self.statement, "holds")
            except hypothesis.errors.Flaky:
                case, broken = seen[-1]
                message = f"{broken.message} (and not each time that it gets this input)"
                return self._failure(case, PropertyViolation(message, **broken.outputs))
        return self._failure(*seen[-1])  # the last that was tried is the smallest

    def _failure(self, case: Case, broken: PropertyViolation) -> "Result":
        return Result(
            self.name, self.statement, "fails", broken.message, case, dict(broken.outputs)
        )


def examine(
    table: Sequence[Invariant],
    fn: Callable[..., Any],
    probe: Sequence[np.ndarray],
    *,
    mask_name: str,
    framework: str,
    options: Options,
) -> Report:
    """Try every invariant of a table on a function."""
    names = [each.name for each in table]
    for argument, given in (("skip", options.skip), ("only", options.only or ())):
        unknown = sorted(set(given) - set(names))
        require(not unknown, argument, f"be among {', '.join(names)}", f"{unknown}")
    known = ("auto", *FRAMEWORKS)
    require(framework in known, "framework", f"be one of {', '.join(known)}", framework)
    positive = isinstance(options.examples, int) and options.examples > 0
    require(positive, "examples", "be a positive integer", options.examples)
    bad = [each for each in options.dtypes if each not in TOLERANCE] or not options.dtypes
    require(not bad, "dtypes", f"be among {', '.join(TOLERANCE)}", f"{options.dtypes}")
    promises = ("input", "accumulation", None)
    fits = options.output_dtype in promises
    rule = "be 'input', 'accumulation' or None"
    require(fits, "output_dtype", rule, repr(options.output_dtype))
    name = framework_of(fn, probe) if framework == "auto" else framework
    subject = Subject(FRAMEWORKS[name](fn, mask_name), options)
    absent = [each for each in options.dtypes if each not in subject.function.dtypes]
    rule = f"be among {', '.join(subject.function.dtypes)}, which {name} has here"
    require(not absent, "dtypes", rule, f"{absent}")
    chosen = [each for each in table if options.only is None or each.name in options.only]
    return Report(tuple(each.examine(subject) for each in chosen))


def promised_dtype(options: Options, given: str) -> str:
    """The output's dtype for inputs of this one."""
    if options.output_dtype == "accumulation" and given in ("float16", "bfloat16"):
        return "float32"
    return given


def names(given: Collection[str] | str) -> frozenset[str]:
    """A set of names; one name may come by itself."""
    return frozenset([given] if isinstance(given, str) else given)


@contextmanager
def _nothing_left_on_disk() -> Iterator[None]:
    """Hypothesis caches what it reads in the user's modules: in a folder that goes away."""
    from hypothesis import configuration

    before = getattr(configuration, "__hypothesis_home_directory", None)
    with tempfile.TemporaryDirectory() as folder:
        configuration.set_hypothesis_home_dir(Path(folder))
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)
