"""Options: frozen dataclasses whose annotations give the range of each number."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

from experiments.harness.errors import UserError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Range:
    """What an option's number must be, in words and as a condition."""

    rule: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Range:
    """Return the range of the numbers from `least` on."""
    return Range(f"at least {least}", lambda number: number >= least)


Positive = Annotated[T, Range("positive and finite", lambda number: 0 < number < math.inf)]
NonNegative = Annotated[T, Range("at least 0 and finite", lambda number: 0 <= number < math.inf)]
Rate = Annotated[float, Range("at least 0 and less than 1", lambda number: 0 <= number < 1)]
Share = Annotated[float, Range("greater than 0 and at most 1", lambda number: 0 < number <= 1)]


class Options:
    """Options that refuse numbers out of range: `steps: Positive[int] = 3`.

    A subclass is a frozen dataclass, with a docstring under each field: the command line's help.
    """

    def __post_init__(self):
        hints = typing.get_type_hints(type(self), include_extras=True)
        for name, hint in hints.items():
            for value, range_ in _ranges(hint, getattr(self, name)):
                if not range_.holds(value):
                    flag = name.replace("_", "-")
                    raise UserError(f"--{flag} must be {range_.rule}. Got {value}.")


def _ranges(hint: Any, value: Any) -> Iterator[tuple[Any, Range]]:
    """Yield each number that a type's ranges concern, beside the range."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return
    if origin is Annotated:
        yield from ((value, each) for each in hint.__metadata__ if isinstance(each, Range))
        yield from _ranges(arguments[0], value)
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from _ranges(each, value)
    elif origin is tuple and arguments[-1] is Ellipsis:
        for each in value:
            yield from _ranges(arguments[0], each)
