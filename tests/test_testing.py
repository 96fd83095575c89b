"""The property-test kit passes on what is right and catches, by name, what is not."""

import functools
import subprocess
import sys
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import testing
from attn_jax.testing import (
    ATTENTION_INVARIANTS,
    NORMALIZER_INVARIANTS,
    InvariantError,
    check_attention,
    check_normalizer,
    examine_attention,
    examine_normalizer,
)
from tests import oracles
from tests.members import NORMALIZERS

each_normalizer = pytest.mark.parametrize("member", NORMALIZERS, ids=str)
NO_SUM = {"sums-to-one", "shift-invariant", "low-temperature", "high-temperature", "jacobian-shift"}
SLOW_TO_COMPILE = {"entmax", "entmax_steep", "entmax15"}


def oracle(normalizer):
    """The loop of tests.oracles, which takes the allowed scores of one row."""

    def reference(scores, where=True):
        there = np.broadcast_to(where, scores.shape)
        weights = np.zeros(scores.shape)
        weights[there] = normalizer(scores[there])
        return weights

    return reference


def sums(member):
    return not member.name.startswith(("sigmoid", "softmax_sink"))


def attention_with(normalizer, **options):
    def attention(query, key, value, mask=None):
        mask = None if mask is None else attn_jax.Dense(mask)
        return attn_jax.attention(query, key, value, normalizer=normalizer, mask=mask, **options)

    return attention


# Ours


@each_normalizer
def test_our_normalizers(member):
    arrays = {name: np.float32(array) for name, array in member.arrays().items()}
    skip = set() if sums(member) else set(NO_SUM)
    if member.name in SLOW_TO_COMPILE:
        skip.add("jit-equals-eager")  # test_normalizers compares them
    report = examine_normalizer(
        member.slot(arrays),
        skip=skip,
        output_dtype="accumulation",
        reference=None if "entmax" in member.name else oracle(member.oracle(arrays)),
        framework="jax",
        examples=5,
    )
    report.check()
    tried = {each.invariant for each in report.results if each.status == "holds"}
    assert len(tried) >= len(NORMALIZER_INVARIANTS) - len(skip) - 1


@each_normalizer
def test_our_attention(member):
    """All invariants for softmax; for the rest those that their gradients do not decide."""
    only = None if member.name == "softmax" else VALUES
    skip = () if sums(member) else {"convex-hull", "sums-to-one"}
    arrays = {name: np.float32(array) for name, array in member.arrays().items()}
    normalizer = member.slot(arrays)
    check_attention(attention_with(normalizer), only=only, skip=skip, framework="jax", examples=5)


@pytest.mark.parametrize("block_size", [(1, 2), None], ids=str)
def test_our_attention_streams(block_size):
    """Every invariant of blocks that do not divide 2 x 3; of one block those of its values."""
    options = {"implementation": "streaming", "block_size": block_size}
    only = VALUES if block_size is None else None
    fn = attention_with(attn_jax.Softmax(), **options)
    check_attention(fn, only=only, framework="jax", examples=5)


VALUES = {
    *("convex-hull", "sums-to-one", "linear-in-value", "key-permutation", "query-independent"),
    *("large-scores", "masked-deleted", "padding-invariant", "dtype"),
}


def test_our_dot_product_attention():
    causal = functools.partial(attn_jax.dot_product_attention, is_causal=True)
    check_attention(
        attn_jax.dot_product_attention,
        layout="BTNH",
        framework="jax",
        causal=causal,
        only={"masked-deleted", "batch-invariant", "causal-no-leak", "dtype"},
        differentiable=False,
    )


# What is broken: NumPy where a value is wrong, JAX where a derivative or a transformation is


def softmax(scores, where=None):
    there = scores > -np.inf if where is None else where & (scores > -np.inf)
    scores = np.where(there, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def no_max_shift(scores, where=None):
    weights = np.exp(scores if where is None else np.where(where, scores, -np.inf))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0, 1, total).astype(scores.dtype)


