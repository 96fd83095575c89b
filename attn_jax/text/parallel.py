"""Lines of text files: read exactly, or refused with the number of the line that is wrong.

Only a line feed, or a carriage return and a line feed, ends a line: Python's `splitlines` would
also split at form feeds and U+2028, and shift every later line against its translation. In a file
without a line feed carriage returns end the lines.
"""

from pathlib import Path

from attn_jax.text.files import line_end, read_text


def read_lines(path: Path | str) -> list[str]:
    """The lines of a UTF-8 file, gzipped or not, without byte-order marks and line ends.

    Empty lines keep their row, and the last line needs no line end. A file of no lines is refused,
    and so is a NUL, the trace of UTF-16.
    """
    text = read_text(path)
    if not text:
        raise ValueError(f"{path} is empty: it needs at least one line.")
    end = line_end(text)
    return [line.removesuffix("\r") for line in text.removesuffix(end).split(end)]


def read_parallel(source: Path | str, target: Path | str) -> tuple[list[str], list[str]]:
    """Two files whose lines are translations of each other; no row is left out.

    A row may be empty on either side: `PairBatches` takes an empty source as an example, and leaves
    out and counts a pair without a target.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        longer = source if len(sources) > len(targets) else target
        first = min(len(sources), len(targets)) + 1
        raise ValueError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}, but each line "
            f"needs its translation: line {first} of {longer} has none."
        )
    return sources, targets
