"""Texts and summaries: the docstrings of the installed packages, or one file of both."""

import json
from pathlib import Path

from attn_jax.text import read_lines
from experiments.data import delimited, docstrings
from experiments.data.pairs import NOTHING, Pairs
from experiments.data.parallel_text import Corpus
from experiments.harness.errors import UserError, as_user_errors, unknown
from experiments.summarization import Texts

SIDES = ("text", "summary")


def load(options: Texts) -> Corpus:
    """Return the pairs of a person's table, or of the docstrings."""
    if options.table is None:
        note = "docstrings of the installed packages; a body is in one part only"
        return Corpus(*docstrings.load(options.data_dir), SIDES, (note,))
    columns = options.source_column, options.target_column
    read = read_json_lines if options.table.suffix.lower() in (".jsonl", ".ndjson") else read_table
    return Corpus(read(options.table, columns), NOTHING, NOTHING, SIDES)


def read_table(path: Path, columns: tuple[str, str]) -> Pairs:
    """Return two columns of a delimited file; what stands on several lines becomes one."""
    table = delimited.read(path, delimited.Form())
    for option, name in zip(("--source-column", "--target-column"), columns, strict=True):
        if name not in table.names:
            raise UserError(f"{option}: {unknown('column', name, table.names)}")
    places = [table.names.index(name) for name in columns]
    return Pairs(*([" ".join(row[place].split()) for row in table.rows] for place in places))


def read_json_lines(path: Path, columns: tuple[str, str]) -> Pairs:
    """Return two entries of the object on each line."""
    with as_user_errors(ValueError):
        lines = read_lines(path)
    pairs = Pairs([], [])
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            texts = [row[name] for name in columns]
        except (ValueError, KeyError, TypeError) as error:
            what = f"an object with {columns[0]!r} and {columns[1]!r}"
            raise UserError(f"line {number} of {path} must be {what}: {error!r}.") from error
        if not all(isinstance(each, str) for each in texts):
            raise UserError(f"line {number} of {path} must hold text. Got {texts!r}.")
        for side, each in zip(pairs, texts, strict=True):
            side.append(" ".join(each.split()))
    return pairs
