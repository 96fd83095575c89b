"""Cross-entropy of a linear layer's logits, a few rows at a time: [rows, tokens] is never there.

The mean over real tokens of `losses.cross_entropy(inputs W + b, labels)`. Where a derivative is
asked for, the same pass over the rows makes it: each chunk's logits become probabilities less
labels while the cache holds them, and these the three gradients, in which the tangent is linear.
(Wijmans et al. 2024, "Cut your losses in large-vocabulary language models".)

Rows that are not real come last, and chunks of them alone are not computed: padding costs nothing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Bool, Float, Integer

from attn_jax import meshes
from attn_jax.checks import require
from attn_jax.matmul import transposed
from attn_jax.metrics import losses
from attn_jax.metrics.accuracy import on_top
from attn_jax.precision import accumulation_dtype

STORED = 2**20  # logits of a chunk, where the cache is a CPU's
STORED_ELSEWHERE = 2**25


def linear_cross_entropy(
    inputs: Float[ArrayLike, "*rows d"],
    kernel: Float[ArrayLike, "d v"],
    bias: Float[ArrayLike, " v"],
    labels: Integer[ArrayLike, "*rows"],
    *,
    where: Bool[ArrayLike, "*rows"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """`mean_cross_entropy` of the logits inputs W + b; with the number of tokens, their accuracy.

    A row that is not real (`where` is False) has loss 0 and gradient 0, whatever it holds.

    >>> loss, counts = linear_cross_entropy(
    ...     jnp.ones((3, 1)), jnp.array([[0.0, 9.0]]), jnp.zeros(2), jnp.array([1, 1, 0])
    ... )
    >>> round(float(loss), 3), round(float(counts["accuracy"]), 3), int(counts["tokens"])
    (3.0, 0.667, 3)
    """
    smooth = losses.checked_smoothing(label_smoothing)
    inputs, kernel, bias = map(jnp.asarray, (inputs, kernel, bias))
    rule = "be [*rows, d], [d, v] and [v]"
    shapes = f"{inputs.shape}, {kernel.shape} and {bias.shape}"
    fits = inputs.ndim > 0 and kernel.shape == (*inputs.shape[-1:], *bias.shape)
    require(fits and bias.ndim == 1 and bias.size > 0, "inputs, kernel and bias", rule, shapes)
    labels, real = losses.checked_labels(labels, where, inputs.shape[:-1], bias.size)
    sharded = (meshes.spec(inputs, axis) for axis in range(inputs.ndim - 1))
    by_row = PartitionSpec(next((each for each in sharded if each is not None), None))
    # as inputs W + b promotes; half-precision ones stay, and are summed in float32
    dtype = jnp.promote_types(inputs.dtype, kernel.dtype)
    bias = bias.astype(accumulation_dtype(inputs, kernel, bias))
    kernel = kernel.astype(dtype)
    rows, labels, real = meshes.automatic(_flat, inputs.astype(dtype), labels, real, specs=by_row)
    total, right = _sums(smooth, rows, kernel, bias, labels, real)
    tokens = jnp.sum(real)
    count = jnp.maximum(tokens, 1).astype(total.dtype)
    accuracy = right / count.astype(right.dtype)
    return total / count, {"accuracy": accuracy, "tokens": tokens}


def _flat(rows: Array, *numbers: Array) -> tuple[Array, ...]:
    return rows.reshape(-1, rows.shape[-1]), *(each.ravel() for each in numbers)


class Slopes(NamedTuple):
    """The gradients of the sum of all losses."""

    inputs: Float[Array, "n d"]
    kernel: Float[Array, "d v"]
    bias: Float[Array, " v"]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums(smoothing: float, inputs, kernel, bias, labels, real) -> tuple[Array, Array]:
    """The sum of all losses, and how many rows have their label on top."""
    walk = partial(_walk, smoothing, slopes=False)
    return meshes.automatic(walk, inputs, kernel, bias, labels, real, specs=PartitionSpec())[0]


@_sums.defjvp
def _sums_jvp(smoothing, primals, tangents):
    walk = partial(_walk, smoothing, slopes=True)
    specs = (PartitionSpec(), Slopes(*meshes.specs_of(primals[:3])))
    (total, right), slopes = meshes.automatic(walk, *primals, specs=specs)
    (*_, real), (of_inputs, *others) = primals, tangents[:3]
    moves = jnp.where(real[:, None], of_inputs, 0), *others  # a row that is not real takes no NaN
    change = sum(jnp.sum(slope * move) for slope, move in zip(slopes, moves, strict=True))
    return (total, right), (change.astype(total.dtype), jnp.zeros_like(right))


def _walk(smoothing, inputs, kernel, bias, labels, real, *, slopes: bool) -> tuple[Any, Any]:
    """((sum, right), slopes): one pass over chunks of rows, the real ones first.

    `right` is a float: the tangent of an integer has no type inside `jax.shard_map`.
    """
    together = inputs, kernel, bias, labels, real
    axes = meshes.axes_of(together)
    inputs, kernel, bias, labels, real = meshes.varying(together, axes)
    n, features = inputs.shape
    stored = STORED if jax.default_backend() == "cpu" else STORED_ELSEWHERE
    size = max(stored // bias.size, 64)
    size = max(n, 1) if isinstance(n, int) and n < size else size
    order = jnp.argsort(~real, stable=True)
    count = -(-n // size)

    def chunks(array):
        array = jnp.pad(array[order], [(0, count * size - n), *[(0, 0)] * (array.ndim - 1)])
        return array.reshape(count, size, *array.shape[1:])

    of_tokens = transposed(kernel)  # rows by rows is faster: `matmul.matmul`

    def compute(sums, chunk):
        rows, labels, real = chunk
        rows = jnp.where(real[:, None], rows, 0)
        logits = _product(rows, of_tokens, (1, 1)).astype(bias.dtype) + bias[None]
        token_losses = losses.token_losses(smoothing, logits, labels, real)
        right = jnp.sum(on_top(logits, labels) & real, dtype=jnp.int32)
        (total, count), gradient = sums
        sums = total + jnp.sum(token_losses), count + right
        if not slopes:
            return (sums, None), None
        slope = losses.token_slopes(smoothing, logits, labels, real)
        narrow = slope.astype(kernel.dtype)
        of_rows = _product(narrow, kernel, (1, 1))
        of_kernel = gradient[0] + _product(transposed(rows), narrow, (1, 0))
        return (sums, (of_kernel, gradient[1] + jnp.sum(slope, axis=0))), of_rows

    def skip(sums, chunk):
        return sums, (jnp.zeros_like(chunk[0], _summed(chunk[0])) if slopes else None)

    def step(sums, chunk):
        return jax.lax.cond(chunk[2][0], compute, skip, sums, chunk)

    zero = jnp.zeros((), bias.dtype), jnp.zeros((), jnp.int32)
    empty = jnp.zeros(kernel.shape, _summed(kernel)), jnp.zeros_like(bias)
    start = meshes.varying((zero, empty if slopes else None), axes)
    (sums, gradient), of_rows = jax.lax.scan(
        step, start, tuple(map(chunks, (inputs, labels, real)))
    )
    sums = sums[0], sums[1].astype(bias.dtype)
    if not slopes:
        return sums, None
    of_rows = of_rows.reshape(count * size, features)[:n]
    of_rows = jnp.zeros_like(of_rows).at[order].set(of_rows, unique_indices=True)
    return sums, Slopes(of_rows, *gradient)


def _product(left: Array, right: Array, axes: tuple[int, int]) -> Array:
    """The product along these axes, summed in float32 at least."""
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=_summed(left))


def _summed(array: Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)
