"""streaming: blocks, what a mask lets through of them, derivatives of any order, memory.

That streaming means what dense means is tested contract by contract in test_attention.py.
"""

import functools
import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import (
    Additive,
    Alibi,
    Bias,
    Causal,
    Entmax,
    Kernel,
    Padding,
    Prefix,
    ScaledDot,
    Segments,
    Sigmoid,
    SoftCap,
    Softmax,
    Sparsemax,
    Window,
    attention,
    chain,
    masks,
    score_mods,
)
from attn_jax.block_mask import Span
from attn_jax.streaming.grid import make_grid
from tests.members import DENSE, MASKS, SCORE_MODS, SIZES, STREAMING, Implementation, inputs
from tests.tolerance import assert_close, assert_trees_close

# what is called here, other files call under the hook
pytestmark = pytest.mark.usefixtures("without_shape_hook")

Q, K, E = SIZES["q"], SIZES["k"], SIZES["e"]
COTANGENT = np.random.default_rng(17).normal(size=(Q, E))
BLOCKS = [(1, 1), (2, 3), (4, 2), (3, 4), (5, 7)]
each_size = pytest.mark.parametrize("size", BLOCKS, ids=str)


# 1. Blocks of the pairs


def blocks(size, of=(Q, K)):
    """(row, column) of each block with the slices of the pairs that it holds."""
    for row, column in itertools.product(*(range(0, n, s) for n, s in zip(of, size, strict=True))):
        slices = slice(row, row + size[0]), slice(column, column + size[1])
        yield (row // size[0], column // size[1]), slices


@each_size
def test_a_block_has_the_indices_and_the_entries_that_are_its_own(size):
    """A block that reaches beyond the last pair says so, and names no index that does not exist."""
    grid, _ = make_grid(Q, K, size, None)
    array = np.arange(Q * K).reshape(Q, K)

    @jax.jit
    def of_block(start):
        block = grid.block(start)
        real = True if block.real is None else block.real
        return *block.indices, jnp.broadcast_to(real, size), block.take(jnp.asarray(array))

    for _, inside in blocks(size):
        start = tuple(each.start for each in inside)
        rows, columns, real, entries = map(np.asarray, of_block(start))
        assert rows.max() < Q
        assert columns.max() < K
        expected = np.zeros(size, bool)
        expected[: array[inside].shape[0], : array[inside].shape[1]] = True
        np.testing.assert_array_equal(real, expected)
        np.testing.assert_array_equal(entries[real].ravel(), array[inside].ravel())
        np.testing.assert_array_equal(array[rows, columns][real].ravel(), array[inside].ravel())


@pytest.mark.parametrize("size", BLOCKS[1:3], ids=str)
@pytest.mark.parametrize("member", MASKS[1:], ids=str)
def test_a_mask_in_a_block_is_a_block_of_the_mask(member, size):
    mask = member.slot()
    grid, whole = make_grid(Q, K, size, None)[0], np.asarray(mask.dense(Q, K))
    in_block = jax.jit(lambda start: masks.in_block(mask, grid.block(start)))
    for _, inside in blocks(size):
        got = np.broadcast_to(in_block(tuple(each.start for each in inside)), size)
        rows, columns = whole[inside].shape
        np.testing.assert_array_equal(got[:rows, :columns], whole[inside])


@pytest.mark.parametrize("size", BLOCKS[1:3], ids=str)
@pytest.mark.parametrize("member", SCORE_MODS[1:], ids=str)
def test_a_score_mod_in_a_block_is_a_block_of_the_score_mod(member, size):
    mod, scores = member.slot(), inputs()[0] @ inputs()[1].T
    padded = np.pad(scores, ((0, size[0]), (0, size[1])))
    whole = np.asarray(mod(scores, jnp.arange(Q)[:, None], jnp.arange(K)[None, :]))
    grid, _ = make_grid(Q, K, size, None)
    in_block = jax.jit(lambda part, start: score_mods.in_block(mod, part, grid.block(start)))
    for _, inside in blocks(size):
        got = np.asarray(in_block(padded[inside], tuple(each.start for each in inside)))
        rows, columns = whole[inside].shape
        assert_close(got[:rows, :columns], whole[inside])


# 2. What a mask lets through of a block


def spans(size):
    firsts = [np.arange(0, n, s) for n, s in zip((Q, K), size, strict=True)]
    ends = zip(firsts, size, (Q, K), strict=True)
    return [Span(first, np.minimum(first + s, n) - 1) for first, s, n in ends]


def found(mask, size):
    """What `block_mask` says, and for each block whether any and whether all pairs are allowed."""
    block_mask, whole = mask.block_mask(*spans(size)), np.asarray(mask.dense(Q, K))
    some, every = (np.zeros(block_mask.any.shape, bool) for _ in range(2))
    for at, inside in blocks(size):
        some[at], every[at] = whole[inside].any(), whole[inside].all()
    return block_mask, some, every


N = {n: jnp.array(n) for n in range(7)}  # positions that are known at run time only
AT_RUN_TIME = {
    "causal": Causal(N[1]),
    "window": Window(N[2], N[1]),
    "window_half": Window(2, N[1]),
    "padding": Padding(N[4]),
    "padding_empty": Padding(N[0]),
    "padding_both": Padding(N[6], N[3]),
    "padding_of_queries": Padding(6, N[3]),
    "prefix": Prefix(N[2]),
    "segments": Segments(jnp.array([0, 0, 1, 1, 2]), jnp.array([0, 0, 0, 1, 1, 1, 2])),
    "segments_unsorted": Segments(jnp.array([1, 0, 2, 0, 1]), jnp.array([0, 2, 2, 1, 0, 1, 0])),
    "and": Causal(1) & Padding(N[4]),
    "and_both": Causal(N[1]) & Padding(N[4]),
    "or": Prefix(N[3]) | Causal(),
    "or_both": Prefix(N[3]) | Causal(N[0]),
    "or_all": Prefix(7) | Causal(N[0]),
    "not": ~Padding(N[4]),
    "not_and": ~(Window(N[1], 1) & Causal()) & Prefix(5),
    "function": Causal() & (lambda i, j: (i + j) % 2 == 0),
    "function_or": Causal() | (lambda i, j: j == 6),
    "not_function": ~(Prefix(3) & (lambda i, j: j > i)),
}


@each_size
@pytest.mark.parametrize(
    "mask",
    [*(m.slot() for m in MASKS[1:]), *AT_RUN_TIME.values()],
    ids=[*map(str, MASKS[1:]), *(f"{name}_at_run_time" for name in AT_RUN_TIME)],
)
def test_reach_is_never_wrong(mask, size):
    block_mask, some, every = found(mask, size)
    assert not (some & ~block_mask.any).any()
    assert not (block_mask.all & ~every).any()
    if block_mask.runtime_any is not None:
        assert not (some & ~np.asarray(block_mask.runtime_any)).any()


@each_size
@pytest.mark.parametrize(
    "member",
    [m for m in MASKS if m.name.startswith(("causal", "window", "padding", "prefix"))],
    ids=str,
)
def test_reach_finds_every_block_of_a_static_mask(member, size):
    block_mask, some, every = found(member.slot(), size)
    np.testing.assert_array_equal(block_mask.any, some)
    np.testing.assert_array_equal(block_mask.all, every)


@each_size
@pytest.mark.parametrize(
    "name", ["causal", "window", "padding", "padding_empty", "prefix", "segments", "and_both"]
)
def test_reach_finds_every_empty_block_at_run_time(name, size):
    if name == "segments" and size != (1, 1):
        pytest.skip("ranges of ids may meet where no id does")
    block_mask, some, _ = found(AT_RUN_TIME[name], size)
    np.testing.assert_array_equal(block_mask.any & np.asarray(block_mask.runtime_any), some)


# 3. What is not computed

RUNS = {
    "no mask": None,
    "causal": Causal(),
    "causal_earlier": Causal(-2),
    "window": Window(1, 0),
    "padding": Padding(4, 3),
    "not_prefix": ~Prefix(3),
    "combined": Prefix(2) | (Causal() & Window(2, None)),
    "traced_padding": Padding(N[4], N[3]),
    "traced_causal": Causal(N[0]),
    "traced_empty": Padding(N[0]),
    "traced_and_static": Causal(1) & Padding(N[2]),
    "segments": AT_RUN_TIME["segments"],
}


class Counter:
    """Counts how often a compiled program comes by."""

    def __init__(self):
        self.count, self.lock = 0, threading.Lock()

    def passes(self):
        def add():
            with self.lock:  # callbacks come from several threads
                self.count += 1

        jax.debug.callback(add)

    def of(self, function, *arguments):
        jax.effects_barrier()
        self.count = 0
        jax.block_until_ready(function(*arguments))
        jax.effects_barrier()
        return self.count


def visible(mask, size, of=(Q, K)):
    """The numbers of blocks with a pair that is allowed, with one that is not too, and of all."""
    whole = np.ones(of, bool) if mask is None else np.asarray(mask.dense(*of))
    insides = [whole[inside] for _, inside in blocks(size, of)]
    some = [each for each in insides if each.any()]
    return len(some), sum(not each.all() for each in some), len(insides)


def programs(counter, normalizer, size):
    """{name: program of (arrays, mask)}, forward and gradient, whose score counts its calls."""

    def score(query, key):
        counter.passes()
        return query @ key.T

    def output(arguments, mask):
        slots = {"score": score, "normalizer": normalizer, "mask": mask}
        return attention(*arguments, **slots, implementation="streaming", block_size=size)

    gradient = jax.grad(lambda *x: (output(*x) ** 2).sum())
    return {"forward": jax.jit(output), "gradient": jax.jit(gradient)}


FEW = ("no mask", "window", "traced_and_static")


@pytest.mark.parametrize(
    ("normalizer", "which", "names"),
    [(Softmax(), "forward", RUNS), (Softmax(), "gradient", FEW), (Entmax(1.5), "gradient", FEW)],
    ids=["softmax", "softmax_gradient", "entmax_gradient"],
)
def test_blocks_that_a_mask_empties_are_not_computed(normalizer, which, names):
    """Each visible block is compared equally often, each other one never."""
    size, counter = (2, 3), Counter()
    program = programs(counter, normalizer, size)[which]
    got = {name: counter.of(program, inputs(), RUNS[name]) for name in names}
    total = visible(None, size)[0]
    assert got["no mask"] >= total
    per_block = got["no mask"] / total
    expected = {name: per_block * visible(RUNS[name], size)[0] for name in names}
    assert got == expected


@jax.tree_util.register_static
class Counted(attn_jax.masks.Mask):
    """A mask that counts how often it is evaluated."""

    def __init__(self, mask, counter):
        self.mask, self.counter = mask, counter

    def __call__(self, query_index, key_index):
        self.counter.passes()
        return self.mask(query_index, key_index)

    def block_mask(self, rows, columns):
        return masks.block_mask(self.mask, rows, columns)


@pytest.mark.parametrize("which", ["forward", "gradient"])
def test_a_mask_is_evaluated_in_the_blocks_only_that_it_cuts(which):
    """Of 2 x 2 blocks it leaves two whole, and of a function nothing is known."""
    arguments, counter = inputs(SIZES | {"q": 4, "k": 6}), Counter()

    def evaluations(mask):
        program = programs(Counter(), Softmax(), (2, 3))[which]
        return counter.of(program, arguments, Counted(mask, counter))

    assert visible(Causal(2), (2, 3), (4, 6)) == (4, 2, 4)
    known, unknown = evaluations(Causal(2)), evaluations(lambda i, j: j <= i + 2)
    assert 0 < known <= 0.6 * unknown  # half; JAX 0.12 drops one of the gradient's unused ones


# 4. Grids of other shapes

GRIDS = {
    "halves_above": ((5, 7), (4, 2), Window(0, 1)),
    "halves_below": ((5, 7), (4, 2), Causal(-1)),
    "band": ((11, 13), (1, 1), Window(1, 2)),
    "rows_without_keys": ((29, 7), (1, 1), Causal(-1) & Window(2, None)),
    "same_columns_for_all": ((29, 7), (2, 1), ~Prefix(3) & Causal()),
    "nothing_visible": ((5, 7), (2, 3), Padding(0)),
    "one_block_visible": ((5, 7), (2, 3), ~Prefix(6) & Padding(7, 2)),
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def of_grid(how, normalizer, mask, arguments):
    """Scores are close to each other, so that most of what is visible has a weight."""
    slots = {"score": ScaledDot(0.2), "normalizer": normalizer, "mask": mask}
    slots |= {"score_mod": Alibi(0.01), "dropout": attn_jax.Dropout(0.3, jax.random.key(2))}

    def loss(arguments):
        output = how.attention(*arguments, **slots)
        return (output**2).sum(), output

    return jax.grad(loss, has_aux=True)(arguments)


@pytest.mark.parametrize(
    ("normalizer", "name"),
    [(Softmax(0.3), name) for name in GRIDS]
    + [(Entmax(2.4), name) for name in ("halves_below", "band", "nothing_visible")],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_whatever_a_mask_leaves_of_the_grid(normalizer, name):
    """For dense the mask is an array, so that grids of one shape share its program."""
    (q, k), size, mask = GRIDS[name]
    arguments = inputs(SIZES | {"q": q, "k": k})
    got = of_grid(Implementation("streaming", size), normalizer, mask, arguments)
    whole = attn_jax.Dense(np.asarray(mask.dense(q, k)))
    assert_trees_close(got, of_grid(DENSE, normalizer, whole, arguments))


# 5. Derivatives of every order


def rich(how, arrays, length):
    """Learned arrays in every slot, a mask that is half static and half traced, an empty row."""
    slots = {
        "score": Kernel(bandwidth=arrays["bandwidth"]),
        "score_mod": chain(Bias(arrays["bias"]), SoftCap(arrays["cap"])),
        "mask": Causal(-1) & Padding(length),
        "normalizer": Entmax(arrays["alpha"]) if "alpha" in arrays else Softmax(arrays["sink"]),
    }
    return how.attention(arrays["query"], arrays["key"], arrays["value"], **slots)


def rich_arrays(seed, normalizer="sink"):
    rng = np.random.default_rng(seed)
    arrays = dict(zip(("query", "key", "value"), inputs(seed=seed), strict=True))
    drawn = {
        "bandwidth": rng.uniform(0.7, 2.0, SIZES["d"]),
        "bias": rng.normal(size=(Q, K)),
        "cap": rng.uniform(1.2, 1.4),
        normalizer: rng.uniform(1.6, 2.6),
    }
    return arrays | jax.tree.map(jnp.asarray, drawn)


SECOND = {
    "hessian": jax.hessian,
    "grad of grad": lambda loss: jax.jacrev(jax.grad(loss)),
}


@pytest.mark.parametrize(("name", "normalizer"), [("hessian", "sink"), ("grad of grad", "alpha")])
def test_derivatives_are_those_of_dense(name, normalizer):
    """Under jit and vmap, over examples with their own lengths."""

    def derivatives(how, arrays, length):
        def loss(part):
            return (rich(how, arrays | part, length) * COTANGENT).sum()

        part = {n: each for n, each in arrays.items() if n not in ("key", "value", "bias")}
        return SECOND[name](loss)(part)

    examples = jax.tree.map(lambda *x: jnp.stack(x), *(rich_arrays(n, normalizer) for n in (0, 1)))
    got, expected = (
        jax.jit(jax.vmap(functools.partial(derivatives, how)))(examples, jnp.array([3, 6]))
        for how in (STREAMING, DENSE)
    )
    assert all(np.any(each) for each in jax.tree.leaves(got))
    assert_trees_close(got, expected, tolerance=1e-9)


@pytest.mark.parametrize("normalizer", ["sink", "alpha"])
def test_gradient_of_a_batch(normalizer):
    """The other order, as in training: examples with their own lengths, one loss, shared arrays."""
    shared = rich_arrays(0, normalizer)
    batch = jnp.stack([shared["query"], -shared["query"]])

    def gradient(how, shared, batch, lengths):
        def loss(shared, batch):
            outputs = jax.vmap(lambda query, n: rich(how, shared | {"query": query}, n))
            return (outputs(batch, lengths) ** 2).sum()

        return jax.grad(loss, (0, 1))(shared, batch)

    got, expected = (
        jax.jit(functools.partial(gradient, how))(shared, batch, jnp.array([3, 6]))
        for how in (STREAMING, DENSE)
    )
    assert_trees_close(got, expected)


def test_learned_alpha():
    """One program for all: near softmax, at sparsemax, beyond; first and second derivatives."""
    direction = inputs(seed=8)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(how, arguments, alpha):
        def output(arguments, alpha):
            return how.attention(*arguments, normalizer=Entmax(alpha), mask=Causal(1))

        def gradient(arguments, alpha):
            return jax.grad(lambda *x: (output(*x) * COTANGENT).sum(), (0, 1))(arguments, alpha)

        point, tangents = (arguments, alpha), (direction, jnp.ones_like(alpha))
        return jax.jvp(output, point, tangents), jax.jvp(gradient, point, tangents)

    for alpha in map(jnp.asarray, (1.001, 1.3, 2.0, 2.1, 6.0)):
        got, expected = (derivatives(how, inputs(), alpha) for how in (STREAMING, DENSE))
        assert_trees_close(got, expected, tolerance=1e-9)


def test_what_functions_close_over_is_differentiated_wherever_it_is():
    """In a score, a mod, a mask's operand (where no derivative is) and inside a kernel."""

    def output(how, matrix, slope, width, limit):
        slots = {
            "score": Kernel(lambda u: -width * u**2 / (1 + u)),
            "score_mod": chain(SoftCap(2.0), lambda s, i, j: s - slope * (i - j) ** 2),
            "mask": Causal(3) & (lambda i, j: j < limit),
        }
        query, key, value = inputs()
        return how.attention(query @ matrix, key, value, **slots)

    def loss(how, *learned):
        return (output(how, *learned, 6) * COTANGENT).sum()

    learned = (jnp.eye(3) * 0.7, jnp.asarray(0.1), jnp.asarray(0.9))
    got, expected = (
        jax.jit(jax.value_and_grad(functools.partial(loss, how), (0, 1, 2)))(*learned)
        for how in (STREAMING, DENSE)
    )
    assert_trees_close(got, expected)


def test_surroundings_of_a_function_may_change():
    """The same function at each call: the method of a module whose parameter is trained, say."""

    class Module:
        width, limit = 1.0, 3

        def kernel(self, u):
            return -self.width * u

        def mask(self, i, j):
            return j < self.limit

    module = Module()

    def loss(width, how):
        module.width = width
        slots = {"score": Kernel(module.kernel), "mask": Causal(5) & module.mask}
        return (how.attention(*inputs(), **slots) * COTANGENT).sum()

    for width, module.limit in [(0.5, 3), (1.5, 5)]:
        assert_close(*(loss(width, how) for how in (STREAMING, DENSE)))
    assert_close(*(jax.grad(loss)(2.5, how) for how in (STREAMING, DENSE)))


# 6. Memory: programs are compiled, not run

LONG, WIDTHS = 2**14, (16, 16, 8)
VECTOR = jnp.ones(16, "float32")
PROGRAMS = {
    "softmax": {},
    "sink": {"normalizer": Softmax(jnp.float32(0.3))},
    "causal": {"mask": Causal()},
    "sigmoid": {"normalizer": Sigmoid()},
    "sparsemax": {"normalizer": Sparsemax()},
    "entmax15": {"normalizer": Entmax(1.5)},
    "entmax_learned": {"normalizer": Entmax(jnp.float32(1.7))},
    "additive": {"score": Additive(VECTOR)},
    "kernel_per_feature": {"score": Kernel(bandwidth=VECTOR)},
    "alibi_and_dropout": {
        "score_mod": Alibi(0.1),
        "dropout": attn_jax.Dropout(0.1, jax.random.key(0)),
    },
}


def temporaries(derivative, slots, n=LONG, implementation="streaming"):
    """Bytes that the program needs beside its arguments and results."""

    def output(*arrays):
        return attention(*arrays, **slots, implementation=implementation)

    arrays = [jax.ShapeDtypeStruct((n, width), "float32") for width in WIDTHS]
    compiled = jax.jit(derivative(output)).lower(*arrays).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def forward(output):
    return output


def gradient(output):
    return jax.grad(lambda *arrays: (output(*arrays) ** 2).sum(), (0, 1, 2))


def tangent(output):
    """All three arrays move at once."""
    return lambda *arrays: jax.jvp(output, arrays, arrays)


def curvature(output):
    return lambda *arrays: jax.jvp(gradient(output), arrays, arrays)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_need_no_array_of_all_pairs(name):
    """A sixteenth of one such array at most; dense needs five of them."""
    assert temporaries(gradient, PROGRAMS[name]) < LONG**2 * 4 / 16


@pytest.mark.parametrize("derivative", [forward, tangent, curvature])
def test_no_program_needs_an_array_of_all_pairs(derivative):
    assert temporaries(derivative, {}) < LONG**2 * 4 / 16
    assert temporaries(derivative, {}, implementation="dense") > LONG**2 * 4


def test_memory_grows_with_the_keys_not_with_the_pairs():
    once, twice = (temporaries(gradient, {}, n) for n in (LONG, 2 * LONG))
    assert twice < 2.2 * once


# 7. Calls


def compilations(caplog):
    return [each for each in caplog.records if "Compiling" in each.getMessage()]


def test_a_call_with_slots_alone_compiles_once(caplog):
    """Other values of the arrays, lengths included, are no other program."""

    def call(seed, length):
        arrays = rich_arrays(seed)
        rich(STREAMING, arrays, jnp.asarray(length)).block_until_ready()

    call(0, 3)
    with jax.log_compiles(True), caplog.at_level("WARNING"):
        call(1, 5)
        assert not compilations(caplog)
        rich(Implementation("streaming", (3, 2)), rich_arrays(1), jnp.asarray(5))
        assert compilations(caplog)


BIAS = jnp.ones((Q, K))
WHOLE_ARRAYS = [
    ({"score_mod": lambda s, i, j: s + BIAS}, "score_mod must work on a block of pairs: index"),
    (
        {"score_mod": chain(SoftCap(1.0), lambda s, i, j: jnp.where(BIAS > 0, s, 0.0))},
        "score_mod must work on a block of pairs: index",
    ),
    (
        {"mask": lambda i, j: (BIAS > 0) & (j <= i)},
        "mask must work on a block of pairs: index what it closes over with query_index",
    ),
    ({"mask": Causal() & (lambda i, j: BIAS > 0)}, "mask must work on a block of pairs: index"),
    ({"mask": lambda i, j: BIAS > 0}, r"mask must return shape \[q, k\] = \[2, 3\]"),
    ({"score": lambda q, k: q @ k.T + BIAS}, "score must compare any number of queries and keys"),
    ({"score": lambda q, k: BIAS}, r"score must return shape \[q, k\] = \[2, 3\]"),
]


@pytest.mark.parametrize(("slots", "message"), WHOLE_ARRAYS)
def test_functions_of_whole_arrays_are_told_what_a_block_is(slots, message):
    DENSE.attention(*inputs(), **slots)
    with pytest.raises(ValueError, match=rf"^{message}.*\. Got .*(5, 7|5,7)"):
        STREAMING.attention(*inputs(), **slots)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("score", lambda h: {"score": lambda q, k: h * q @ k.T / k.shape[0]}),
        ("score", lambda h: {"score": lambda q, k: h * jax.nn.softmax(q @ k.T)}),
        ("score", lambda h: {"score": lambda q, k: q @ k.T - jnp.max(h * q @ k.T)}),
        ("score", lambda h: {"score": lambda q, k: q @ (h * k - k.mean(axis=0)[None]).T}),
        ("score_mod", lambda h: {"score_mod": lambda s, i, j: s / jnp.sum(h * s**2)}),
        ("score_mod", lambda h: {"score_mod": lambda s, i, j: h * jnp.cumsum(s, axis=1)}),
        ("mask", lambda h: {"mask": lambda i, j: (j < j.max()) & (i >= 0)}),
    ],
)
def test_what_compares_more_than_pairs_is_refused(name, slots):
    """In a block it would mean something else than in all pairs; also where it holds a tracer."""
    arguments = inputs()

    def loss(h):
        return attention(
            *arguments, **slots(h), implementation="streaming", block_size=(2, 3)
        ).sum()

    several = np.ones(2)
    for call, h in ((loss, 1.3), (jax.jit(jax.grad(loss)), 1.3), (jax.vmap(loss), several)):
        with pytest.raises(ValueError, match=rf"^{name} must look at each query and key by itself"):
            call(h)
