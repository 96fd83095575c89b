"""Run `python -m experiments`."""

import os
import sys

from experiments.cli import main

# A stream that was closed (`>&-`) would lend its number, and what is printed, to the next file.
for mode, name in (("r", "stdin"), ("w", "stdout"), ("w", "stderr")):
    if getattr(sys, name) is None:
        setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="replace")  # a terminal without ² or … shows ? instead of failing

sys.exit(main())