def leaked_mask(scores, where=None):
    return softmax(scores if where is None else scores + np.where(where, 0, -1e9))


def filled_mask(scores, where=None):
    return softmax(scores if where is None else np.where(where, scores, np.finfo(np.float32).min))


def hardmax(scores, where=None):
    scores = scores if where is None else np.where(where, scores, -np.inf)
    return (scores == scores.max(-1, keepdims=True)) / (scores == scores.max(-1)).sum()


def multiplied_mask(scores, where=None):
    return softmax(scores, where) + (0 if where is None else np.where(where, 0, 0 * scores))


def jax_softmax(change):
    return lambda scores, where=None: change(attn_jax.softmax(scores, where), scores)


def callback(scores, where=None):
    shape = jax.ShapeDtypeStruct(scores.shape, scores.dtype)
    return jax.pure_callback(lambda each: np.asarray(softmax(each), each.dtype), shape, scores)


def global_max(scores, where=None):
    scores = scores if where is None else np.where(where, scores, -np.inf)
    top = scores.max()
    weights = np.exp(scores - (top if np.isfinite(top) else 0))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


STRAIGHT = jax.lax.stop_gradient
BROKEN_NORMALIZERS = {
    "non-negative": lambda s, where=None: softmax(s, where) - 1e-3,
    "sums-to-one": lambda s, where=None: 0.9 * softmax(s, where),
    "large-scores": no_max_shift,
    "shift-invariant": lambda s, where=None: softmax(np.clip(s, -4, 4), where),
    "permutation-equivariant": lambda s, where=None: softmax(s + np.arange(s.shape[-1]), where),
    "order-preserving": lambda s, where=None: softmax(-s, where),
    "low-temperature": lambda s, where=None: softmax(s / 4096, where),
    "high-temperature": hardmax,
    "masked-deleted": leaked_mask,
    "masked-gradient": jax_softmax(lambda w, s: w + s - STRAIGHT(s)),
    "masked-nonfinite": multiplied_mask,
    "minus-infinity": lambda s, where=None: softmax(np.where(s == -np.inf, -10, s), where),
    "empty-row": filled_mask,
    "all-minus-infinity": lambda s, where=None: np.exp(s - s.max()) / np.exp(s - s.max()).sum(),
    "jacobian-symmetric": lambda s, where=None: softmax(np.cumsum(s, -1)),
    "jacobian-shift": lambda s, where=None: 1 / (1 + np.exp(-s)),
    "gradient-finite": jax_softmax(lambda w, s: w + 0 * jnp.sqrt(jnp.abs(s))),
    "gradient-true": jax_softmax(lambda w, s: 2 * w - STRAIGHT(w)),
    "batch-invariant": global_max,
    "vmap-equals-loop": callback,
    "jit-equals-eager": jax_softmax(lambda w, s: w * (1 + isinstance(s, jax.core.Tracer))),
    "dtype": lambda s, where=None: softmax(s, where).astype(np.float64),
    "reference": lambda s, where=None: softmax(2 * s, where),
}


def attention(query, key, value, mask=None, *, normalizer=softmax):
    scores = query @ key.T / np.asarray(np.sqrt(query.shape[-1]), query.dtype)
    value = value if mask is None else np.where(mask.any(0)[:, None], value, 0)
    weights = normalizer(scores, None if mask is None else mask)
    return (weights @ value).astype(value.dtype)


def jax_attention(change):
    ours = attention_with(attn_jax.Softmax())
    return lambda query, key, value, mask=None: change(ours(query, key, value, mask), key, value)


def per_head(query, key, value):
    """[B, N, T, H], with the batch of the values turned around."""
    b, n = query.shape[:2]
    arrays = (query, key, value[::-1])
    heads = [attention(*(each[i, j] for each in arrays)) for i in range(b) for j in range(n)]
    return np.array(heads).reshape(b, n, *heads[0].shape)


