"""Which implementations obey the invariants of attention: ours and the ones people use.

    python -m experiments invariants            all that is installed, three minutes
    python -m experiments invariants --smoke    a few of each, seconds

Expected: no ✗ in ours (the exit code is 1 if there is one; others' do not count).

Each implementation is called as its documentation, or where that is silent its common use, says.
All in float32 and half precision, JAX as it comes (float64 off). What nobody's documentation says,
that a masked NaN does not show or that an empty row has gradient 0, is tested of all: these are the
cases on which models break.
"""

from dataclasses import dataclass

from experiments.harness.commands import Command, RunOptions
from experiments.harness.options import Positive


@dataclass(frozen=True)
class Invariants(RunOptions):
    """Test implementations of attention, ours and others', by their invariants.

    Prints a table and the smallest input of each failure, and writes config.json and metrics.json.
    """

    examples: Positive[int] = 50
    """Inputs per invariant and implementation."""


COMMANDS = {"run": Command(Invariants, "invariants.examine.run")}
