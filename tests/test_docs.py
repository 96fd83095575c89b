"""The site: every public name has its place in the reference, and every tutorial runs."""

import re
from pathlib import Path
from types import ModuleType

import jax
import pytest

import attn_jax
from attn_jax import decoding, metrics, nn, plots, regression, testing, text, training

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "docs" / "source"
PACKAGES = (attn_jax, decoding, metrics, nn, plots, regression, testing, text, training)
BLOCK = re.compile(r"^```python exec.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def public(package):
    return {
        name
        for name, each in vars(package).items()
        if not name.startswith("_")
        and not isinstance(each, ModuleType)
        and str(getattr(each, "__module__", "")).startswith("attn_jax")
        and callable(each)
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package):
    written = "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.md")))
    found = re.findall(r"^::: (\S+)\n((?: .*\n)*)", written, re.MULTILINE)
    directives = {name for name, _ in found}
    whole = {name for name, options in found if "members: false" not in options}
    names = {
        name
        for name in public(package)
        if f"{package.__name__}.{name}" not in directives
        and getattr(package, name).__module__ not in whole
    }
    assert names == set()


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.md")), ids=lambda path: path.stem)
def test_what_a_page_shows_runs(path, capsys):
    """With 32 bits and broadcasting, as a reader has it; the build runs the same."""
    blocks, names = BLOCK.findall(path.read_text()), {}
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        for block in blocks:
            exec(compile(block, str(path), "exec"), names)
    assert bool(blocks) == (path.parent.name == "tutorials" or path.stem == "index")
    assert "False" not in re.sub(r"where None|\[.*?\]", "", capsys.readouterr().out)
