"""`jax.export` with symbolic sizes: one artifact gives what the library gives, at every size."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from attn_jax import (
    Alibi,
    Causal,
    Entmax,
    Kernel,
    Padding,
    Prefix,
    Softmax,
    Window,
    attention,
    attention_and_logsumexp,
    decoding,
    dot_product_attention,
    kernels,
    multi_head_attention,
    regression,
)
from attn_jax.attention import choose
from attn_jax.nn import LanguageModel, NadarayaWatson, TransformerSeq2Seq
from tests.tolerance import TOLERANCE, assert_trees_close

# each axis of length one and longer; more keys than queries, and fewer
SIZES = [{"b": 1, "q": 1, "k": 5}, {"b": 3, "q": 7, "k": 1}]


def toy(token, state):
    return state[:, None] * jnp.arange(5.0)[None], state, None


def by_normalizer(normalizer):
    slots = {"normalizer": normalizer, "mask": Prefix(2), "score_mod": Alibi(0.2)}
    return lambda query, key: attention(query, key, key, **slots)


class Model(NamedTuple):
    """Made before the trace: its parameters are the artifact's constants."""

    make: Callable
    use: Callable

    def function(self):
        return functools.partial(self.use, self.make(rngs=nnx.Rngs(0)))


CASES = {
    "drop-in": (lambda x: dot_product_attention(x, x, x, is_causal=True), ["b q 4 2"]),
    "drop-in with lengths": (
        lambda x, n: dot_product_attention(x, x, x, key_value_seq_lengths=n),
        ["b q 4 2", "b int"],
    ),
    "a batch that streams": (
        lambda x: dot_product_attention(x, x, x, is_causal=True, implementation="streaming"),
        ["b 5 4 2"],
    ),
    "logsumexp": (
        lambda q, k: attention_and_logsumexp(q, k, k, mask=Causal(), normalizer=Softmax(0.3)),
        ["q 4", "k 4"],
    ),
    **{f"entmax {a}": (by_normalizer(Entmax(a)), ["q 4", "k 4"]) for a in (1.3, 1.5, 2, 3.0)},
    "compact kernel": (
        lambda q, k: attention(q, k, k, score=Kernel(kernels.epanechnikov)),
        ["q 12", "k 12"],
    ),
    "gradient": (jax.grad(lambda x: jnp.sum(attention(x, x, x) ** 2, axis=None)), ["q 4"]),
    "language model": (
        Model(
            functools.partial(LanguageModel, 5, 8, 2, 1, positions="learned", longest=9),
            lambda model, t: model(t),
        ),
        ["b q int"],
    ),
    "padded texts, a pattern of windows": (
        Model(
            functools.partial(LanguageModel, 5, 8, 2, 2, pattern=[{"mask": Window(2, 0)}, {}]),
            lambda model, t, n: model(t, padding=n - 1),
        ),
        ["b q int", "b int"],
    ),
    "heads": (
        lambda x, n: multi_head_attention(x, x, x, mask=Causal() & Padding(n[:, None])),
        ["b q 4 2", "b int"],
    ),
    "loss": (
        Model(functools.partial(LanguageModel, 5, 8, 2, 1), lambda model, t: model.loss(t)[0]),
        ["b q+1 int"],
    ),
    "translation": (
        Model(
            functools.partial(TransformerSeq2Seq, 5, 5, 8, 2, 1),
            lambda model, s, n, t: model(s, n, t),
        ),
        ["b q int", "b int", "b k int"],
    ),
    "regression": (lambda q, x: NadarayaWatson(0.3)(q, x, x), ["q 1", "k 1"]),
    "local lines": (
        lambda q, x: regression.kernel_regression(q, x, x, score=Kernel(), degree=1),
        ["q 1", "k 1"],
    ),
    "greedy": (
        lambda s: decoding.greedy(toy, s, start=0, end=4, max_length=3)[:4],
        ["b"],
    ),
    "beam": (
        lambda s: decoding.beam_search(toy, s, start=0, end=4, max_length=3, beam_size=2)[:4],
        ["b"],
    ),
}


def shaped(spec, scope):
    """ "b q int" as an abstract array."""
    *sizes, last = spec.split()
    dtype = int if last == "int" else float
    sizes = sizes if last == "int" else [*sizes, last]
    return jax.ShapeDtypeStruct(export.symbolic_shape(",".join(sizes), scope=scope), dtype)


def filled(abstract, sizes, rng):
    shape = [eval(str(size), {}, sizes) for size in abstract.shape]
    if abstract.dtype == int:
        return rng.integers(1, 2 if len(shape) == 1 else 5, size=shape)
    return rng.normal(size=shape)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("without_shape_hook")  # its names of sizes are not those of an export
def test_an_artifact_of_symbolic_sizes(name):
    function, specs = CASES[name]
    function = jax.jit(function.function() if isinstance(function, Model) else function)
    scope = export.SymbolicScope()
    abstract = [shaped(spec, scope) for spec in specs]
    artifact = export.export(function)(*abstract)
    rng = np.random.default_rng(3)
    for sizes in SIZES:
        arrays = [filled(each, sizes, rng) for each in abstract]
        expected = function(*arrays)
        tolerance = max(
            TOLERANCE[str(x.dtype)] for x in jax.tree.leaves(expected) if x.dtype.kind == "f"
        )
        assert_trees_close(
            tuple(jax.tree.leaves(artifact.call(*arrays))),
            tuple(jax.tree.leaves(expected)),
            tolerance=10 * tolerance,
        )


@pytest.mark.usefixtures("without_shape_hook")
def test_one_artifact_for_all_platforms_is_stored_and_called():
    model = LanguageModel(5, 8, 2, 2, rngs=nnx.Rngs(0))
    tokens = shaped("b q int", export.SymbolicScope())
    artifact = export.export(jax.jit(model), platforms=["cpu", "cuda", "tpu"])(tokens)
    again = export.deserialize(artifact.serialize())
    assert again.platforms == ("cpu", "cuda", "tpu")
    given = np.array([[1, 2, 3]])
    assert_trees_close(again.call(given), model(given), tolerance=1e-12)


@pytest.mark.usefixtures("without_shape_hook")
def test_unknown_lengths_are_dense_and_refused_where_they_would_have_to_stream():
    (length,) = export.symbolic_shape("q")
    assert choose("auto", length * length, Softmax()) == "dense"
    (long,) = export.symbolic_shape("q", constraints=["q >= 4096"])
    assert choose("auto", long * long, Softmax()) == "dense"
    scores = jax.ShapeDtypeStruct((length, 4), float)
    streams = jax.jit(lambda x: attention(x, x, x, implementation="streaming"))
    with pytest.raises(ValueError, match="query and key must have known lengths to stream"):
        export.export(streams)(scores)
