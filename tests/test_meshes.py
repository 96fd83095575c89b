"""The library inside a caller's mesh of eight devices, against the same calls on one.

Three ways: `jax.shard_map` over the batch, an explicit mesh (what `jax.make_mesh` makes), and
sharded inputs whose way the compiler finds. Values, and gradients in every array of floats.
"""

import functools
import json
import re
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attn_jax import (
    Causal,
    Entmax,
    Kernel,
    Padding,
    Sigmoid,
    Softmax,
    Sparsemax,
    attention,
    attention_and_logsumexp,
    attention_weights,
    decoding,
    dot_product_attention,
    entmax,
    kernels,
    merge,
    metrics,
    regression,
    softmax,
    sparsemax,
)
from attn_jax.nn import (
    Decoder,
    LanguageModel,
    NadarayaWatson,
    RecurrentEncoder,
    Seq2Seq,
    TransformerSeq2Seq,
)
from tests.decoding_toy import END, INPUT, OUTPUT, RECURRENT, START
from tests.several_devices import report_of
from tests.tolerance import assert_trees_close

B, WAYS = 16, ("shard_map", "explicit", "automatic")
RNG = np.random.default_rng(3)


class Case(NamedTuple):
    """function(shared, batch): arrays [b, …], or numbers that add up over parts of the batch."""

    function: Callable
    batch: Any
    shared: Any = ()
    differentiates: bool = True


def normal(*shape):
    return RNG.normal(size=shape)


def tokens(*shape, most=5):
    return RNG.integers(1, most, size=shape)


def attend(normalizer, weights=True, outputs=True, **slots):
    """One normalizer in every implementation, one head at a time, with a padding mask."""

    def one(shared, query, key, value, length, alpha):
        made = normalizer(shared, alpha)
        here = {"normalizer": made, "mask": Padding(length), **slots}
        streams = {"implementation": "streaming", "block_size": (2, 3)}
        function = attention_and_logsumexp if isinstance(made, Softmax) else attention
        return [
            attention(query, key, value, **here) if outputs else None,
            attention_weights(query, key, **here) if weights else None,
            function(query, key, value, **here, **streams),
        ]

    arrays = normal(B, 5, 3), normal(B, 7, 3), normal(B, 7, 2)
    arrays += RNG.integers(1, 8, B), RNG.uniform(1.2, 1.8, B)
    return Case(lambda shared, batch: jax.vmap(functools.partial(one, shared))(*batch), arrays, 1.4)


def search(function, **options):
    """A search with a toy whose weights and table are closed over."""

    def run(shared, batch):
        def step(token, state):
            read = jnp.einsum("bv,bvh->bh", jax.nn.one_hot(token, 5), state["table"])
            hidden = jnp.tanh(state["hidden"] @ shared["recurrent"] + read)
            weights = softmax(hidden[:, :3])
            logits = hidden @ shared["output"] + state["bias"] + closed_over
            return logits, {**state, "hidden": hidden}, weights

        closed_over = 0.0 * jnp.sum(batch["hidden"], axis=None)
        state = {name: batch[name] for name in ("hidden", "bias", "table")}
        given = {"rng": jax.vmap(jax.random.key)(batch["seed"])} if "temperature" in options else {}
        found = function(step, state, start=START, end=END, max_length=6, **given, **options)
        return found._asdict()

    batch = {"hidden": normal(B, 11), "bias": normal(B, 5), "seed": np.arange(B)}
    batch["table"] = np.broadcast_to(INPUT, (B, *INPUT.shape))
    shared = {"recurrent": RECURRENT, "output": OUTPUT}
    return Case(run, batch, shared, differentiates=False)


def modelled(model, function, batch, **options):
    """A module: its parameters are shared."""
    definition, state = nnx.split(model)
    state = jax.tree.map(lambda x: np.asarray(x) + 0.1 * normal(*x.shape), state)
    run = lambda state, batch: function(nnx.merge(definition, state), batch)  # noqa: E731
    return Case(run, batch, state, **options)


def added_up(loss, batch):
    """A mean over the batch, as a number that adds up."""
    return loss * jax.tree.leaves(batch)[0].shape[0]


def regress(**options):
    def run(shared, batch):
        query, index = batch
        x, y, bandwidth = shared
        score = Kernel(kernels.epanechnikov, bandwidth)
        left_out = regression.leave_one_out(x, y, rows=index, score=score, **options)
        return regression.kernel_regression(query, x, y, score=score, **options), left_out

    return Case(run, (normal(B, 2), np.arange(B)), (normal(B, 2), normal(B, 1), 1.3))


PAST = {"location": 2, "coverage": True, "window": (1, 2), "gate": True}


def seq2seq(**options):
    encoder = RecurrentEncoder(3, 5, rngs=nnx.Rngs(0))
    widths = encoder.memory_features, encoder.summary_features
    decoder = Decoder(5, *widths, embedding=3, features=7, rngs=nnx.Rngs(1), **options)
    return Seq2Seq(7, encoder, decoder, embedding=3, rngs=nnx.Rngs(2))


