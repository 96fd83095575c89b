"""Pictures of any size and kind as squares of one size, and boxes in them.

A picture is turned as its EXIF data say, laid over white where it lets something through, and made
to fit as a whole: nothing is cut off, and what remains of the square is white.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.harness.errors import UserError

SIZE = 128  # of the square's sides, in pixels
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


class Picture(NamedTuple):
    """A picture in a square, and where: the square's pixel is `scale` · pixel + offset."""

    pixels: np.ndarray  # [SIZE, SIZE, 3], uint8
    scale: float
    offset: tuple[int, int]  # to the right, downwards

    def place(self, box: Box) -> Box:
        """Return a box of the picture as one of the square."""
        return tuple(self.scale * each + self.offset[i % 2] for i, each in enumerate(box))


def read(path: Path) -> Picture:
    """Return a file's picture."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(_of_bytes(opened)).convert("RGBA")
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        known = ", ".join(FORMATS)
        reason = str(error).rstrip(".")
        raise UserError(f"{path} is no picture that can be read ({known}): {reason}.") from error
    white = Image.new("RGBA", image.size, "white")
    return _fitted(Image.alpha_composite(white, image).convert("RGB"))


def _of_bytes(image):
    """Return a picture whose channels are bytes; the 16 bits of a grey one lose the lower eight."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    grey = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    grey.info = image.info
    grey.getexif().update(image.getexif())
    return grey


def _fitted(image) -> Picture:
    from PIL import Image

    scale = SIZE / max(image.size)
    width, height = (max(1, round(scale * side)) for side in image.size)
    offset = (SIZE - width) // 2, (SIZE - height) // 2
    square = Image.new("RGB", (SIZE, SIZE), "white")
    square.paste(image.resize((width, height)), offset)
    return Picture(np.asarray(square), scale, offset)
