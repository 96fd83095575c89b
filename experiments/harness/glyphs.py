"""Characters as a picture's labels show them, whatever the fonts of the machine can draw."""

import sys
import unicodedata
from collections.abc import Iterable

from attn_jax.plots.style import drawable
from experiments.harness.errors import listed

SIGNS = {" ": "␣", "\u00a0": "⍽", "\u202f": "⍽", "\u200e": "→", "\u200f": "←"}


def visible(character: str) -> str:
    """Return a character as a label shows it: a sign if it is invisible, a code if no font has it.

    >>> visible("a"), visible("\N{RIGHT-TO-LEFT MARK}"), visible("\N{COMBINING ACUTE ACCENT}")
    ('a', '←', '◌́')
    """
    category = unicodedata.category(character)[0]
    if character in SIGNS:
        return SIGNS[character]
    if character not in drawable() or category in "CZ":
        return f"{ord(character):04X}"
    return f"◌{character}" if category == "M" else character


def label(token: str) -> str:
    """Return a token as a label shows it: its characters' codes where a font is missing.

    >>> label("▁aé"), label("a\U000f0000")
    ('▁aé', 'a F0000')
    """
    return token if drawable().issuperset(token) else " ".join(map(visible, token))


def readable(text: str) -> str:
    """Return a text with a sign for each character that no font here can draw."""
    return "".join(each if each in drawable() else "□" for each in text)


def say_missing(texts: Iterable[str]) -> None:
    """Say once which characters of the texts in pictures no font here draws."""
    characters = {each for text in texts for each in text if each.isprintable()}
    if missing := sorted(characters - drawable()):
        codes = [f"{each} ({ord(each):04X})" for each in missing]
        what = f"no font here draws {listed(codes, most=8)}"
        print(f"{what}: pictures show codes. Noto Sans CJK, say, has many.", file=sys.stderr)
