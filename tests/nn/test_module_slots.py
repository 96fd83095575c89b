"""Arrays in a module's slots live as its other parameters do: in every module, for every member."""

import copy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from attn_jax import Bilinear, Causal, Dense, Entmax, RelativeBias, Softmax, scores, training
from attn_jax.nn import (
    Attention,
    Decoder,
    Fixed,
    LanguageModel,
    MultiHeadAttention,
    NadarayaWatson,
    Slots,
    Stack,
    TransformerSeq2Seq,
)
from tests import members
from tests.tolerance import assert_close, assert_trees_close

T, D, HEADS, LAYERS = 5, 6, 2, 2
SIZES = {"q": T, "k": T, "d": D // HEADS, "e": 2}
X = np.random.default_rng(0).normal(size=(2, T, D))

KERNELS = [f"kernel_{row.name}" for row in members.KERNELS[1:]]  # one is held as the other
HELD = {
    slot: [member for member in table if member.draws and member.name not in KERNELS]
    for slot, table in members.SLOTS.items()
}
MOST = max(map(len, HELD.values()))
ROWS = [  # every member that holds an array, in as few rows as there are of one slot
    {slot: table[i % len(table)] for slot, table in HELD.items()} for i in range(MOST)
]
each_row = pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "-".join(str(member) for member in row.values())
)


def slots_of(row, seed=3, names=tuple(HELD)):
    return {name: row[name].slot(row[name].arrays(SIZES, seed)) for name in names}


def heads_of(row, seed=3):
    return MultiHeadAttention(D, HEADS, **slots_of(row, seed), rngs=nnx.Rngs(0))


def modules(row, seed=3):
    """A module of every kind that takes slots; another seed gives other arrays of the same form."""
    every = slots_of(row, seed)
    some = {name: every[name] for name in ("score", "normalizer")}
    rngs = nnx.Rngs(seed)
    attends = {"attention": some["score"], "normalizer": some["normalizer"]}
    size = D // HEADS
    return {
        "heads": heads_of(row, seed),
        "stack": Stack(D, HEADS, LAYERS, memory_features=4, **every, rngs=rngs),
        "language model": LanguageModel(7, D, HEADS, LAYERS, **every, positions="none", rngs=rngs),
        "translator": TransformerSeq2Seq(7, 7, D, HEADS, LAYERS, **every, rngs=rngs),
        "attention": Attention(size, size, **some, rngs=rngs),
        "decoder": Decoder(7, size, 2, features=size, embedding=2, **attends, rngs=rngs),
        "regression": NadarayaWatson(normalizer=some["normalizer"]),
    }


def of_slots(state):
    """The variables of the slots, by their path as one string."""
    flat = nnx.to_flat_state(state)
    return {"/".join(map(str, path)): each for path, each in flat if "slots" in path}


def assert_same(module, other):
    assert nnx.graphdef(module) == nnx.graphdef(other)
    assert_trees_close(nnx.state(module), nnx.state(other), tolerance=0)


@each_row
def test_arrays_of_slots_are_variables_in_every_module(row):
    mine, others, abstract = modules(row), modules(row, 5), nnx.eval_shape(lambda: modules(row))
    arrays = sum(len(member.draws) for member in row.values())
    inner = sum(len(row[name].draws) for name in ("score", "normalizer"))
    alone = len(row["normalizer"].draws)
    counts = [arrays, arrays + inner, arrays, 2 * arrays + inner, inner, inner, alone]
    for (name, module), count in zip(mine.items(), counts, strict=True):
        other = others[name]
        held = of_slots(nnx.state(module))
        assert len(held) == count, name
        for variable in held.values():
            learned = jnp.issubdtype(variable.get_value().dtype, jnp.floating)
            assert type(variable) is (nnx.Param if learned else Fixed)

        graphdef, holes = nnx.split(abstract[name])
        assert graphdef == nnx.graphdef(module), name
        filled = jax.tree.map(lambda _, array: array, holes, nnx.state(module))
        assert_same(nnx.merge(graphdef, filled), module)

        pure = nnx.to_pure_dict(nnx.state(other))
        for copied in (nnx.clone(module), copy.deepcopy(module)):
            assert_same(copied, module)
            nnx.update(copied, nnx.state(other))
            assert_trees_close(nnx.state(copied), nnx.state(other), tolerance=0)
        state = nnx.state(module)
        nnx.replace_by_pure_dict(state, pure)
        nnx.update(module, state)
        assert_same(module, other)