def pairs():
    lengths = {name: np.full(B, 3) for name in ("source_length", "target_length")}
    return {"source": tokens(B, 4), "target": tokens(B, 3), **lengths}


def translate(model, batch):
    step, state = model.begin(batch["source"], batch["source_length"], longest=4)
    found = decoding.beam_search(step, state, start=1, end=2, max_length=4, beam_size=2)
    return found.tokens, found.scores


def complete(model, prompt):
    step, state = model.begin(prompt, longest=3)
    return decoding.greedy(step, state, start=prompt[:, -1], end=0, max_length=3).tokens


def linear_loss(shared, batch):
    rows, labels = batch
    loss, counts = metrics.linear_cross_entropy(rows, *shared, labels)
    return [added_up(each, batch) for each in (loss, counts["accuracy"])]


def token_metrics(shared, batch):
    logits, labels = batch
    loss, _ = metrics.mean_cross_entropy(logits, labels, label_smoothing=0.1)
    accuracy = metrics.token_accuracy(logits, labels)
    length = jnp.full_like(labels[:, 0], 3)
    same = metrics.exact_matches(labels, labels, length=length, label_length=length)
    numbers = [added_up(each, batch) for each in (loss, accuracy)]
    return metrics.cross_entropy(logits, labels), same, *numbers


def heads(shared, batch):
    query, key, mask, length = batch
    everything = {"bias": shared, "mask": mask, "is_causal": True, "return_residual": True}
    return [
        dot_product_attention(
            query, key, key, key_value_seq_lengths=length, implementation=name, **everything
        )
        for name in ("dense", "streaming")
    ]


def language_model():
    return LanguageModel(5, 8, 2, 1, positions="learned", longest=9, rngs=nnx.Rngs(0))


CASES = {
    "softmax": lambda: attend(lambda shared, _: Softmax(shared), mask=Causal(2)),
    "sigmoid": lambda: attend(lambda shared, _: Sigmoid(shared)),
    "sparsemax": lambda: attend(lambda *_: Sparsemax()),
    "alpha of each": lambda: attend(lambda _, alpha: Entmax(alpha), outputs=False),
    "alpha of all": lambda: attend(lambda shared, _: Entmax(shared), weights=False),
    "rows": lambda: Case(
        lambda _, s: [softmax(s), sparsemax(s, where=s > -1), entmax(s, alpha=1.3)], normal(B, 7)
    ),
    "merge": lambda: Case(
        lambda _, p: jax.vmap(merge)(*p)[0], (normal(B, 3, 5, 2), normal(B, 3, 5))
    ),
    "heads": lambda: Case(
        heads,
        (normal(B, 5, 4, 3), normal(B, 5, 2, 3), normal(B, 1, 1, 5) < 1, np.full(B, 4)),
        normal(4, 5, 5),
    ),
    "local constant": lambda: regress(),
    "local line": lambda: regress(degree=1, outside="mean"),
    "module of regression": lambda: modelled(
        NadarayaWatson(0.7), lambda model, q: model(q, *DATA), normal(B, 1)
    ),
    "greedy": lambda: search(decoding.greedy),
    "sample": lambda: search(decoding.sample, temperature=0.7, top_k=4, top_p=0.9),
    "beam": lambda: search(decoding.beam_search, beam_size=3, n_best=2),
    "linear loss": lambda: Case(linear_loss, (normal(B, 3), tokens(B)), (normal(3, 7), normal(7))),
    "metrics": lambda: Case(token_metrics, (normal(B, 3, 5), tokens(B, 3))),
    "language model": lambda: modelled(
        language_model(), lambda m, t: (m(t), added_up(m.loss(t)[0], t)), tokens(B, 6)
    ),
    "completion": lambda: modelled(language_model(), complete, tokens(B, 4), differentiates=False),
    "transformer": lambda: modelled(
        TransformerSeq2Seq(7, 5, 8, 2, 1, rngs=nnx.Rngs(0)),
        lambda m, b: added_up(m.loss(b, start=1)[0], b),
        pairs(),
    ),
    "recurrent": lambda: modelled(
        seq2seq(), lambda m, b: added_up(m.loss(b, start=1)[0], b), pairs()
    ),
    "past weights": lambda: modelled(
        seq2seq(**PAST),
        lambda m, b: added_up(m.loss(b, start=1, doubly_stochastic=0.3, coverage=0.2)[0], b),
        pairs(),
    ),
    "translation": lambda: modelled(
        TransformerSeq2Seq(7, 5, 8, 2, 1, rngs=nnx.Rngs(0)),
        translate,
        pairs(),
        differentiates=False,
    ),
    "recurrent translation": lambda: modelled(seq2seq(), translate, pairs(), differentiates=False),
    "translation, past weights and none": lambda: modelled(
        (seq2seq(**PAST), seq2seq(attention=None)),
        lambda models, b: [translate(each, b) for each in models],
        pairs(),
        differentiates=False,
    ),
}
DATA = normal(9, 1), normal(9, 2)


