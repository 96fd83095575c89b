"""Attention whose sequence is spread over eight devices, against dense attention on one."""

import itertools
import json
import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import attn_jax
from attn_jax import (
    Alibi,
    Causal,
    Dropout,
    Entmax,
    Sigmoid,
    Softmax,
    Window,
    multi_head_attention,
    sharded,
    streaming,
)
from attn_jax.nn import LanguageModel
from attn_jax.sharded.layout import LAYOUTS
from attn_jax.streaming.grid import SKIPPED, make_grid
from attn_jax.streaming.placement import Placement
from tests import members
from tests.several_devices import DEVICES, report_of
from tests.tolerance import assert_trees_close

HEADS = 8
SIZES = {"q": 32, "k": 48, "d": 3, "e": 2}
WAYS = list(itertools.product(("ring", "gather", "heads"), LAYOUTS))


def rows():
    """Each member once beside the first of the other slots, and what heads alone have."""
    scores = [each for each in members.SCORES if not each.name.startswith("kernel_")]
    tables = members.SLOTS | {"score": [scores[1], *scores, members.kernel_member("gaussian")]}
    found = {}
    for slots in members.in_turn(**tables):
        made = {name: each.slot(each.arrays(SIZES)) for name, each in slots.items()}
        found[", ".join(map(str, slots.values()))] = made
    sinks = jnp.linspace(-1.0, 1.0, HEADS)
    found["sinks of heads"] = {"normalizer": Softmax(sinks), "mask": Window(9, 3)}
    return found


SECOND = {
    "a sink of each head": {"normalizer": Softmax(jnp.linspace(-1.0, 1.0, HEADS))},
    "sigmoid, alibi": {"normalizer": Sigmoid(jnp.array(0.2)), "score_mod": Alibi(jnp.array(0.3))},
    "dropout, causal": {"dropout": Dropout(0.4, jax.random.key(1)), "mask": Causal(16)},
    "learned alpha": {"normalizer": Entmax(jnp.array(1.7)), "mask": Window(20, 3)},
}


