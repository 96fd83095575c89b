"""Examples of docstrings, from `>>>` to the next empty line, as blocks of code on the site."""

import re

import griffe

EXAMPLE = re.compile(r"^(?P<margin> *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Fence the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change an object's docstring, once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)


def fenced(example: re.Match) -> str:
    """Return an example between fences, at its own margin."""
    margin = example["margin"]
    return f"{margin}```pycon\n{example[0]}\n{margin}```"
