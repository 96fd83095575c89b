"""Linear layers: one product of matrices, in the form that the device multiplies fastest."""

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn_jax.checks import at_least
from attn_jax.meshes import is_explicit

MANY = 256  # rows, for which transposing a kernel pays
KEPT = "affine"  # what a policy of `jax.checkpoint` may keep, so that no product is made twice


def affine(
    inputs: Float[Array, "*n d"], kernel: Float[Array, "d g"], bias: Float[Array, " g"] | None
) -> Float[Array, "*n g"]:
    """inputs W + b, as one product of matrices whatever the axes: so is its gradient.

    >>> affine(*map(jax.numpy.ones, ((2, 1, 3), (3, 1), 1))).tolist()
    [[[4.0]], [[4.0]]]
    """
    if is_explicit((inputs, kernel)):  # where axes that are sharded do not become one
        outputs = checkpoint_name(inputs @ kernel, KEPT)
        return outputs if bias is None else outputs + bias.reshape((1,) * (inputs.ndim - 1) + (-1,))
    rows = checkpoint_name(matmul(inputs.reshape(-1, inputs.shape[-1]), kernel), KEPT)
    if bias is not None:
        rows = rows + bias[None]
    return rows.reshape(*inputs.shape[:-1], kernel.shape[1])


@jax.custom_jvp
def matmul(rows: Float[Array, "n d"], kernel: Float[Array, "d g"]) -> Float[Array, "n g"]:
    """rows W, in the forms that XLA multiplies fastest on a CPU, up to 1.8 times as fast.

    There many rows are multiplied by the rows of Wᵀ, and a kernel's gradient has the longer of its
    axes last.

    >>> matmul(*map(jax.numpy.ones, ((2, 3), (3, 1)))).tolist()
    [[3.0], [3.0]]
    """
    return _by_rows(rows, kernel) if _transposes(rows) else rows @ kernel


@matmul.defjvp
def _matmul_jvp(primals, tangents):
    (rows, kernel), (d_rows, d_kernel) = primals, tangents
    turns = _transposes(rows) and kernel.shape[0] >= kernel.shape[1]
    change = _by_rows(rows, d_kernel) if turns else rows @ d_kernel
    return matmul(rows, kernel), d_rows @ kernel + change


def _transposes(rows: Array) -> bool:
    return jax.default_backend() == "cpu" and at_least(rows.shape[0], MANY)


def _by_rows(rows: Array, kernel: Array) -> Array:
    return jax.lax.dot_general(rows, transposed(kernel), (((1,), (1,)), ((), ())))


def transposed(matrix: Float[Array, "a b"]) -> Float[Array, "b a"]:
    """The transpose as an array of its own: XLA does not undo it in the product that follows.

    >>> transposed(jax.numpy.array([[1.0, 2.0]])).tolist()
    [[1.0], [2.0]]
    """
    return jax.lax.optimization_barrier(matrix.T)
