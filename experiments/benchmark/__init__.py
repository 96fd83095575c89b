"""How fast and how large attention is: ours in every implementation, and the ones people use.

    python -m experiments benchmark                     models' shapes on this machine, minutes
    python -m experiments benchmark --smoke             one tiny shape of each kind, seconds
    python -m experiments benchmark --shapes growth     time and memory up to n = 65,536
    python -m experiments benchmark --shapes long-4k --normalizers softmax sparsemax entmax15

Expected: no row of ours is "wrong" or "failed" (each implementation is held against a float64
reference before it is timed; the exit code is 1 if one of ours is). Nothing else should run on the
machine meanwhile.

| files | what they are |
|---|---|
| shapes, slots, cases, inputs | what is computed |
| reference, agreement | what is right, and how close is close |
| implementations, jax_implementations, torch_implementations | who competes |
| programs, jax_programs, torch_programs, problems | what is ready to run on a device |
| measure, timing, memory, flop, machine | what is measured |
| session, rows, growth, report, figures | what is kept and shown |
"""

from experiments.benchmark.session import run

COMMANDS = {"run": run}