def attention_callback(query, key, value, mask=None):
    shape = jax.ShapeDtypeStruct((len(query), value.shape[1]), value.dtype)
    return jax.pure_callback(lambda *each: np.asarray(attention(*each)), shape, query, key, value)


def causal_by_one(query, key, value):
    q, k = len(query), len(key)
    return attention(query, key, value, np.tril(np.full((q, k), True), 1))


def to_normalizer(normalizer):
    return functools.partial(attention, normalizer=normalizer)


BROKEN_ATTENTIONS = {
    "convex-hull": (lambda *a, mask=None: 2 * attention(*a, mask), {}),
    "sums-to-one": (to_normalizer(BROKEN_NORMALIZERS["sums-to-one"]), {}),
    "linear-in-value": (lambda *a, mask=None: np.tanh(attention(*a, mask)), {}),
    "key-permutation": (to_normalizer(BROKEN_NORMALIZERS["permutation-equivariant"]), {}),
    "query-independent": (to_normalizer(lambda s, where: softmax(s * s.max(0), where)), {}),
    "large-scores": (to_normalizer(no_max_shift), {}),
    "masked-deleted": (to_normalizer(leaked_mask), {}),
    "masked-gradient": (jax_attention(lambda o, k, v: o + jnp.sum(k - STRAIGHT(k))), {}),
    "masked-nonfinite": (lambda q, k, v, mask=None: softmax(q @ k.T, mask) @ v, {}),
    "empty-row": (to_normalizer(filled_mask), {}),
    "causal-no-leak": (attention, {"causal": causal_by_one}),
    "padding-invariant": (to_normalizer(lambda s, where: softmax(s / len(s), where)), {}),
    "gradient-finite": (jax_attention(lambda o, k, v: o + 0 * jnp.sum(jnp.sqrt(abs(k)))), {}),
    "gradient-true": (jax_attention(lambda o, k, v: 2 * o - STRAIGHT(o)), {}),
    "batch-invariant": (per_head, {"layout": "BNTH", "supports_mask": False}),
    "vmap-equals-loop": (attention_callback, {"supports_mask": False}),
    "jit-equals-eager": (
        jax_attention(lambda o, k, v: o + isinstance(k, jax.core.Tracer)),
        {},
    ),
    "dtype": (lambda *a, mask=None: attention(*a, mask).astype(np.float64), {}),
    "reference": (attention, {"reference": lambda q, k, v, mask=None: 0 * (q @ k.T) @ v}),
}


def size(result):
    return sum(np.size(each) for each in result.input.values() if each is not None)


@pytest.mark.parametrize("invariant", [each.name for each in NORMALIZER_INVARIANTS])
def test_broken_normalizer_is_caught(invariant):
    """By the invariant's name, with an input of one or two scores."""
    reference = {"reference": softmax} if invariant == "reference" else {}
    report = examine_normalizer(BROKEN_NORMALIZERS[invariant], only=invariant, **reference)
    result = report[invariant]
    assert result.status == "fails"
    assert size(result) <= (12 if "batch" in invariant or "vmap" in invariant else 9), result
    with pytest.raises(InvariantError, match=f"^{invariant}: {result.statement}"):
        report.check()


@pytest.mark.parametrize("invariant", [each.name for each in ATTENTION_INVARIANTS])
def test_broken_attention_is_caught(invariant):
    fn, options = BROKEN_ATTENTIONS[invariant]
    result = examine_attention(fn, only=invariant, **options)[invariant]
    assert result.status == "fails"
    assert size(result) <= 62, result


def test_each_invariant_has_its_broken_function():
    assert list(BROKEN_NORMALIZERS) == [each.name for each in NORMALIZER_INVARIANTS]
    assert list(BROKEN_ATTENTIONS) == [each.name for each in ATTENTION_INVARIANTS]
    statements = [each.statement for each in (*NORMALIZER_INVARIANTS, *ATTENTION_INVARIANTS)]
    assert all(0 < len(each) <= 80 for each in statements)


