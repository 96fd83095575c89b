"""Run `python -m experiments`."""

import sys

from experiments.cli import main

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="replace")  # a terminal without ² or … shows ? instead of failing

sys.exit(main())
