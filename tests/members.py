"""The table of members: one row for each member of each slot; every contract test runs over it.

A row says how the slot is made from its arrays. `library` is attn_jax or tests.oracles: both have
the same names, so that one row gives the member and its oracle. Beside them the implementations:
the contract tests run over those too.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

import attn_jax
from tests import oracles

SIZES = {"q": 5, "k": 7, "d": 3, "e": 2}


def normal(*axes):
    return lambda rng, sizes: rng.normal(size=[sizes[a] for a in axes])


def uniform(low, high, *axes):
    return lambda rng, sizes: rng.uniform(low, high, [sizes[a] for a in axes])


def buckets(count):
    return lambda rng, sizes: rng.normal(size=count)


def labels(axis):
    return lambda rng, sizes: np.sort(rng.integers(0, 3, sizes[axis]))


def coins(*axes):
    return lambda rng, sizes: rng.random([sizes[a] for a in axes]) < 0.6


@dataclass(frozen=True)
class Member:
    """`make(library, **arrays)` gives the slot; `draws` gives each array from (rng, sizes)."""

    name: str
    make: Callable
    draws: dict[str, Callable] = field(default_factory=dict)

    def __str__(self):
        return self.name

    def arrays(self, sizes=SIZES, seed=3):
        rng = np.random.default_rng(seed)
        return {name: draw(rng, sizes) for name, draw in self.draws.items()}

    def slot(self, arrays=None, dtype=None):
        """The member of attn_jax, on JAX arrays."""
        arrays = {
            n: jnp.asarray(a) for n, a in (self.arrays() if arrays is None else arrays).items()
        }
        if dtype is not None:
            arrays = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}
        return self.make(attn_jax, **arrays)

    def oracle(self, arrays=None):
        """Its twin, on NumPy arrays."""
        return self.make(oracles, **(self.arrays() if arrays is None else arrays))


@dataclass(frozen=True)
class KernelRow:
    """`curvature` is -d² log K / du² at u = 0, None at a kink."""

    name: str
    compact: bool
    curvature: float | None

    def __str__(self):
        return self.name


KERNELS = [
    KernelRow("gaussian", compact=False, curvature=1.0),
    KernelRow("boxcar", compact=True, curvature=0.0),
    KernelRow("triangular", compact=True, curvature=None),
    KernelRow("epanechnikov", compact=True, curvature=2.0),
    KernelRow("biweight", compact=True, curvature=4.0),
    KernelRow("triweight", compact=True, curvature=6.0),
    KernelRow("tricube", compact=True, curvature=0.0),
    KernelRow("cosine", compact=True, curvature=math.pi**2 / 4),
    KernelRow("logistic", compact=False, curvature=0.5),
    KernelRow("laplace", compact=False, curvature=None),
]


def kernel_member(name):
    return Member(
        f"kernel_{name}",
        lambda library, bandwidth: library.Kernel(getattr(library.kernels, name), bandwidth),
        {"bandwidth": uniform(2.0, 2.6)},
    )


SCORES = [
    Member("dot", lambda library: library.Dot()),
    Member("scaled_dot", lambda library: library.ScaledDot()),
    Member(
        "scaled_dot_scale", lambda library, scale: library.ScaledDot(scale), {"scale": normal()}
    ),
    Member("cosine", lambda library: library.Cosine()),
    Member("cosine_scale", lambda library, scale: library.Cosine(scale), {"scale": normal()}),
    Member("bilinear", lambda library, weight: library.Bilinear(weight), {"weight": normal(*"dd")}),
    Member("additive", lambda library, weight: library.Additive(weight), {"weight": normal("d")}),
    *(kernel_member(row.name) for row in KERNELS),
    Member(
        "kernel_per_feature",
        lambda library, bandwidth: library.Kernel(bandwidth=bandwidth),
        {"bandwidth": uniform(0.7, 2.0, "d")},
    ),
]

SCORE_MODS = [
    Member("no_score_mod", lambda library: None),
    Member("bias", lambda library, bias: library.Bias(bias), {"bias": normal(*"qk")}),
    Member(
        "relative_bias",
        lambda library, table: library.RelativeBias(table, max_distance=5),
        {"table": buckets(8)},
    ),
    Member(
        "relative_bias_backward",
        lambda library, table: library.RelativeBias(table, bidirectional=False, max_distance=4),
        {"table": buckets(6)},
    ),
    Member("alibi", lambda library, slope: library.Alibi(slope), {"slope": uniform(0.2, 0.6)}),
    Member(
        "alibi_later",
        lambda library, slope: library.Alibi(slope, offset=2),
        {"slope": uniform(0.2, 0.6)},
    ),
    Member(
        "relative_bias_later",
        lambda library, table: library.RelativeBias(table, max_distance=5, offset=2),
        {"table": buckets(8)},
    ),
    Member("soft_cap", lambda library, cap: library.SoftCap(cap), {"cap": uniform(0.8, 1.2)}),
    Member(
        "bias_then_soft_cap",
        lambda library, bias, cap: library.chain(library.Bias(bias), library.SoftCap(cap)),
        {"bias": normal(*"qk"), "cap": uniform(0.8, 1.2)},
    ),
    Member(
        "soft_cap_then_alibi_then_bias",
        lambda library, cap, slope, bias: library.chain(
            library.SoftCap(cap), library.Alibi(slope), library.Bias(bias)
        ),
        {"cap": uniform(0.8, 1.2), "slope": uniform(0.2, 0.6), "bias": normal(*"qk")},
    ),
]

MASKS = [
    Member("no_mask", lambda library: None),
    Member("causal", lambda library: library.Causal()),
    Member("causal_later", lambda library: library.Causal(offset=2)),
    Member("causal_earlier", lambda library: library.Causal(offset=-2)),
    Member("window", lambda library: library.Window(2, 1)),
    Member("window_later", lambda library: library.Window(2, 1, offset=2)),
    Member("window_left", lambda library: library.Window(1, None)),
    Member("window_right", lambda library: library.Window(None, 0)),
    Member("padding", lambda library: library.Padding(4)),
    Member("padding_both", lambda library: library.Padding(6, query_length=3)),
    Member(
        "segments",
        lambda library, query_ids, key_ids: library.Segments(query_ids, key_ids),
        {"query_ids": labels("q"), "key_ids": labels("k")},
    ),
    Member("prefix", lambda library: library.Prefix(2)),
    Member("dense", lambda library, array: library.Dense(array), {"array": coins(*"qk")}),
    Member("causal_and_padding", lambda library: library.Causal(1) & library.Padding(4)),
    Member("prefix_or_causal", lambda library: library.Prefix(3) | library.Causal()),
    Member("not_window", lambda library: ~library.Window(1, 1)),
    Member(
        "nested",
        lambda library, array: (
            ~(library.Dense(array) & library.Prefix(5)) & (library.Causal() | library.Padding(2))
        ),
        {"array": coins(*"qk")},
    ),
]

NORMALIZERS = [
    Member("softmax", lambda library: library.Softmax()),
    Member("softmax_sink", lambda library, sink: library.Softmax(sink), {"sink": normal()}),
    Member("sparsemax", lambda library: library.Sparsemax()),
    Member("entmax15", lambda library: library.Entmax(1.5)),
    Member("entmax", lambda library, alpha: library.Entmax(alpha), {"alpha": uniform(1.6, 1.8)}),
    Member("entmax_steep", lambda library: library.Entmax(3.0)),
    Member("sigmoid", lambda library: library.Sigmoid()),
    Member("sigmoid_bias", lambda library, bias: library.Sigmoid(bias), {"bias": normal()}),
]

SLOTS = {
    "score": SCORES,
    "score_mod": SCORE_MODS,
    "mask": MASKS,
    "normalizer": NORMALIZERS,
}
ROWS = [(slot, member) for slot, table in SLOTS.items() for member in table]


def in_turn(**tables):
    """Rows {slot: member}, as many as the longest table has: each member once, then the first."""
    columns = itertools.zip_longest(*tables.values())
    firsts = [table[0] for table in tables.values()]
    return [
        {slot: member or first for slot, member, first in zip(tables, row, firsts, strict=True)}
        for row in columns
    ]


@dataclass(frozen=True)
class Implementation:
    """`attention` and `attention_and_logsumexp` by one implementation; static under `jax.jit`."""

    name: str
    block_size: tuple[int, int] | None = None

    def __str__(self):
        return self.name if self.block_size is None else f"{self.name}{self.block_size}"

    @property
    def options(self):
        return {"implementation": self.name, "block_size": self.block_size}

    def attention(self, *arrays, **slots):
        return attn_jax.attention(*arrays, **slots, **self.options)

    def attention_and_logsumexp(self, *arrays, **slots):
        return attn_jax.attention_and_logsumexp(*arrays, **slots, **self.options)


DENSE = Implementation("dense")
STREAMING = Implementation("streaming", (2, 3))  # no block divides 5 queries or 7 keys
IMPLEMENTATIONS = [DENSE, STREAMING]


def inputs(sizes=SIZES, seed=7, dtype="float64"):
    """Random query [q, d], key [k, d], value [k, e]."""
    rng = np.random.default_rng(seed)
    shapes = [(sizes[rows], sizes[features]) for rows, features in ("qd", "kd", "ke")]
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
