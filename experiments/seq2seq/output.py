"""Files that `translate` writes beside its output: links line by line, a picture."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from attn_jax import metrics, plots
from attn_jax.plots.explore import Page
from experiments.harness.errors import UserError, listed
from experiments.harness.files import refusing, write_with
from experiments.harness.glyphs import say_missing
from experiments.seq2seq import alignments
from experiments.seq2seq.figures import heat_map, page
from experiments.seq2seq.translator import Translation

ALIGNMENTS, PLOT = "--alignments", "--plot"
PAGE = ".html"


def writable(path: Path | None, option: str) -> Path | None:
    """Return a path that a file can be written to, as far as that shows beforehand."""
    if path is None:
        return None
    if path.is_dir():
        raise UserError(f"{option} needs a file. Got the directory {path}.")
    if not path.parent.is_dir():
        raise UserError(f"{option} needs a file in a directory that exists. Got {path}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option} needs a file that may be written. Got {path}.")
    return path


def picture(path: Path | None) -> Path | None:
    """Return where a picture goes: PNG unless its suffix says otherwise; .html is a page."""
    if path is None:
        return None
    if path.name and not path.suffix:
        path = path.with_name(f"{path.name}.png")
    known = sorted([*FigureCanvasBase.get_supported_filetypes(), PAGE[1:]])
    if path.suffix[1:].lower() not in known:
        raise UserError(f"{PLOT} needs a suffix of {listed(known)}. Got {path.suffix!r}.")
    return writable(path, PLOT)


@contextmanager
def opened(path: Path | None) -> Iterator[IO[str] | None]:
    """Open a new file of links; without a path there is none."""
    if path is None:
        yield None
        return
    with refusing(path, ALIGNMENTS):
        stream = path.open("w", encoding="utf-8", newline="\n")
    try:
        yield stream
    finally:
        with refusing(path, ALIGNMENTS):
            stream.close()


def write_links(
    stream: IO[str], source: str, best: list[Translation], vocabularies: tuple[Any, Any]
) -> None:
    """Write a line of links for each translation of a line, in Pharaoh's format, at once."""
    with refusing(Path(stream.name), ALIGNMENTS):
        for each in best:
            found = alignments.links(source, each, vocabularies)
            stream.write(metrics.to_pharaoh(found) + "\n")
        stream.flush()


def draw(path: Path, source: str, translation: Translation, vocabularies: tuple[Any, Any]) -> bool:
    """Draw the weights of a line, if there are any; say whether there were."""
    drawn = translation, vocabularies
    return save(path, lambda: heat_map(source, *drawn), lambda: page(source, *drawn), source)


def save(
    path: Path, figure: Callable[[], Figure | None], page: Callable[[], Page | None], *texts: str
) -> bool:
    """Write a picture, or a page to explore, if there is any; say whether there was."""
    made = page() if path.suffix.lower() == PAGE else figure()
    if made is None:
        return False
    if isinstance(made, Page):
        write_with(path, made.save, option=PLOT)
    else:
        say_missing(texts)
        write_with(path, lambda temporary: plots.save(made, temporary), option=PLOT)
    return True