def value_and_gradients(case, shared, batch):
    """The case's results, and the gradients of what they add up to."""
    if not case.differentiates:
        return case.function(shared, batch), None
    leaves, structure = jax.tree.flatten((shared, batch))
    floats = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

    def total(moving):
        filled = dict(enumerate(leaves)) | dict(zip(floats, moving, strict=True))
        results = case.function(*structure.unflatten(list(filled.values())))
        moved = [each for each in jax.tree.leaves(results) if each.dtype == float]
        return sum(jnp.sum(jnp.sin(each) if each.ndim else each) for each in moved), results

    gradients, results = jax.grad(total, has_aux=True)([leaves[i] for i in floats])
    split = sum(i < len(jax.tree.leaves(shared)) for i in floats)
    return results, (gradients[:split], gradients[split:])


def over_shards(case, mesh, expected, shared, batch):
    def of_shard(shared, batch):
        results, gradients = value_and_gradients(case, shared, batch)
        results = jax.tree.map(lambda x: x if x.ndim else jax.lax.psum(x, "batch"), results)
        return results, gradients

    along = PartitionSpec("batch")
    specs = jax.tree.map(lambda x: along if x.ndim else PartitionSpec(), expected[0])
    grads = (PartitionSpec(), along) if case.differentiates else None
    run = jax.shard_map(
        of_shard, mesh=mesh, in_specs=(PartitionSpec(), along), out_specs=(specs, grads)
    )
    return jax.jit(run)(shared, batch)


def placed(run, mesh, shared, batch):
    along, whole = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    return run(jax.device_put(shared, whole), jax.device_put(batch, along))


def compare(case, ways=WAYS):
    """Hold one case against itself on one device: {way: what went wrong}."""
    arguments = jax.tree.map(jnp.asarray, (case.shared, case.batch))
    run = jax.jit(functools.partial(value_and_gradients, case))  # traced once for two of the ways
    expected, wrong = jax.device_get(run(*arguments)), {}
    for way in ways:
        kind = AxisType.Explicit if way == "explicit" else AxisType.Auto
        mesh = jax.make_mesh((8,), ("batch",), axis_types=(kind,))
        try:
            if way == "shard_map":
                got = over_shards(case, mesh, expected, *arguments)
            elif way == "automatic":
                got = placed(run, mesh, *arguments)
            else:
                with jax.set_mesh(mesh):
                    got = placed(run, mesh, *arguments)
            assert_trees_close(jax.device_get(got), expected, tolerance=1e-11)
        except Exception:
            wrong[way] = traceback.format_exc()
    return wrong


def compare_queries(way, slots):
    """Queries are spread over the devices, keys and values are everywhere: nothing is sent."""
    query, key, value = RNG.normal(size=(16, 3)), RNG.normal(size=(11, 3)), RNG.normal(size=(11, 2))
    kind = AxisType.Explicit if way == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))

    def both(query, key, value):
        def loss(query):
            output = attention(query, key, value, implementation="streaming", **slots)
            return jnp.sum(output**2, axis=None), output

        return jax.grad(loss, has_aux=True)(query)

    expected = jax.jit(both)(query, key, value)
    with jax.set_mesh(mesh):
        query = jax.device_put(query, NamedSharding(mesh, PartitionSpec("x")))
        key, value = (jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for x in (key, value))
        program = jax.jit(both).lower(query, key, value).compile()
        got = program(query, key, value)
    assert_trees_close(jax.device_get(got), jax.device_get(expected), tolerance=1e-11)
    assert all(each.sharding.spec[0] == "x" for each in got), got
    sent = re.findall(
        r"(?:all-gather|all-to-all|collective-permute)(?:-start)?\(", program.as_text()
    )
    assert not sent, sent


QUERIES = {
    "softmax": {},
    "sigmoid, a kernel": {"normalizer": Sigmoid(), "score": Kernel(bandwidth=0.7)},
    "causal, all queries in a block": {"mask": Causal(), "block_size": (16, 4)},
    "sparsemax, all queries in a block": {"normalizer": Sparsemax(), "block_size": (16, 4)},
}


def report(names=None):
    """Print, for each case and way, what went wrong."""
    found = {}
    for name, slots in QUERIES.items():
        for way in WAYS[1:]:
            try:
                compare_queries(way, slots)
            except Exception:
                found[f"{name}, {way}"] = traceback.format_exc()
    for name in names or CASES:
        wrong = compare(CASES[name]())
        found |= {f"{name}, {way}": trace for way, trace in wrong.items()}
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found():
    return report_of("test_meshes")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_mesh_changes_nothing(found, name, way):
    assert f"{name}, {way}" not in found, found[f"{name}, {way}"]


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("name", QUERIES)
def test_queries_stay_where_they_are(found, name, way):
    assert f"{name}, {way}" not in found, found[f"{name}, {way}"]