def operands():
    rng = np.random.default_rng(5)
    shapes = [(SIZES[n], HEADS, SIZES[d]) for n, d in ("qd", "kd", "ke")]
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def compare(slots, how, layout, orders):
    """Assert that values and derivatives are those of dense attention on one device."""
    leaves, structure = jax.tree.flatten(slots)
    learned = [
        n
        for n, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    places = [np.arange(SIZES[n]) for n in "qk"]
    if layout == "zigzag":
        places = [sharded.zigzag(SIZES[n], DEVICES) for n in "qk"]
    mesh = Mesh(np.array(jax.devices()), ("sequence",))

    def everything(attend):
        def output(operands, arrays):
            now = list(leaves)
            for n, array in zip(learned, arrays, strict=True):
                now[n] = array
            return attend(*operands, **structure.unflatten(now))

        def both(operands, arrays):
            loss = lambda *inputs: jnp.sum(jnp.sin(output(*inputs)))  # noqa: E731
            gradient = jax.grad(loss, (0, 1))(operands, arrays)
            pairs = zip(*map(jax.tree.leaves, (gradient, tangents)), strict=True)
            return sum(jnp.sum(one * other) for one, other in pairs), gradient

        def run(operands, arrays):
            found = {"value and jvp": jax.jvp(output, (operands, arrays), tangents)}
            if orders == 1:
                return found | {"gradient": both(operands, arrays)[1]}
            second, first = jax.grad(both, (0, 1), has_aux=True)(operands, arrays)
            return found | {"gradient": first, "second": second}

        return jax.jit(run)(*inputs)

    def ours(query, key, value, **slots):
        where = {"mesh": mesh, "axis": "sequence", "how": how, "layout": layout}
        rows, columns = places
        output = sharded.attention(query[rows], key[columns], value[columns], **where, **slots)
        return output[np.argsort(rows)]

    def dense(query, key, value, **slots):
        return multi_head_attention(query, key, value, implementation="dense", **slots)

    inputs = operands(), [leaves[n] for n in learned]
    tangents = jax.tree.map(
        lambda x: jnp.cos(jnp.arange(x.size, dtype=float)).reshape(x.shape), inputs
    )
    got, expected = jax.device_get((everything(ours), everything(dense)))
    assert_trees_close(got, expected, tolerance=1e-11)


def compare_in_half_precision():
    """The ring's error against float64 is hardly larger than one device's."""
    exact = multi_head_attention(*operands(), mask=Causal(16), implementation="dense")
    half = [each.astype(jnp.bfloat16) for each in operands()]
    mesh = Mesh(np.array(jax.devices()), ("sequence",))
    how = {"mesh": mesh, "axis": "sequence", "how": "ring"}
    one = multi_head_attention(*half, mask=Causal(16), implementation="streaming")
    ring = sharded.attention(*half, mask=Causal(16), **how)
    assert ring.dtype == jnp.bfloat16
    errors = [float(jnp.sqrt(jnp.mean((each.astype(float) - exact) ** 2))) for each in (ring, one)]
    assert errors[0] <= 1.1 * errors[1], errors


def compare_programs():
    """Collectives, and memory: no device has all keys in a ring."""
    mesh = Mesh(np.array(jax.devices()), ("sequence",))
    spread = NamedSharding(mesh, PartitionSpec("sequence"))

    def compiled(how, length, heads, gradient):
        shape = jax.ShapeDtypeStruct((length, heads, 64), jnp.float32, sharding=spread)

        def attend(query, key, value):
            where = {"mesh": mesh, "axis": "sequence", "how": how}
            return sharded.attention(query, key, value, **where, mask=Causal())

        def loss(*inputs):
            return jnp.sum(attend(*inputs) ** 2)

        function = jax.grad(loss, (0, 1, 2)) if gradient else attend
        return jax.jit(function).lower(shape, shape, shape).compile()

    for gradient, count in ((False, 4), (True, 8)):
        text = compiled("heads", 64, HEADS, gradient).as_text()
        assert len(re.findall(r"\ball-to-all\(", text)) == count
        assert not re.search(r"\b(all-gather|collective-permute)\(", text)
    ring, gather = (compiled(how, 65_536, 1, True) for how in ("ring", "gather"))
    sizes = [each.memory_analysis().temp_size_in_bytes for each in (ring, gather)]
    assert sizes[0] <= 0.6 * sizes[1], sizes
    assert "all-gather(" not in ring.as_text()


def compare_inside_others():
    """On an explicit mesh, with an axis for the batch, in vmap and remat; a plain function."""
    explicit = jax.make_mesh((2, 4), ("batch", "sequence"))
    batch = [jnp.stack([each, -each]) for each in operands()]
    bias = jnp.linspace(0.0, 1.0, SIZES["q"])

    def mod(scores, query_index, key_index):
        return scores + bias[query_index] * key_index

    def attend(*arrays):
        return sharded.attention(*arrays, axis="sequence", score_mod=mod, how="ring")

    def loss(*arrays):
        return jnp.sum(jnp.sin(jax.checkpoint(attend)(*arrays)))

    expected = jax.grad(
        lambda *arrays: jnp.sum(jnp.sin(multi_head_attention(*arrays, score_mod=mod))), (0, 1, 2)
    )(*batch)
    with jax.set_mesh(explicit):
        here = NamedSharding(explicit, PartitionSpec("batch", "sequence"))
        placed = [jax.device_put(each, here) for each in batch]
        got = jax.jit(jax.grad(loss, (0, 1, 2)))(*placed)
        assert got[0].sharding.spec[:2] == ("batch", "sequence")
        assert_trees_close(jax.device_get(got), jax.device_get(expected), tolerance=1e-11)


def compare_modules():
    """The loss of a language model and its gradient, on meshes of both kinds."""
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 33)))
    slots = {"normalizer": Softmax(jnp.zeros(4)), "mask": Window(9, 0), "positions": "alibi"}

    def loss(**where):
        size = {"key_value_heads": 2, "dropout": 0.3, "rngs": nnx.Rngs(0)}
        graphdef, state = nnx.split(LanguageModel(11, 8, 4, 2, **slots, **size, **where))

        def of(state):
            return nnx.merge(graphdef, state).loss(tokens, rng=jax.random.key(3))[0]

        return jax.jit(jax.value_and_grad(of))(state)

    expected = loss()
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(jax.make_mesh((DEVICES,), ("sequence",), axis_types=(kind,))):
            got = loss(sequence_axis="sequence")
            assert_trees_close(jax.device_get(got), jax.device_get(expected), tolerance=1e-12)