def test_flax_s_checkpoint_recipe(tmp_path):
    """Save a state, make the model's shape alone, restore into that, merge."""

    def several(seed):
        heads = {f"heads {i}": heads_of(row, seed) for i, row in enumerate(ROWS)}
        return modules(ROWS[-1], seed) | heads

    built, shapes = several(3), nnx.eval_shape(lambda: several(5))
    split = {name: nnx.split(module) for name, module in shapes.items()}
    saved = {name: nnx.state(module) for name, module in built.items()}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "states", saved)
        checkpointer.save(
            tmp_path / "pure", jax.tree.map(nnx.to_pure_dict, saved, is_leaf=_is_state)
        )
        checkpointer.wait_until_finished()
        holes = {name: state for name, (_, state) in split.items()}
        restored = checkpointer.restore(tmp_path / "states", holes)
        pure = checkpointer.restore(tmp_path / "pure")
    for name, module in built.items():
        graphdef, state = split[name]
        assert_same(nnx.merge(graphdef, restored[name]), module)
        nnx.replace_by_pure_dict(state, nnx.restore_int_paths(pure[name]))
        assert_same(nnx.merge(graphdef, state), module)


def _is_state(tree):
    return isinstance(tree, nnx.State)


@partial(jax.jit, static_argnums=0)
def measured(graphdef, parameters, rest):
    def loss(parameters):
        outputs = nnx.merge(graphdef, parameters, rest)(jnp.asarray(X))
        return (outputs**2).sum(), outputs

    (_, outputs), slopes = jax.value_and_grad(loss, has_aux=True)(parameters)
    return outputs, slopes


@each_row
def test_training_moves_what_the_outputs_depend_on(row):
    """The outputs are those of the slots now, and each floating-point array has a gradient."""
    module, other = heads_of(row), heads_of(row, 5)
    for name, slot in slots_of(row).items():
        pairs = zip(jax.tree.leaves(module.slots[name]), jax.tree.leaves(slot), strict=True)
        assert all((held == given).all() for held, given in pairs)
    outputs, slopes = measured(*nnx.split(module, nnx.Param, ...))
    expected, _ = measured(*nnx.split(other, nnx.Param, ...))
    assert np.abs(outputs - expected).max() > 1e-6
    for path, slope in of_slots(slopes).items():
        assert np.isfinite(slope.get_value()).all()
        assert slope.get_value().any(), path

    optimizer = nnx.Optimizer(module, optax.sgd(1e-3), wrt=nnx.Param)
    before = jax.tree.map(jnp.copy, nnx.state(module, nnx.Param))
    optimizer.update(module, slopes)
    moved = jax.tree.map(lambda old, slope: old - 1e-3 * slope, before, slopes)
    assert_trees_close(nnx.state(module, nnx.Param), moved)

    nnx.update(module, nnx.state(other))
    assert_trees_close(measured(*nnx.split(module, nnx.Param, ...))[0], expected, tolerance=0)


def test_a_shared_slot_is_learned_by_each_layer_and_module_apart():
    sink = jnp.array(0.3)
    build = lambda: Stack(D, HEADS, 3, normalizer=Softmax(sink), rngs=nnx.Rngs(0))  # noqa: E731
    module = build()
    held = of_slots(nnx.state(module))["blocks/attention/slots/normalizer/sink"]
    assert_close(held.get_value(), np.full(3, 0.3))
    slopes = measured(*nnx.split(module, nnx.Param, ...))[1]
    slopes = np.asarray(of_slots(slopes)["blocks/attention/slots/normalizer/sink"].get_value())
    assert len(np.unique(slopes)) == 3
    parts = [MultiHeadAttention(D, HEADS, normalizer=Softmax(sink), rngs=nnx.Rngs(0)) for _ in "ab"]
    pairs = [part.slots.normalizer["sink"].get_value() for part in parts]
    donated = jax.jit(lambda pair: pair, donate_argnums=0)(pairs)  # no buffer is there twice
    assert_close(jnp.stack(donated), np.full(2, 0.3))
    assert_close(sink, 0.3)


