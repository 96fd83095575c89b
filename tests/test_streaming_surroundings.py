"""Streaming attention inside other things: shard_map, leak checks, mixed dtypes, NumPy leaves."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from attn_jax import (
    Causal,
    Entmax,
    Kernel,
    Padding,
    RelativeBias,
    Segments,
    Sigmoid,
    Softmax,
    Sparsemax,
    Window,
    attention,
    attention_and_logsumexp,
    streaming,
)
from tests.members import inputs
from tests.tolerance import TOLERANCE, assert_close, assert_trees_close

stream = functools.partial(attention, implementation="streaming", block_size=(2, 3))
dense = functools.partial(attention, implementation="dense")


@pytest.mark.parametrize(
    "slots",
    [{"mask": Causal(1)}, {"normalizer": Entmax(1.5)}, {"normalizer": Sigmoid()}],
    ids=["softmax", "entmax", "sigmoid"],
)
def test_inside_shard_map(slots):
    """Queries vary over the mesh's axis, keys do not: the sums that a loop carries have to."""
    query, key, value = inputs()
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    along = PartitionSpec("x")

    def gradient(implementation):
        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(along, PartitionSpec(), PartitionSpec()),
            out_specs=(along, along),
        )
        def of_shard(query, key, value):
            return jax.value_and_grad(
                lambda q: jnp.sum(implementation(q, key, value, **slots) ** 2, axis=None)
            )(query)[1], implementation(query, key, value, **slots)

        return jax.jit(of_shard)(query, key, value)

    assert_trees_close(gradient(stream), gradient(dense))


