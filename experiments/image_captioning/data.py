"""Pictures and captions: scenes out of the box, or a user's own, and what a model takes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attn_jax import text
from attn_jax.training import progress
from experiments.data import captions, scenes
from experiments.data.captions import Captioned
from experiments.data.pairs import Pairs, Parts
from experiments.harness.errors import as_user_errors
from experiments.image_captioning import EvaluationPictures, Pictures

WORDS = 6000  # the most of a vocabulary
SHOWN = 2000  # scenes between reports of how many are made
HELD_OUT = {"dev": 200, "test": 500}  # scenes
TEST = Parts._fields.index("test")


def load(options: Pictures) -> Parts:
    """Return pictures with captions: to train on, to choose by, to test on."""
    if options.images is not None:
        parts = captions.divided(captions.read(options.images, options.captions))
    else:
        parts = Parts(*(_scenes(options, part) for part in scenes.PARTS))
    sizes = ", ".join(f"{name}: {len(part):,}" for name, part in parts._asdict().items())
    print(f"{sizes} pictures")
    return parts


def load_test(options: EvaluationPictures, before: dict[str, Any]) -> list[Captioned]:
    """Return the pictures that are named now, or the test ones of a training's options.

    Of those that are named now, all are evaluated, or those that the file says are test ones.
    """
    if options.images is not None:
        found = captions.read(options.images, options.captions)
        test = [example for part, example in found if part == TEST]
        return test or [example for _, example in found]
    paths = {name: before[name] and Path(before[name]) for name in ("images", "captions")}
    with as_user_errors(TypeError):  # a run of another version has other options
        then = Pictures(**before | paths | {"data_dir": options.data_dir})
    return load(then).test if then.images is not None else _scenes(then, "test")


def vocabulary(examples: Sequence[Captioned]) -> text.Vocabulary:
    """Return the words of captions."""
    with as_user_errors(ValueError):
        return text.Vocabulary.train(captions.pairs(examples).target, size=WORDS)


def encoded(pairs: Pairs, target: text.Vocabulary) -> Pairs:
    """Return pictures and captions as a model takes them."""
    return Pairs(pairs.source, target.encode_batch(pairs.target))


def first(examples: Sequence[Captioned]) -> Pairs:
    """Return each picture with its first caption."""
    return Pairs([each.image for each in examples], [each.captions[0] for each in examples])


def gold(examples: Sequence[Captioned], target: text.Vocabulary, cells: int) -> list[np.ndarray]:
    """Return for each token of first captions which cells of the grid it should look at."""
    side, found = round(cells**0.5), []
    for each in examples:
        caption = each.captions[0]
        found.append(captions.regions(target.words(caption), caption, each, side))
    return found


def _scenes(options: Pictures, part: scenes.Part) -> list[Captioned]:
    """The scenes of a part; a tiny run's are of plain squares, which need no download."""
    stamp = scenes.plain_stamp if options.smoke else scenes.openmoji_stamp(options.data_dir)
    made = scenes.Scenes(options.language, stamp)
    count = HELD_OUT.get(part, options.scenes)
    if options.smoke:
        count = min(count, options.scenes, 16 if part in HELD_OUT else options.scenes)
    found = []
    with progress.show(count, 0, count >= SHOWN) as shown:
        for number in range(count):
            found.append(made(part, number))
            shown.stepped(number + 1, 1)
            if (number + 1) % SHOWN == 0:
                shown.reported(number + 1, {})
    return found
