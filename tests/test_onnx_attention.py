"""ONNX's conformance suite: the node tests of its operators Attention and FlexAttention."""

from collections import Counter

import jax
import numpy as np
import pytest

try:
    # These two modules alone: onnx.backend.test.loader computes the cases of every other operator
    # too, ten seconds in each worker. The cases and their numbers are the same.
    from onnx.backend.test.case.node import _NodeTestCases, attention, flexattention
    from onnx.backend.test.runner import Runner
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"These tests need onnx 1.23 (pip install -r requirements.txt): {error}"
    ) from error

from tests.onnx_operator import evaluate

CASES = {
    case.name: case
    for case in _NodeTestCases
    if case.name.startswith(("test_attention", "test_flexattention"))
    and "_expanded" not in case.name  # the same numbers, for backends that have no Attention
}
COUNTS = {"Attention": 93, "FlexAttention": 11}

# name: why the operator's semantics make the case impossible. None is.
LEFT_OUT = {}


def test_no_case_is_missing():
    assert attention.__name__, flexattention.__name__  # importing them made the cases
    assert Counter(case.model.graph.node[0].op_type for case in CASES.values()) == COUNTS
    assert LEFT_OUT.keys() <= CASES.keys()


@pytest.mark.parametrize("name", sorted(CASES.keys() - LEFT_OUT.keys()))
def test_node(name):
    """The outputs within onnx's tolerance, by its own comparison; its zeros are exact."""
    case = CASES[name]
    (node,) = case.model.graph.node
    assert len(case.data_sets) == 1
    for arrays, expected in case.data_sets:
        got = jax.jit(lambda *arrays: evaluate(node, arrays))(*arrays)
        got = [np.asarray(array) for array in got]
        Runner.assert_similar_outputs(expected, got, rtol=case.rtol, atol=case.atol)
        for one, other in zip(got, expected, strict=True):
            assert not np.any(one[other == 0])