@pytest.fixture(scope="module")
def young_heap():
    """A search for leaks goes through all objects, at each trace: not through other tests'."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize(
    "slots",
    [
        lambda h: {"score": Kernel(bandwidth=h)},
        lambda h: {"normalizer": Softmax(h)},
        lambda h: {"normalizer": Entmax(1 + h / 2)},
        lambda h: {"score": lambda q, k: h * q @ k.T},
    ],
    ids=["score", "sink", "alpha", "closure"],
)
def test_no_tracer_leaks(slots):
    """Tracing alone is watched: it is there that something of ours could keep a tracer."""
    arguments = inputs()
    gradient = jax.jit(jax.grad(lambda h: stream(*arguments, **slots(h)).sum()))
    expected = jax.jit(jax.grad(lambda h: dense(*arguments, **slots(h)).sum()))
    with jax.checking_leaks():
        traced = gradient.trace(1.3)
    assert_close(traced.lower().compile()(1.3), expected(1.3))


@pytest.mark.parametrize("make", [Softmax, Sigmoid], ids=lambda make: make.__name__)
def test_a_parameter_wider_than_the_scores_widens_them(make):
    half = inputs(dtype="float32")
    parameter = jnp.asarray(0.3, "float64")

    def loss(function, parameter):
        return function(*half, normalizer=make(parameter)).astype("float64").sum()

    got, expected = (jax.grad(functools.partial(loss, f))(parameter) for f in (stream, dense))
    assert got.dtype == expected.dtype == "float64"
    assert_close(got, expected, tolerance=TOLERANCE["float32"])
    if make is Softmax:
        how = {"implementation": "streaming", "block_size": (2, 3)}
        logsumexp = attention_and_logsumexp(*half, normalizer=make(parameter), **how)[1]
        assert logsumexp.dtype == "float64"


def test_a_half_precision_parameter_gets_its_gradient_rounded_once():
    query, key = jnp.zeros((64, 1)), jnp.zeros((96, 1))
    value = jnp.ones((96, 1), "float32")

    def loss(bias, dtype):
        sigmoid = Sigmoid(bias.astype(dtype))
        return attention(
            query, key, value, normalizer=sigmoid, implementation="streaming", block_size=(4, 4)
        ).sum()

    got = jax.grad(loss)(jnp.asarray(-3.0, "bfloat16"), "bfloat16")
    exact = jax.grad(loss)(jnp.asarray(-3.0, "float32"), "float32")
    assert_close(got, exact.astype("bfloat16"), tolerance=0)


def test_a_score_mod_in_half_precision_is_accumulated_in_single():
    arguments = inputs(dtype="float32")
    slots = {"score_mod": lambda scores, i, j: scores.astype("bfloat16")}
    assert_close(stream(*arguments, **slots), dense(*arguments, **slots))


def test_slots_with_numpy_leaves():
    arguments = inputs()
    segments = Segments(jnp.array([0, 0, 1, 1, 1]), jnp.array([0, 0, 0, 1, 1, 1, 1]))
    slots = {"mask": segments, "score_mod": RelativeBias(jnp.arange(8.0), max_distance=5)}
    assert_close(stream(*arguments, **jax.device_get(slots)), dense(*arguments, **slots))


def test_numbers_do_not_compile_again():
    """Each value of a plain number is traced; NumPy's numbers are Python's."""
    arguments = inputs()
    before = streaming._compiled._cache_size()
    for sink in (0.1, 0.2, np.float32(0.3)):
        stream(*arguments, normalizer=Softmax(sink), mask=Causal(np.int64(1)))
    assert streaming._compiled._cache_size() == before + 1


@pytest.mark.usefixtures("without_shape_hook")
def test_only_a_dropout_drops():
    with pytest.raises(ValueError, match=r"dropout must be a Dropout"):
        attention(*inputs(), dropout=lambda weights, i, j: weights**2)


def test_a_function_that_fails_for_another_reason_keeps_its_error():
    def broken(query, key):
        raise TypeError("unhashable type")

    with pytest.raises(TypeError, match="unhashable"):
        stream(*inputs(), score=broken, normalizer=Sparsemax())


def stacked(layer, form, x):
    """Two layers, one after the other, in the ways that JAX has to write it."""
    if "while" in form:  # a static count of turns is a scan
        return jax.lax.fori_loop(0, 2, lambda _, x: layer(x), x)
    return jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=2)[0]


@pytest.mark.parametrize(
    ("form", "normalizer"),
    [("scan", Entmax(2.5)), ("while", Softmax()), ("vmap of scan", Sigmoid(0.1))],
    ids=str,
)
def test_every_order_inside_loops(form, normalizer):
    """JAX evaluates a part of a loop's body ahead: the rule has to serve there as well.

    A scan of checkpoints is among the transformations of test_transformations.py.
    """
    x = inputs()[0]
    x, v = jnp.stack([x, x + 1]), jnp.cos(jnp.stack([x, 2 * x]))

    def derivatives(implementation):
        how = {"implementation": implementation}
        how |= {"block_size": (2, 3)} if implementation == "streaming" else {}

        def layer(x):
            slots = {"normalizer": normalizer, "mask": Causal()}
            return x + attention(x, x, x, **slots, **how)

        def loss(x):
            rows = functools.partial(stacked, layer, form)
            return jnp.sum(jnp.sin(jax.vmap(rows)(x) if "vmap" in form else rows(x[0])), axis=None)

        def along(lower):
            """The derivative along v of a derivative, which comes with those below it."""

            def function(x):
                below = lower(x)
                return jnp.vdot(below[0], v), below

            def higher(x):
                slope, below = jax.grad(function, has_aux=True)(x)
                return slope, *below

            return higher

        def gradient(x):
            return (jax.grad(loss)(x),)

        @jax.jit
        def all_of_them(x):
            second = along(gradient)
            reverse = along(second) if form == "while" else second
            return reverse(x), jax.jvp(gradient, (x,), (v,))[1]

        return all_of_them(x)

    assert_trees_close(derivatives("streaming"), derivatives("dense"), tolerance=1e-9)


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(2.5)], ids=str)
def test_it_is_linear_in_the_values(normalizer):
    query, key, value = inputs()
    cotangents = jnp.stack([jnp.cos(query[:, :2]), jnp.sin(query[:, :2])])

    def transposed(implementation):
        function = functools.partial(implementation, query, key, normalizer=normalizer)
        turned = jax.linear_transpose(function, value)
        return jax.jit(jax.vmap(turned))(cotangents)

    assert_trees_close(transposed(stream), transposed(dense))


MASKS = [None, Window(1, 1), Padding(0), Causal(-3)]
NORMALIZERS = [Softmax(), Softmax(0.3), Entmax(1.5), Entmax(3.0), Sigmoid()]


@pytest.mark.parametrize(
    ("normalizer", "mask", "implementation"),
    [  # any two of the three meet
        (normalizer, mask, (stream, dense)[(n + m) % 2])
        for n, normalizer in enumerate(NORMALIZERS)
        for m, mask in enumerate(MASKS)
    ],
    ids=lambda x: x.keywords["implementation"] if x in (stream, dense) else str(x),
)
def test_nothing_infinite_inside(normalizer, mask, implementation):
    """What JAX's debug modes look at, not jitted: no -inf stands for what is masked."""
    query, key, value = inputs()

    def loss(query):
        return implementation(query, key, value, normalizer=normalizer, mask=mask).sum()

    with jax.debug_infs(True), jax.debug_nans(True):
        assert np.all(np.isfinite(jax.grad(loss)(query)))
