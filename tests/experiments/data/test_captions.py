"""Pictures of every kind, files of captions, boxes; what is wrong in them is named."""

import json

import numpy as np
import pytest
from PIL import Image

from experiments.data import captions, pictures
from experiments.data.captions import Captioned
from experiments.harness.errors import UserError

SIZE = pictures.SIZE
RED, BLUE = (255, 0, 0), (0, 0, 255)


def halves(size=(40, 20), mode="RGB"):
    """Red to the left, blue to the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    return image.convert(mode)


def test_a_wide_picture_is_shown_whole_with_white_around_it(tmp_path):
    halves().save(tmp_path / "a.png")
    pixels, scale, offset = pictures.read(tmp_path / "a.png")
    assert (pixels.shape, pixels.dtype, scale, offset) == ((SIZE, SIZE, 3), np.uint8, 3.2, (0, 32))
    assert (pixels[:32] == 255).all()
    assert (pixels[-32:] == 255).all()
    assert pixels[64, 5].tolist() == list(RED)
    assert pixels[64, -5].tolist() == list(BLUE)
    placed = pictures.read(tmp_path / "a.png").place((20, 0, 40, 20))
    assert placed == pytest.approx((64, 32, 128, 96))


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera stood on its side: turn clockwise
    halves().save(tmp_path / "a.jpg", exif=exif, quality=95)
    pixels = pictures.read(tmp_path / "a.jpg").pixels
    assert np.abs(pixels[5, 64].astype(int) - RED).max() < 20
    assert np.abs(pixels[-5, 64].astype(int) - BLUE).max() < 20


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_pixel(mode, tmp_path):
    grey = np.full((2, 2), 0x8055, np.uint16)
    image = Image.fromarray(grey) if mode == "I;16" else Image.new("L", (2, 2), 128).convert(mode)
    image.save(path := tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"))
    pixels = pictures.read(path).pixels.astype(int)
    assert pixels.shape == (SIZE, SIZE, 3)
    if mode != "1":
        assert np.abs(pixels - 128).max() <= 4
    Image.new("RGBA", (1, 1), (0, 0, 0, 0)).save(tmp_path / "nothing.png")
    assert (pictures.read(tmp_path / "nothing.png").pixels == 255).all()


@pytest.mark.parametrize(("size", "side"), [((1, 1), SIZE), ((3000, 2), 1)])
def test_a_pixel_and_a_line(size, side, tmp_path):
    Image.new("RGB", size, RED).save(tmp_path / "a.png")
    red = (pictures.read(tmp_path / "a.png").pixels == RED).all(-1)
    assert red.sum() == SIZE * side


def test_what_is_no_picture_is_named(tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    halves((400, 400)).save(tmp_path / "whole.png")
    half = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(half[: len(half) // 2])
    for name in ("text.png", "cut.png", "."):
        with pytest.raises(UserError, match="is no picture that can be read"):
            pictures.read(tmp_path / name)
    with pytest.raises(UserError, match="there is no file"):
        pictures.read(tmp_path / "none.png")


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        halves().save(tmp_path / f"{number}.png")
    return tmp_path


def test_lines_of_captions(folder):
    file = folder / "captions.tsv"
    file.write_text("0.png\tred and blue\n1.png\tboth\n0.png\ta flag\n2.png\t\n3.png\tlast\n")
    found = captions.read(folder, file)
    said = {example.name: example.captions for _, example in found}
    assert said == {
        "0.png": ("red and blue", "a flag"),
        "1.png": ("both",),
        "2.png": ("",),
        "3.png": ("last",),
    }
    parts = captions.divided(found)
    assert [[each.name for each in part] for part in parts] == [
        ["2.png", "3.png"],
        ["0.png"],
        ["1.png"],
    ]
    assert captions.pairs(parts.dev).target == ["red and blue", "a flag"]


def test_captions_of_coco_and_their_boxes(folder):
    data = {
        "images": [{"id": 7, "file_name": "0.png"}, {"id": 8, "file_name": "1.png"}],
        "categories": [{"id": 1, "name": "stop sign"}],
        "annotations": [
            {"image_id": 7, "caption": "Blue, a Stop sign."},
            {"image_id": 7, "bbox": [20, 0, 20, 20], "category_id": 1},
        ],
    }
    (folder / "a.json").write_text(json.dumps(data))
    ((part, example),) = captions.read(folder, folder / "a.json")
    assert part is None
    assert example.captions == ("Blue, a Stop sign.",)
    gold = captions.regions([0, 0, 1, 2, 3, 3], example.captions[0], example, 4)
    assert gold.any(axis=1).tolist() == [False, False, False, True, True, True]
    box = np.zeros((4, 4), bool)
    box[1:3, 2:] = True
    np.testing.assert_array_equal(gold[3].reshape(4, 4), box)


def test_karpathys_parts(folder):
    splits = ["train", "restval", "val", "test"]
    images = [
        {"filename": f"{n}.png", "split": split, "sentences": [{"raw": "one"}, {"raw": "two"}]}
        for n, split in enumerate(splits)
    ]
    (folder / "a.json").write_text(json.dumps({"images": images}))
    parts = captions.divided(captions.read(folder, folder / "a.json"))
    assert [[each.name for each in part] for part in parts] == [
        ["0.png", "1.png"],
        ["2.png"],
        ["3.png"],
    ]
    assert parts.test[0].captions == ("one", "two")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "0.png a flag\n", "needs lines file<TAB>caption. Got '0.png a flag': line 1"),
        ("a.tsv", "0.png\ta\n9.png\tb\n", r"has no file 9.png, which line 2 of .*a.tsv names"),
        ("a.tsv", "0.png\tone\n1.png\ttwo\n", "needs pictures to train on, dev and test ones"),
        ("none.tsv", None, "none.tsv"),
        ("a.json", "[1, 2]", "is neither COCO's nor Karpathy's"),
        ("a.json", '{"images": []}', "is neither COCO's nor Karpathy's: KeyError 'annotations'"),
        ("a.json", '{"images": [], "annotations": []}', "needs pictures"),
        ("a.json", "{", "cannot be read"),
    ],
)
def test_mistakes_in_files(name, content, message, folder):
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(UserError, match=message):
        captions.divided(captions.read(folder, folder / name))


def test_a_small_box_has_the_cell_of_its_middle():
    assert captions.cells((1, 1, 2, 2), 2, 8).tolist() == [True, False, False, False]
    nothing = Captioned(np.zeros((8, 8, 3), np.uint8), ("a cat",))
    assert not captions.regions([0, 1], "a cat", nothing, 2).any()