def test_fit_trains_a_sink_a_table_and_alpha_and_leaves_a_mask():
    dense = np.tri(T, dtype=bool)
    slots = {"score_mod": RelativeBias(jnp.zeros(8)), "mask": Dense(dense)}
    tokens = np.random.default_rng(1).integers(0, 7, (4, T + 1))
    for normalizer, name in ((Softmax(jnp.array(0.3)), "sink"), (Entmax(jnp.array(1.4)), "alpha")):
        options = {"normalizer": normalizer, "positions": "none", "rngs": nnx.Rngs(0)}
        model = LanguageModel(7, D, HEADS, 1, **slots, **options)
        fitted = training.fit(
            model,
            lambda model, batch, rng: model.loss(batch["tokens"]),
            training.Batches({"tokens": tokens}, batch_size=4),
            steps=2,
            optimizer=optax.sgd(0.1),
            progress=False,
        ).model
        own = fitted.stack.blocks.attention.slots
        assert np.abs(getattr(own["normalizer"], name) - getattr(normalizer, name)).max() > 0
        assert np.abs(own["score_mod"].table).max() > 0
        np.testing.assert_array_equal(own["mask"].right.array[0], dense)
        assert own["mask"].left == Causal()


@pytest.mark.usefixtures("without_shape_hook")
def test_a_variable_in_a_slot_keeps_its_kind_and_what_is_no_array_is_constant():
    def doubled(scores, i, j):
        return 2 * scores

    given = {
        "normalizer": Softmax(Fixed(jnp.array(0.5))),
        "mask": Causal(jnp.array(1)),
        "score": nnx.Linear(2, 3, rngs=nnx.Rngs(0)),
        "score_mod": jax.tree_util.Partial(doubled),
    }
    slots = Slots(**given, other=Softmax(0.25), none=None)
    assert len(jax.tree.leaves(nnx.state(slots, nnx.Param))) == 2  # of the linear layer
    assert type(slots.normalizer["sink"]) is type(slots.mask["offset"]) is Fixed
    assert slots["normalizer"].sink == 0.5
    assert slots["other"] == Softmax(0.25)
    assert slots["none"] is None
    assert slots["score"] is slots.score
    assert_same(slots["score"], given["score"])
    assert slots["score_mod"](3.0, 0, 0) == 6.0
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(slots))  # jax.jit takes it


@pytest.mark.usefixtures("without_shape_hook")
def test_variables_keep_their_metadata():
    """Tags that filters select by, and shardings, which in a stack have one axis more."""
    with jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))):
        weight = nnx.Param(jnp.ones((3, 3)), tag="own", out_sharding=("x", None))
        slots = {"score": Bilinear(weight)}
        stack = Stack(D, HEADS, LAYERS, **slots, rngs=nnx.Rngs(0))
    of_stack = stack.blocks.attention.slots.score["weight"]
    of_layer = stack.layers()[1].attention.slots.score["weight"]
    alone = Slots(**slots).score["weight"]
    assert [each.tag for each in (alone, of_stack, of_layer)] == ["own"] * 3
    assert of_stack.out_sharding == (None, "x", None)
    assert of_layer.out_sharding == alone.out_sharding == ("x", None)


class Scaled(nnx.Module):
    """A module that is a score."""

    def __init__(self):
        self.scale = nnx.Param(jnp.array(2.0), tag="scale")

    def __call__(self, query, key):
        return scores.Dot()(query, key) * self.scale[...]


def test_a_module_as_a_slot_is_copied_and_learned_by_each_layer():
    module = Scaled()
    stack = Stack(D, HEADS, LAYERS, score=module, rngs=nnx.Rngs(0))
    held = stack.blocks.attention.slots.score.scale
    assert held.tag == "scale"
    assert_close(held.get_value(), np.full(LAYERS, 2.0))
    slopes = measured(*nnx.split(stack, nnx.Param, ...))[1]
    assert len(np.unique(slopes.blocks.attention.slots.score.scale.get_value())) == LAYERS
    assert_close(*jax.jit(lambda x: (stack(x), stack.unrolled()(x)))(X))
    stack.blocks.attention.slots.score.scale[...] = jnp.zeros(LAYERS)
    assert module.scale[...] == 2.0


def test_names_do_not_collide():
    given = {"1": jnp.array(1.0), "01": jnp.array(2.0), "_form": jnp.array(3.0), "train": [4.0]}
    slots = Slots(score=given, normalizer=[jnp.array(5.0)])
    assert slots["score"] == given
    assert slots["normalizer"] == [5.0]
    assert len(nnx.to_flat_state(nnx.state(slots))) == 4
    for name in ("train", "eval", "_forms"):
        with pytest.raises(ValueError, match="slots must have names that"):
            Slots(**{name: 1.0})