@pytest.mark.parametrize("fn", [softmax, attn_jax.softmax], ids=["numpy", "jax"])
def test_right_normalizer_passes(fn):
    skip = {"dtype"} if fn is softmax else {"jit-equals-eager"}
    reference = oracle(oracles.Softmax())
    check_normalizer(fn, skip=skip, output_dtype="accumulation", reference=reference, examples=10)


def test_right_attention_passes():
    check_attention(attention, reference=attention, examples=10)


@pytest.mark.parametrize(
    ("broken", "invariants", "scores"),
    [
        (leaked_mask, {"masked-deleted", "masked-gradient", "masked-nonfinite", "empty-row"}, 2),
        (no_max_shift, {"large-scores", "low-temperature", "gradient-finite"}, 1),
        (filled_mask, {"empty-row"}, 2),
    ],
)
def test_the_usual_mistakes(broken, invariants, scores):
    """Of all the invariants only those that the mistake is about, with the smallest input."""
    with pytest.raises(InvariantError) as caught:
        check_normalizer(broken, skip="dtype")
    report = caught.value.report
    assert {each.invariant for each in report.failures} <= invariants
    first = report.failures[0]
    assert caught.value.invariant == first.invariant
    assert first.input["scores"].size == scores


def test_message_shows_the_input():
    with pytest.raises(InvariantError) as caught:
        check_normalizer(filled_mask, only="empty-row")
    assert str(caught.value).splitlines() == [
        "empty-row: a row with nothing allowed has weights 0 and gradient 0",
        "  weights off by 0.5, at most 0 allowed",
        "  input   scores [0., 0.] float32",
        "  input   where [False, False]",
        "  output  weights [0.5, 0.5]",
        "  output  expected [0., 0.]",
    ]


def test_an_exception_is_a_failure_with_its_input():
    def narrow(scores, where=None):
        if scores.shape[-1] > 2:
            raise IndexError("too wide\nfor me")
        return softmax(scores, where)

    result = examine_normalizer(narrow, only="sums-to-one")["sums-to-one"]
    assert result.message == "it raises IndexError: too wide"
    np.testing.assert_array_equal(result.input["scores"], np.zeros(3))


def test_a_wrong_shape_is_a_failure():
    result = examine_normalizer(lambda s, where=None: softmax(s)[..., :1], only="minus-infinity")
    assert "shape (1,), not" in result.failures[0].message


def test_random_results_are_a_failure():
    rng = np.random.default_rng(0)

    def noisy(scores, where=None):
        return softmax(scores, where) + rng.integers(0, 2)

    assert examine_normalizer(noisy, only="sums-to-one").failures


def test_what_is_not_promised_is_not_asked():
    report = examine_normalizer(softmax, skip="sums-to-one", supports_mask=False, examples=2)
    status = {each.invariant: each.status for each in report.results}
    assert status["sums-to-one"] == "not promised"
    assert status["masked-deleted"] == status["empty-row"] == "not applicable"
    assert status["jit-equals-eager"] == status["reference"] == "not applicable"
    plain = examine_normalizer(
        softmax, differentiable=False, output_dtype=None, only={"gradient-finite", "dtype"}
    )
    assert [each.status for each in plain.results] == ["not applicable"] * 2


def test_functions_that_look_at_values_run_without_jit():
    def eager(scores, where=None):
        assert bool((scores < np.inf).all())
        return attn_jax.softmax(scores, where)

    report = examine_normalizer(
        eager, only={"sums-to-one", "gradient-finite", "jit-equals-eager"}, examples=5
    )
    assert [each.invariant for each in report.failures] == ["jit-equals-eager"]


