"""An encoder of long sequences of vectors, sound say, whose memory is a few times shorter."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from attn_jax.checks import require_count
from attn_jax.dropout import drop_units
from attn_jax.nn.arguments import (
    fold,
    lengths_of,
    require_rate,
    require_rngs,
    rows_of,
    sizes_of,
    without_padding,
)
from attn_jax.nn.encoders import Encoded, RecurrentEncoder
from attn_jax.nn.recurrent import CellName


class PyramidEncoder(nnx.Module):
    """Convolutions, then recurrent layers in both directions, each on half as many positions.

    A convolution of width 3 and stride 2 halves the positions, and each recurrent layer but the
    first reads two neighbouring positions of the one below as one (Listen, Attend and Spell: Chan
    et al. 2016, eq. 5). The last one of an odd number of positions is read with zeros.

    Args:
      in_features: of the inputs.
      features: of each convolution, and of each direction of a layer.
      convolutions: how many.
      layers: how many recurrent layers.
      cell: "gru" or "lstm".
      dropout: rate before each recurrent layer.
      rngs: a seed for the parameters.

    The summary is the last hidden state of each direction of the last layer.

    >>> encoder = PyramidEncoder(2, 3, layers=2, rngs=nnx.Rngs(0))
    >>> encoded = encoder(jnp.ones((1, 16, 2)), jnp.array([10]))
    >>> [each.shape for each in encoded[:3]], encoded.length.tolist(), encoder.memory_length(10)
    ([(1, 2, 6), (1,), (1, 6)], [2], 2)
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        convolutions: int = 2,
        layers: int = 1,
        cell: CellName = "gru",
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ):
        in_features, features, layers = sizes_of(
            in_features=in_features, features=features, layers=layers
        )
        require_count(convolutions, "convolutions")
        require_rngs(rngs)
        require_rate(dropout)
        self.in_features, self.dropout = in_features, dropout
        self.memory_features = self.summary_features = 2 * features
        self.convolutions = nnx.List(
            nnx.Conv(
                features if level else in_features,
                features,
                (3,),
                strides=2,
                padding=((1, 1),),  # not "SAME", which begins elsewhere where the length is odd
                param_dtype=float,
                rngs=rngs,
            )
            for level in range(convolutions)
        )
        widths = [features if convolutions else in_features] + [4 * features] * (layers - 1)
        self.layers = nnx.List(
            RecurrentEncoder(width, features, cell=cell, rngs=rngs) for width in widths
        )

    def __call__(
        self,
        inputs: Float[ArrayLike, "b s d"],
        length: Int[ArrayLike, " b"],
        *,
        rng: PRNGKeyArray | None = None,
    ) -> Encoded:
        """Encode; with `rng`, in training, some units are dropped."""
        inputs = rows_of("inputs", inputs, self.in_features)
        length = lengths_of("length", length, *inputs.shape[:2])
        outputs = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        for convolution in self.convolutions:
            outputs = jax.nn.relu(convolution(without_padding(outputs, length)))
            length = -(-length // 2)
        for level, layer in enumerate(self.layers):
            if level:
                outputs, length = _joined(outputs), -(-length // 2)
            dropped = drop_units(outputs, self.dropout, fold(rng, level))
            outputs, length, summary, _ = layer(dropped, length)
        return Encoded(outputs, length, summary)

    def memory_length(self, length: Int[ArrayLike, "*b"]) -> Int[ArrayLike, "*b"]:
        """How many positions the memory of an input of this length has."""
        for _ in range(len(self.convolutions) + len(self.layers) - 1):
            length = -(-length // 2)
        return length


def _joined(outputs: Float[Array, "b s d"]) -> Float[Array, "b t e"]:
    """Each two neighbouring positions as one; what follows the last real one is zero."""
    b, s, d = outputs.shape
    even = jnp.pad(outputs, ((0, 0), (0, s % 2), (0, 0)))
    return even.reshape(b, -1, 2 * d)
