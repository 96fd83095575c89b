"""A test module's report from a process that has eight devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

DEVICES = 8


def report_of(module):
    """What `tests.MODULE.report()` prints last there, as JSON: by case, what went wrong."""
    code = f"import tests.conftest\nfrom tests import {module}\n{module}.report()"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])