def test_every_dtype():
    half = ("float16", "bfloat16", "float64")
    check_normalizer(
        attn_jax.softmax, dtypes=half, only={"sums-to-one", "large-scores", "shift-invariant"}
    )


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": {"sum"}}, "skip must be among non-negative, sums-to-one"),
        ({"only": "sum"}, "only must be among"),
        ({"framework": "tf"}, "framework must be one of auto, numpy, jax, torch"),
        ({"examples": 0}, "examples must be a positive integer. Got 0"),
        ({"dtypes": ["int8"]}, "dtypes must be among"),
        ({"dtypes": ["bfloat16"]}, "which numpy has here"),
        ({"output_dtype": "float32"}, "output_dtype must be 'input'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_normalizer(softmax, **options)
    with pytest.raises(ValueError, match=message.replace("non-negative, sums-to-one", "convex")):
        check_attention(attention, **options)


def test_what_is_no_function_of_arrays_is_refused():
    with pytest.raises(ValueError, match="fn must take arrays of NumPy, JAX or PyTorch"):
        check_normalizer(lambda scores, where=None: scores.no_such_method())
    with pytest.raises(ValueError, match="layout must be one of"):
        check_attention(attention, layout="NTH")


def test_outside_pytest_and_without_traces(tmp_path):
    """The same counterexample twice, and no folder .hypothesis where the program runs."""
    code = (
        "import numpy as np\n"
        "from attn_jax.testing import examine_normalizer\n"
        "def f(s, where=None): return np.exp(s) / np.exp(s).sum(-1, keepdims=True) + (s > 2.5)\n"
        "one, two = (str(examine_normalizer(f, only='sums-to-one')) for _ in range(2))\n"
        "assert one == two and 'scores [2.75] float32' in one, one\n"
    )
    (tmp_path / "local.py").write_text(code)
    root = Path(testing.__file__).parents[2]
    subprocess.run(
        [sys.executable, "local.py"],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "", "JAX_PLATFORMS": "cpu"},
    )
    assert [each.name for each in tmp_path.iterdir()] == ["local.py"]


# PyTorch


def test_pytorch():
    torch = pytest.importorskip("torch")

    def normalizer(scores, where=None):
        filled = scores if where is None else scores.masked_fill(~where, -torch.inf)
        return torch.softmax(filled, -1)

    report = examine_normalizer(normalizer)
    assert {each.invariant for each in report.failures} == {"empty-row", "all-minus-infinity"}
    gradient = examine_normalizer(lambda s, where=None: 2 * s.sigmoid() - s.sigmoid().detach())
    assert gradient["gradient-true"].status == "fails"

    def scaled(query, key, value, mask=None):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)

    check_attention(scaled, layout="BNTH", skip={"empty-row", "masked-nonfinite"})


# The strategies


@pytest.mark.parametrize(
    ("kind", "shows"),
    [
        ("ties", lambda s: len(set(s.tolist())) < s.size),
        ("constant", lambda s: (s == s[0]).all() and s[0] != 0),
        ("infinite", lambda s: (s == -np.inf).any()),
        ("huge", lambda s: np.abs(s).max() >= 1e8),
        ("subnormal", lambda s: 0 < np.abs(s).max() < np.finfo(np.float32).tiny),
    ],
)
def test_kinds_of_scores(kind, shows):
    found = hypothesis.find(testing.scores([(3,)], kinds=[kind]), shows)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "shows", [lambda m: not m.any(), lambda m: m.all(), lambda m: m.any() and not m.any(-1).all()]
)
def test_masks_are_full_empty_and_have_empty_rows(shows):
    assert hypothesis.find(testing.masks((2, 3)), shows).shape == (2, 3)


def test_strategies_refuse_unknown_kinds():
    with pytest.raises(ValueError, match="kinds must be among plain"):
        hypothesis.find(testing.scores(kinds=["odd"]), lambda each: True)


@hypothesis.given(testing.qkv(2, 3), testing.rows(garbage=[np.nan]))
def test_inputs(inputs, row):
    shapes = {name: array.shape for name, array in inputs.items()}
    assert shapes == {"query": (2, 2), "key": (3, 2), "value": (3, 3)}
    np.testing.assert_array_equal(np.isnan(row["scores"]), ~row["where"])
