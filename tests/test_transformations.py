"""Public functions inside other people's transformations: one table, all ways.

Meshes have `test_meshes.py`, exports `test_export.py`, compilations `test_compilations.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_jax
from attn_jax import Causal, Dropout, Entmax, Kernel, Sigmoid, Softmax, metrics, regression
from attn_jax.nn import MultiHeadAttention, NadarayaWatson
from tests.tolerance import assert_close, assert_trees_close

RNG = np.random.default_rng(7)
X, V = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3))
KERNEL, TOKENS = RNG.normal(size=(3, 5)), np.array([[1, 0, 2, 4, 1, 3]])
LAYER = nnx.split(MultiHeadAttention(3, 1, normalizer=Softmax(jnp.array(0.3)), rngs=nnx.Rngs(0)))
SMOOTHER = nnx.split(NadarayaWatson(bandwidth=0.7))


def attend(implementation="dense", **slots):
    slots |= {"implementation": implementation}
    slots |= {"block_size": (4, 3)} if implementation == "streaming" else {}
    return lambda x: attn_jax.attention(x, jnp.sin(x), x, **slots)


def heads(x):
    return x[None, :, None, :]


# functions of an array [6, 3] of floats; each with a second derivative
FUNCTIONS = {
    "attention": attend(mask=Causal()),
    "attention, sigmoid": attend(normalizer=Sigmoid(0.1), mask=Causal()),
    "attention, entmax": attend(normalizer=Entmax(1.5)),
    "attention, dropout": attend(dropout=Dropout(0.3, jax.random.key(0))),
    "streaming": attend("streaming", score=Kernel(bandwidth=0.7), mask=Causal()),
    "streaming, entmax": attend("streaming", normalizer=Entmax(1.5), mask=Causal()),
    "weights": lambda x: attn_jax.attention_weights(x, x, mask=Causal(-1)),
    "logsumexp": lambda x: attn_jax.attention_and_logsumexp(x, x, x)[1],
    "merge": lambda x: attn_jax.merge(jnp.stack([x, -x]), jnp.stack([x[:, 0], x[:, 1]]))[0],
    "drop-in": lambda x: attn_jax.dot_product_attention(*[heads(x)] * 3, is_causal=True),
    "softmax": lambda x: attn_jax.softmax(x, where=X > -1, sink=0.3),
    "log of the sum": lambda x: attn_jax.logsumexp(x, where=X > -1),
    "sparsemax": lambda x: jnp.square(attn_jax.sparsemax(x, where=X > -1)),
    "entmax": lambda x: attn_jax.entmax(x, alpha=1.7),
    "sigmoid": attn_jax.sigmoid,
    "cross entropy": lambda x: metrics.cross_entropy((x @ KERNEL.astype(x.dtype))[None], TOKENS),
    "linear cross entropy": lambda x: metrics.linear_cross_entropy(
        x[None], KERNEL.astype(x.dtype), jnp.zeros(5, x.dtype), TOKENS
    )[0],
    "kernel regression": lambda x: regression.kernel_regression(x, jnp.sin(x), x),
    "local lines": lambda x: regression.kernel_regression(x, jnp.sin(x), x, degree=1),
    "leave one out": lambda x: regression.leave_one_out(x, x, rows=np.array([4, 0])),
    "self-attention": lambda x: nnx.merge(*LAYER)(x[None]),
    "a smoother": lambda x: nnx.merge(*SMOOTHER)(x, jnp.sin(x), x),
}
MODULES = {"self-attention", "a smoother"}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


# streamed entmax in a loop has test_streaming_surroundings.py
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "streaming, entmax"])
def test_loops_and_batches_change_no_derivative(name):
    """Of first order; of second, reverse over reverse inside scan and checkpoint: as outside."""
    function = FUNCTIONS[name]

    def loss(x):
        return jnp.sum(jnp.sin(function(x)), axis=None)

    def looped(x):
        remat = jax.checkpoint(lambda s, x: (s + loss(x), None), prevent_cse=False)
        return jax.lax.scan(remat, 0.0, jnp.stack([x, x]))[0] / 2

    def along(x):
        gradient = jax.grad(looped)(x)
        return jnp.vdot(gradient, V), gradient

    @jax.jit
    def all_ways(x):
        gradient, second = jax.jvp(jax.grad(loss), (x,), (V,))
        in_batch = jax.vmap(jax.grad(loss))(jnp.stack([x, x]))[1]
        return (second, gradient), jax.grad(along, has_aux=True)(x), in_batch

    expected, in_loop, in_batch = all_ways(X)
    assert all(np.abs(each).max() > 1e-4 for each in expected)
    assert_trees_close(in_loop, expected, tolerance=1e-9)
    assert_close(in_batch, expected[1], tolerance=1e-9)


@each_function
def test_debug_modes_and_strict_promotion_pass(name):
    """Not jitted: every operation is looked at, forward and backward. Flax is not strict itself."""
    function = FUNCTIONS[name]
    promotion = "standard" if name in MODULES else "strict"
    with jax.debug_nans(True), jax.debug_infs(True), jax.numpy_dtype_promotion(promotion):
        value, pull = jax.vjp(function, jnp.asarray(X, "float32"))
        (gradient,) = pull(jnp.ones_like(value))
    assert np.all(np.isfinite(gradient))
