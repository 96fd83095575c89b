"""Docstrings of the installed packages: what follows the first line, and the first line.

The first paragraphs of a docstring's body are the text, its first line is the summary. The same
paragraph often stands under several names: bodies are unique, and a body's own checksum says
whether it is for training, dev or test. What was found is kept in the cache folder.
"""

import ast
import json
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from experiments.data.pairs import Pairs
from experiments.data.pypi_archive import CACHE
from experiments.harness.files import write

WORDS, SUMMARY_WORDS = (8, 100), (3, 16)  # at least and at most
HELD_OUT = 20  # of so many bodies one is for dev and one for test
# Where the prose of a docstring ends: a section, a field, an example, a table.
SECTION = re.compile(
    r"(>>>|\.\. |:\w|[-=~]{3,}|\||(Parameters|Args|Arguments|Returns?|Yields|Examples?|Notes?|"
    r"See Also|References|Attributes|Raises|Warns|Usage|Methods|Keyword \w+)\b\s*[:\n-])"
)


def load(data_dir: Path | None = None) -> list[Pairs]:
    """Return the training, dev and test pairs: the body of a docstring, and its first line."""
    parts = [Pairs([], []), Pairs([], []), Pairs([], [])]
    for body, summary in _found(data_dir):
        part = parts[{0: 1, 1: 2}.get(zlib.crc32(body.encode()) % HELD_OUT, 0)]
        part.source.append(body)
        part.target.append(summary)
    return parts


def _found(data_dir: Path | None) -> list[tuple[str, str]]:
    """Return unique bodies with their summaries, in order; read again where packages change."""
    installed = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    state = zlib.crc32("\n".join([sysconfig.get_python_version(), *installed]).encode())
    path = (data_dir or CACHE).expanduser() / f"docstrings-{state:08x}.json"
    if path.is_file():
        return [tuple(pair) for pair in json.loads(path.read_text("utf-8"))]
    print("reading the docstrings of the installed packages, once …", flush=True)
    pairs = sorted(dict(_read()).items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(pairs, ensure_ascii=False))
    return pairs


def _read() -> Iterator[tuple[str, str]]:
    paths = sysconfig.get_paths()
    for root in (Path(paths["stdlib"]), Path(paths["purelib"])):
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root).parts
            if not {"site-packages", "tests", "test"} & set(inside):
                yield from pairs_of(path.read_bytes())


def pairs_of(source: bytes) -> Iterator[tuple[str, str]]:
    r"""Yield the body and the first line of each docstring of a module that has both.

    >>> text = "Add two numbers.\n\nBoth are integers, or both of them are floats."
    >>> list(pairs_of(repr(text).encode()))
    [('Both are integers, or both of them are floats.', 'Add two numbers.')]
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary, *paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
            prose = []
            for paragraph in paragraphs:
                if SECTION.match(paragraph.strip() + "\n"):
                    break
                prose.append(paragraph)
            body, summary = (" ".join(each.split()) for each in (" ".join(prose), summary))
            lengths = len(body.split()), len(summary.split())
            ranges = WORDS, SUMMARY_WORDS
            if all(low <= n <= high for n, (low, high) in zip(lengths, ranges, strict=True)):
                yield body, summary
