"""Pictures with captions, and boxes of what these name; those of a user, from three kinds of file.

    lines      file<TAB>caption
    COCO       {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}; boxes:
               annotations with "bbox" and "category_id", and "categories": [{"id", "name"}]
    Karpathy   {"images": [{"filename", "split", "sentences": [{"raw"}]}]}, with "filepath" or not

Files of lines and COCO's have no test part: every tenth picture is held out as dev, and the next
one as test. A box is one of a caption's words where the caption has the name of its category.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import pictures
from experiments.data.pairs import Pairs, Parts
from experiments.data.pictures import Box
from experiments.harness.errors import UserError, as_user_errors

HELD_OUT = 10  # one picture of so many is for dev, the next one for test
KARPATHY = {"train": 0, "restval": 0, "val": 1, "test": 2}


@dataclasses.dataclass(frozen=True)
class Captioned:
    """A picture and what is said of it."""

    image: np.ndarray
    """[size, size, 3], uint8."""
    captions: tuple[str, ...]
    objects: tuple[tuple[str, Box], ...] = ()
    """What the captions may name, and where in the image it is."""
    name: str = ""

    def named(self, caption: str) -> list[tuple[range, Box]]:
        """Return which words of a caption name which box."""
        words = [word.strip(".,;:!?\"'()").casefold() for word in caption.split()]
        found = []
        for name, box in self.objects:
            parts = name.casefold().split()
            starts = range(len(words) - len(parts) + 1)
            at = [range(i, i + len(parts)) for i in starts if words[i : i + len(parts)] == parts]
            found += [(each, box) for each in at]
        return found


def pairs(examples: Iterable[Captioned]) -> Pairs:
    """Return each picture with each of its captions."""
    both = [(each.image, caption) for each in examples for caption in each.captions]
    return Pairs(*map(list, zip(*both, strict=True))) if both else Pairs([], [])


def regions(words: list[int], caption: str, example: Captioned, side: int) -> np.ndarray:
    """Return for each token of a caption the cells [side · side] of the boxes that it names.

    `words` is the word of each token.
    """
    gold = np.zeros((len(words), side * side), bool)
    for named, box in example.named(caption):
        gold[np.isin(words, named)] |= cells(box, side, len(example.image))
    return gold


def cells(box: Box, side: int, size: int) -> np.ndarray:
    """Return which cells [side · side] of a picture of `size` pixels on each side are in a box.

    Those are the cells whose centres it holds, and the one that its own centre is in.

    >>> cells((0, 0, 8, 4), 2, 16).tolist()
    [True, False, False, False]
    """
    left, top, right, bottom = box
    centres = (np.arange(side) + 0.5) * size / side
    down, across = (centres >= top) & (centres < bottom), (centres >= left) & (centres < right)
    inside = down[:, None] & across[None]
    middle = np.array([top + bottom, left + right]) / 2 * side / size
    inside[tuple(middle.astype(int).clip(0, side - 1))] = True
    return inside.ravel()


def read(images: Path, file: Path) -> list[tuple[int | None, Captioned]]:
    """Return the pictures of a folder that a file has captions of, and the part of each, if any."""
    if not images.is_dir():
        raise UserError(f"--images needs a folder. Got {images}.")
    listed = (_json if file.suffix.lower() == ".json" else _lines)(file, images)
    found = []
    for path, part, captions, objects in listed:
        picture = pictures.read(path)
        placed = tuple((name, picture.place(box)) for name, box in objects)
        name = str(path.relative_to(images))
        found.append((part, Captioned(picture.pixels, tuple(captions), placed, name)))
    return found


def divided(found: list[tuple[int | None, Captioned]]) -> Parts:
    """Return the pictures to train on, to choose by and to test on."""
    parts = Parts([], [], [])
    few = min(HELD_OUT, len(found))
    for number, (part, example) in enumerate(found):
        held = {0: 1, 1: 2}.get(number % few, 0)
        parts[held if part is None else part].append(example)
    if not all(parts):
        sizes = ", ".join(f"{len(part)} {name}" for name, part in parts._asdict().items())
        raise UserError(f"--captions needs pictures to train on, dev and test ones. Got {sizes}.")
    return parts


def _lines(file: Path, images: Path) -> list[Any]:
    from attn_jax import text

    with as_user_errors(ValueError):
        lines = text.read_lines(file)
    captions = collections.defaultdict(list)
    for number, line in enumerate(lines, 1):
        name, tab, caption = line.partition("\t")
        where = f"line {number} of {file}"
        if not tab:
            raise UserError(f"--captions needs lines file<TAB>caption. Got {line!r}: {where}.")
        captions[_path(images, name, where)].append(caption)
    return [(path, None, said, ()) for path, said in captions.items()]


def _json(file: Path, images: Path) -> list[Any]:
    from attn_jax import text

    try:
        read = json.loads(text.read_text(file))
        of_karpathy = any("sentences" in each for each in read["images"])
        return (_karpathy if of_karpathy else _coco)(read, file, images)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__} {error}"
        raise UserError(f"--captions {file} is neither COCO's nor Karpathy's: {what}.") from error
    except ValueError as error:
        raise UserError(f"--captions {file} cannot be read: {error}.") from error


def _karpathy(read: Any, file: Path, images: Path) -> list[Any]:
    return [
        (
            _path(images, str(Path(each.get("filepath", "")) / each["filename"]), str(file)),
            KARPATHY[each["split"]],
            [sentence["raw"] for sentence in each["sentences"]],
            (),
        )
        for each in read["images"]
    ]


def _coco(read: Any, file: Path, images: Path) -> list[Any]:
    captions, objects = collections.defaultdict(list), collections.defaultdict(list)
    categories = {each["id"]: each["name"] for each in read.get("categories", ())}
    for each in read["annotations"]:
        if "caption" in each:
            captions[each["image_id"]].append(each["caption"])
        if "bbox" in each:
            left, top, width, height = each["bbox"]
            box = (left, top, left + width, top + height)
            objects[each["image_id"]].append((categories[each["category_id"]], box))
    files = {each["id"]: each["file_name"] for each in read["images"]}
    return [
        (_path(images, files[number], str(file)), None, said, objects[number])
        for number, said in captions.items()
    ]


def _path(images: Path, name: str, where: str) -> Path:
    path = images / name
    if not path.is_file():
        raise UserError(f"--images {images} has no file {name}, which {where} names.")
    return path
