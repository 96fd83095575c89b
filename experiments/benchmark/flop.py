"""How many floating-point operations a case needs, by one count for all implementations.

Per pair of a query and a key that may attend to it: the score (a dot product takes 2 d, an additive
score 4 d with tanh as one, a squared distance 3 d) and the weighted sum, 2 e. What the normalizer
does to a score is not counted, and neither is a masked pair.

| direction | scores | sums over values | a dot product, d = e |
|---|---|---|---|
| forward | 1 | 1 | 1 × |
| gradient, the forward pass and one recomputation of the scores included | 4 | 3 | 3.5 × |
| jvp, output and tangent | 3 | 3 | 3 × |

The gradient's is FlashAttention's count (Dao 2023, sec. 4.1: the backward pass is 2.5 × forward).
"""

from experiments.benchmark.cases import Case
from experiments.benchmark.inputs import Inputs

PER_FEATURE = {"additive": 4, "gaussian": 3}
PASSES = {"forward": (1, 1), "gradient": (4, 3), "jvp": (3, 3)}


def count(case: Case) -> int:
    """Return the operations of the whole case, batch and heads included."""
    shape = case.shape
    score = PER_FEATURE.get(case.score, 2) * shape.features * shape.pairs
    if case.score == "bilinear":
        score += 2 * shape.queries * shape.features**2
    scores, sums = PASSES[case.direction]
    per_head = scores * score + sums * 2 * shape.value_features * shape.pairs
    return shape.batch * shape.heads * per_head


def least_bytes(case: Case, inputs: Inputs) -> int:
    """Return the bytes that any implementation must move: every argument and result once."""
    query, key, value = (each.nbytes for each in inputs.operands)
    output = query // case.shape.features * case.shape.value_features
    moved = {
        "forward": query + key + value + output,
        "gradient": 2 * (query + key + value) + output,
        "jvp": 2 * (query + key + value + output),
    }
    return moved[case.direction]
