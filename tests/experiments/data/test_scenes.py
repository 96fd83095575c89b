"""Scenes: captions that are true, boxes that hold the pictures, pairs that training never sees."""

import itertools
import zipfile

import numpy as np
import pytest

from experiments.data import scenes
from experiments.data.scenes import KINDS, LANGUAGES, Scenes, plain_stamp
from experiments.harness.errors import UserError

MADE = Scenes("en", plain_stamp)
SIDES = LANGUAGES["en"].sides


def several(part, count=60):
    return [MADE(part, number) for number in range(count)]


def test_a_caption_is_true():
    """The largest is the subject; each side is where the subject's centre is, by the larger gap."""
    for scene in several("training"):
        (subject, own), *others = scene.objects
        words = scene.captions[0]
        assert words.split()[1] == subject
        centres = [(box[2] + box[0], box[3] + box[1]) for _, box in scene.objects]
        assert all(own[2] - own[0] > box[2] - box[0] for _, box in others)
        assert sorted(centres[1:]) == centres[1:]
        for (name, _), centre in zip(others, centres[1:], strict=True):
            across, down = (ours - its for ours, its in zip(centres[0], centre, strict=True))
            side = ("right of" if across > 0 else "left of") if abs(across) > abs(down) else None
            side = side or ("below" if down > 0 else "above")
            article = "an" if name[0] in "aeiou" else "a"
            assert f"{side} {article} {name}" in words


def test_a_box_holds_its_picture_and_no_other():
    for scene in several("dev", 20):
        ground = scene.image[0, 0] if (scene.image[0, 0] >= 215).all() else scene.image[-1, -1]
        drawn = (scene.image != ground).any(-1)
        for _, (left, top, right, bottom) in scene.objects:
            assert drawn[top:bottom, left:right].all()
            drawn[top:bottom, left:right] = False
        assert not drawn.any()


def test_training_never_sees_the_subjects_pairs_of_the_test():
    def pairs(names):
        return {frozenset(pair) for pair in itertools.combinations(names, 2)}

    seen = set().union(*(pairs(n for n, _ in each.objects) for each in several("training", 500)))
    for scene in several("test"):
        (subject, _), *others = scene.objects
        assert not {frozenset((subject, name)) for name, _ in others} & seen
    names = {name for each in several("test", 300) for name, _ in each.objects}
    assert len(names) > 60
    unseen = scenes.unseen_pairs()
    assert (unseen == unseen.T).all()
    assert not unseen.diagonal().any()


def test_a_scene_is_a_function_of_its_number():
    first, again, other = (
        MADE("training", 3),
        Scenes("en", plain_stamp)("training", 3),
        MADE("dev", 3),
    )
    np.testing.assert_array_equal(first.image, again.image)
    assert first.objects == again.objects != other.objects


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_names_each_kind_otherwise(language):
    made = Scenes(language, plain_stamp)
    assert len(set(made.names)) == len(KINDS)
    for number in range(20):
        scene = made("test", number)
        (caption,) = scene.captions
        found = [" ".join(caption.split()[w] for w in words) for words, _ in scene.named(caption)]
        assert found == [name for name, _ in scene.objects]


def test_an_unknown_language_is_named():
    with pytest.raises(UserError, match=r"unknown language 'eng'\. Did you mean 'en'"):
        Scenes("eng", plain_stamp)


def test_stamps_are_openmojis_drawings(tmp_path, monkeypatch):
    green = '<path fill="#0f0" d="M0 0h1v2H0z"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 2">{green}</svg>'
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for kind in KINDS:
            archive.writestr(f"{scenes.FOLDER}/{ord(kind):04X}.svg", svg)
    monkeypatch.setattr(scenes, "obtain", lambda wheel, data_dir: tmp_path / "a.whl")
    stamp = scenes.openmoji_stamp()(0, 16)
    assert stamp.shape == (16, 16, 4)
    assert (stamp[8, 2] == [0, 255, 0, 255]).all()
    assert stamp[8, 12, 3] == 0
