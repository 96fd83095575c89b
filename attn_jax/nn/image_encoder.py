"""A convolutional encoder of pictures, whose grid of features is a memory."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Int, Num, PRNGKeyArray

from attn_jax.checks import require
from attn_jax.dropout import drop_units
from attn_jax.nn.arguments import fold, lengths_of, require_rate, require_rngs, sizes_of
from attn_jax.nn.encoders import Encoded, averaged
from attn_jax.position_encodings import sinusoids
from attn_jax.recurrence import real_times

WAVELENGTHS = 100.0  # the longest, over the shortest: a grid has tens of rows, not thousands


class ImageEncoder(nnx.Module):
    """Convolutions over pictures [b, h, w, c]: the cells of the last grid, row by row, in memory.

    The picture falls into patches, each of which a linear map takes. Each further stage halves the
    grid by a convolution of stride 2, and adds another convolution to its own input, both 3 × 3
    (He et al. 2016, figure 2, in the order of their later paper). Each cell gets sines and cosines
    of its row and of its column (Vaswani et al. 2017, §3.5), so that a decoder can tell above from
    below. The summary is the mean over the grid.

    A picture's length is its height: rows beyond it are padding, as tokens are elsewhere. The cell
    of a patch that begins in the picture is real.

    Args:
      width: pixels of a row.
      stages: channels of the patches, and of each stage; the last one is the memory's features.
      channels: of a pixel.
      patch: pixels of a patch's side.
      dropout: rate on the grid.
      rngs: a seed for the parameters.

    >>> encoder = ImageEncoder(8, (4, 6), rngs=nnx.Rngs(0))
    >>> [each.shape for each in encoder(jnp.ones((1, 16, 8, 3), jnp.uint8), jnp.array([16]))[:3]]
    [(1, 2, 6), (1,), (1, 6)]
    """

    def __init__(
        self,
        width: int,
        stages: tuple[int, ...] = (64, 96, 128),
        *,
        channels: int = 3,
        patch: int = 4,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        width, channels, patch = sizes_of(width=width, channels=channels, patch=patch)
        require(len(stages) > 0, "stages", "have one number of channels at least", stages)
        stages = tuple(sizes_of(stages=each)[0] for each in stages)
        require_rngs(rngs)
        require_rate(dropout)
        self.memory_features = self.summary_features = stages[-1]
        self.width, self.channels, self.patch, self.dropout = width, channels, patch, dropout
        how = {"param_dtype": float, "rngs": rngs}
        self.inputs = nnx.Linear(channels * patch**2, stages[0], **how)
        self.halvings = nnx.List(
            nnx.Conv(below, above, (3, 3), strides=2, padding=1, **how)
            for below, above in itertools.pairwise(stages)
        )
        self.convolutions = nnx.List(nnx.Conv(each, each, (3, 3), **how) for each in stages[1:])
        self.norms = nnx.List(
            nnx.LayerNorm(each, **how) for each in (*stages[:-1], *stages[1:], stages[-1])
        )

    def __call__(
        self,
        images: Num[ArrayLike, "b h w c"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode pictures of bytes, or of numbers from 0 to 1; with `rng` units are dropped."""
        images = jnp.asarray(images)
        require(images.ndim == 4, "images", "have shape [batch, height, width, channels]", images)
        row = (self.width, self.channels)
        require(images.shape[2:] == row, "images", f"have rows of {row}", images)
        length = lengths_of("length", length, *images.shape[:2])
        if jnp.issubdtype(images.dtype, jnp.integer):
            images = images.astype(float) / 255
        cells = self.inputs(_patches(_without_rows(2 * images - 1, length), self.patch))
        rows = -(-length // self.patch)
        stages = len(self.convolutions)
        for stage, (halving, convolution) in enumerate(
            zip(self.halvings, self.convolutions, strict=True)
        ):
            cells = halving(_without_rows(jax.nn.relu(self.norms[stage](cells)), rows))
            rows = -(-rows // 2)
            inner = jax.nn.relu(self.norms[stages + stage](cells))
            cells = cells + convolution(_without_rows(inner, rows))
        cells = self.norms[-1](cells)
        cells = drop_units(cells, self.dropout, fold(rng, 0))
        grid = cells + _places(*cells.shape[1:])[None]
        return averaged(grid.reshape(len(grid), -1, grid.shape[-1]), rows * grid.shape[2])

    @property
    def stride(self) -> int:
        """Pixels of a cell's side."""
        return self.patch * 2 ** len(self.halvings)

    def memory_length(self, length: Int[ArrayLike, "*b"]) -> Int[ArrayLike, "*b"]:
        """How many cells a picture of this height has."""
        return -(-length // self.stride) * -(-self.width // self.stride)


def _places(rows: int, columns: int, features: int) -> Num[Array, "h w d"]:
    """Sines and cosines of the row in the first half of the features, of the column in the rest."""
    half = features // 2
    down = sinusoids(rows, half, base=WAVELENGTHS)[:, None]
    across = sinusoids(columns, features - half, base=WAVELENGTHS)[None]
    both = (jnp.broadcast_to(each, (rows, columns, each.shape[-1])) for each in (down, across))
    return jnp.concatenate(list(both), axis=-1)


def _patches(images: Num[Array, "b h w c"], side: int) -> Num[Array, "b rows columns d"]:
    """The pixels of each patch; what is missing at the ends is 0."""
    b, h, w, c = images.shape
    rows, columns = -(-h // side), -(-w // side)
    missing = [(0, 0), (0, rows * side - h), (0, columns * side - w), (0, 0)]
    split = jnp.pad(images, missing).reshape(b, rows, side, columns, side, c)
    return split.swapaxes(2, 3).reshape(b, rows, columns, side * side * c)


def _without_rows(grid: Num[Array, "b h w c"], rows: Int[Array, " b"]) -> Num[Array, "b h w c"]:
    """The grid, with zeros below each picture's rows."""
    return jnp.where(real_times(rows, grid.shape[1]).T[:, :, None, None], grid, 0)
