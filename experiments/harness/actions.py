"""Options that only some actions of an experiment heed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.harness.errors import UserError, listed


def require_heeded(options: Any, heeded: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an option, given, that `options.action` would not heed; `heeded` has those that do."""
    for each in dataclasses.fields(options):
        actions = heeded.get(each.name, (options.action,))
        if options.action not in actions and getattr(options, each.name) != each.default:
            flag = each.name.replace("_", "-")
            raise UserError(f"--{flag} is for {listed(actions)}, not for {options.action}.")