def report():
    """Print what went wrong in each case."""
    cases = {}
    for number, (name, slots) in enumerate(rows().items()):
        online = not isinstance(slots.get("normalizer"), Entmax | attn_jax.Sparsemax)
        how, layout = WAYS[number % len(WAYS)]
        how = how if online or how != "ring" else "gather"
        cases[name] = lambda slots=slots, how=how, layout=layout: compare(slots, how, layout, 1)
    for number, (name, slots) in enumerate(SECOND.items()):
        online = not isinstance(slots.get("normalizer"), Entmax)
        how, layout = "ring" if online else "gather", LAYOUTS[number % 2]
        cases[name] = lambda slots=slots, how=how, layout=layout: compare(slots, how, layout, 2)
    cases |= {each.__name__: each for each in OTHERS}
    found = {}
    for name, check in cases.items():
        try:
            check()
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


OTHERS = (compare_in_half_precision, compare_programs, compare_inside_others, compare_modules)
NAMES = [*rows(), *SECOND, *(each.__name__ for each in OTHERS)]


@pytest.fixture(scope="module")
def found():
    return report_of("test_sharded")


@pytest.mark.parametrize("name", NAMES)
def test_spread_over_devices_is_the_same(found, name):
    assert name not in found, found[name]


def test_zigzag_balances_causal_blocks():
    length, size = 4096, 64
    grid, _ = make_grid(length, length, (size, size), Causal())
    most = {}
    for zigzag in (False, True):
        placement = Placement("sequence", DEVICES, zigzag, ring=False)
        rows = [placement.placed(grid, device).rows for device in range(DEVICES)]
        counts = [int((grid.kinds[np.asarray(each)] != SKIPPED).sum()) for each in rows]
        assert sorted(np.concatenate(rows).tolist()) == list(range(length // size))
        most[zigzag] = max(counts) / np.mean(counts)
    assert most[True] <= 1.05 < 1.8 < most[False]


def test_positions_of_zigzag_are_a_permutation():
    places = sharded.zigzag(48, 4)
    assert sorted(places.tolist()) == list(range(48))
    halves = places.reshape(4, 2, 6)
    assert (halves.sum(axis=(1, 2)) == halves[0].sum()).all()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "time"}, r"axis must be one of the mesh's, \('sequence',\)"),
        ({"how": "rings"}, "how must be one of auto, heads, ring, gather"),
        ({"layout": "striped"}, "layout must be one of contiguous, zigzag"),
        ({"layout": "zigzag"}, "query must have a length that 2 divides, for 1 devices"),
    ],
)
def test_bad_input_is_named(options, message):
    x = jnp.zeros((3, 2, 4))
    mesh = Mesh(np.array(jax.devices()[:1]), ("sequence",))
    with pytest.raises(ValueError, match=message):
        sharded.attention(x, x, x, **{"mesh": mesh, "axis": "sequence"} | options)


@pytest.mark.usefixtures("without_shape_hook")
def test_ways_that_do_not_serve_are_named():
    mesh = jax.sharding.AbstractMesh((4,), ("sequence",))
    x = jnp.zeros((8, 2, 4))
    how = {"mesh": mesh, "axis": "sequence"}
    with pytest.raises(ValueError, match="how must not be 'heads' unless the 4 devices divide"):
        sharded.attention(x, x, x, **how, how="heads")
    with pytest.raises(ValueError, match="how must not be 'ring' unless the normalizer is Softmax"):
        sharded.attention(x, x, x, **how, how="ring", normalizer=Entmax(1.5))
    with pytest.raises(ValueError, match="key must have a length that 4 divides"):
        sharded.attention(x, x[:6], x[:6], **how)
    own = lambda scores, where=None, axis=-1: scores  # noqa: E731
    with pytest.raises(
        ValueError, match="normalizer must be Softmax, Sigmoid, Sparsemax or Entmax where"
    ):
        sharded.attention(x, x, x, **how, normalizer=own)
    assert not streaming.has_form(own)
