"""Mistakes of the person at the command line, told apart from bugs."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):  # no ValueError: tyro would print one of options in its own words
    """What was asked for cannot be done; the command line prints it as one line, no traceback."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what Slurm and Kubernetes send. It is kept what Ctrl-C keeps."""


@contextmanager
def as_user_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, whose messages say what is wrong, into one line for the user."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from error


def unknown(what: str, name: str, known: Iterable[str], *, hint: str = "") -> UserError:
    """Return the error for a name that is not among those known, with the nearest one.

    >>> unknown("planet", "Marz", ["Mars", "Venus"])
    UserError("unknown planet 'Marz'. Did you mean 'Mars'? Known: Mars, Venus.")
    """
    by_fold = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.4)
    guess = f" Did you mean {by_fold[near[0]]!r}?" if near else ""
    return UserError(f"unknown {what} {name!r}.{guess} Known: {listed(by_fold.values())}.{hint}")


def require_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first of these names that is not known."""
    for name in names:
        if name not in known:
            raise unknown(what, name, known)


def listed(names: Iterable[str], *, most: int = 20) -> str:
    """Return names separated by commas, the tail of a long list as its length only."""
    names = list(names)
    rest = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
