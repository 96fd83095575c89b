"""The public cases of tests/cases: faults that others reported, as numbers.

Each entry's `report` field names the issue or pull request that it comes from.
"""

import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from tests.members import DENSE, Implementation
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


def attends(case):
    return re.search(r"\b(attention|attention_and_logsumexp)\b", case["call"])


STREAMING = [Implementation("streaming", size) for size in (None, (1, 1), (2, 3))]
ORDER = [case["id"] for case in CASES]


def implementations(case):
    """Those that the case's call, which names none, is evaluated by: small blocks in turn."""
    if "dot_product_attention" in case["call"]:
        return [DENSE, STREAMING[0]]
    small = STREAMING[1 + ORDER.index(case["id"]) % 2]
    return [DENSE, STREAMING[0], small] if attends(case) else [DENSE]


def evaluate(case, *implementations):
    """The values of the case's call, by each implementation, in one program."""
    names = {"jax": jax, "jnp": jnp, "kernels": attn_jax.kernels}
    for module in (
        attn_jax.scores,
        attn_jax.score_mods,
        attn_jax.masks,
        attn_jax.normalizers,
        attn_jax,
    ):
        names |= {n: v for n, v in vars(module).items() if not n.startswith("_")}

    def names_of(how):
        options = dict.fromkeys(("attention", "attention_and_logsumexp"), how.options)
        options["dot_product_attention"] = {"implementation": how.name}
        return names | {
            name: functools.partial(getattr(attn_jax, name), **each)
            for name, each in options.items()
        }

    inputs = {n: parse(v) for n, v in case["input"].items()}
    numbers = {n: v for n, v in inputs.items() if not isinstance(v, list)}
    arrays = {n: jnp.asarray(v) for n, v in inputs.items() if isinstance(v, list)}

    @jax.jit
    def call(arrays):
        return [eval(case["call"], names_of(how) | numbers | arrays) for how in implementations]

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
    if case["expected"] == "ValueError":
        for how in implementations(case):
            with pytest.raises(ValueError, match=r"(?s)key.*value.*\(5, 3\).*\(6, 3\)"):
                evaluate(case, how)
    else:
        for got in evaluate(case, *implementations(case)):
            assert_expected(got, case)


def test_every_exact_zero_is_a_case():
    assert {case["id"] for case in CASES} >= EXACT_ZEROS
