"""One style of all pictures: ink, colours that the colour-blind tell apart, fonts, and files."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure

INK = "#333333"
FAINT = "#b8b8b8"
# Okabe & Ito (2008), without the yellow, which white paper swallows
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# fmt: off
FALLBACK_FONTS = (
    "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC",
    "Source Han Sans", "WenQuanYi Zen Hei", "Hiragino Sans", "PingFang SC", "Microsoft YaHei",
    "Yu Gothic", "Malgun Gothic", "Arial Unicode MS",
)
# fmt: on
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
}


def save(figure: Figure, path: str | PathLike[str], *, dpi: int = 150) -> None:
    """Write the figure to a file; the same figure gives the same bytes."""
    with styled():
        figure.savefig(path, dpi=dpi)


@contextmanager
def styled() -> Iterator[None]:
    """Use `STYLE`, with the fonts that this machine has, until the end of the block."""
    with mpl.rc_context(STYLE | {"font.family": list(fonts())}):
        yield


@functools.cache
def drawable() -> frozenset[str]:
    """Return the characters that the fonts of this machine draw; others become empty boxes."""
    found: set[str] = set()
    for family in fonts():
        font = font_manager.get_font(font_manager.findfont(family))
        found.update(map(chr, font.get_charmap()))
    return frozenset(found)


def fonts() -> tuple[str, ...]:
    """Return the font families in the order in which a missing letter is looked for."""
    here = set(font_manager.fontManager.get_font_names())
    return ("DejaVu Sans", *(each for each in FALLBACK_FONTS if each in here))
