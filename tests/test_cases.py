"""The public cases of tests/cases: faults that others reported, as numbers.

Each entry's `report` field names the issue or pull request that it comes from.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from tests.tolerance import assert_close

CASES = [
    case
    for path in sorted(Path(__file__).with_name("cases").glob("*.json"))
    for case in json.loads(path.read_text())
]

# Cases whose expected zeros belong to masked entries, empty rows or their gradients: exactly 0.
EXACT_ZEROS = {
    "masked-large-score-gradient",
    "masked-weights-zero",
    "float16-mask",
    "empty-row-output",
    "no-leak-through-mask",
    "nan-behind-mask",
    "block-of-empty-rows",
    "causal-more-queries",
    "no-keys",
    "zero-length-example",
    "all-minus-inf",
    "sparsemax-axes",
    "sparsemax-extreme",
    "softcap-before-mask",
    "epanechnikov-is-not-triangular",
}


def parse(x):
    """Lists of numbers with "inf", "-inf" and "nan" as words -> floats."""
    return [parse(v) for v in x] if isinstance(x, list) else float(x) if isinstance(x, str) else x


def evaluate(case, **options):
    """The value of the case's call; `options` go to every attention that names none itself."""
    names = {"jax": jax, "jnp": jnp, "kernels": attn_jax.kernels}
    for module in (
        attn_jax.scores,
        attn_jax.score_mods,
        attn_jax.masks,
        attn_jax.normalizers,
        attn_jax,
    ):
        names |= {n: v for n, v in vars(module).items() if not n.startswith("_")}
    for name in ("attention", "attention_and_logsumexp"):
        names[name] = functools.partial(getattr(attn_jax, name), **options)
    inputs = {n: parse(v) for n, v in case["input"].items()}
    numbers = {n: v for n, v in inputs.items() if not isinstance(v, list)}
    arrays = {n: jnp.asarray(v) for n, v in inputs.items() if isinstance(v, list)}
    call = jax.jit(lambda arrays: eval(case["call"], names | numbers | arrays))
    return call(arrays)


def assert_expected(got, case):
    """The rule of the cases' `tolerance` field, entry by entry."""
    expected = case["expected"]
    if not isinstance(expected, dict):
        got, expected = {"value": got}, {"value": expected}
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        wanted = np.asarray(parse(value), np.float64)
        assert_close(got[name], wanted, tolerance=case["tolerance"])
        if case["id"] in EXACT_ZEROS:
            assert not np.any(np.asarray(got[name])[wanted == 0])


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case):
    if "dot_product_attention" in case["call"] and not hasattr(attn_jax, "dot_product_attention"):
        pytest.skip("attn_jax has no dot_product_attention yet")
    if "implementation='streaming'" in case["call"]:
        with pytest.raises(ValueError, match="implementation"):
            evaluate(case)
    elif case["expected"] == "ValueError":
        with pytest.raises(ValueError, match=r"(?s)key.*value.*\(5, 3\).*\(6, 3\)"):
            evaluate(case, implementation="dense")
    else:
        assert_expected(evaluate(case, implementation="dense"), case)


def test_every_exact_zero_is_a_case():
    assert {case["id"] for case in CASES} >= EXACT_ZEROS
