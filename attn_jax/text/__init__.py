"""Text for sequence models: files of lines → ids → batches in few shapes, and back to lines.

    read_text                                    files.py
    read_lines, read_parallel                    parallel.py
    Vocabulary                                   vocabulary.py, its kinds tokenization.py
    PAD, UNKNOWN, START, END                     specials.py
    PairBatches: endless batches to train on     batches.py, one shape each buckets.py
    padded_batches, in_order: each row once      padding.py, the choice of shapes shapes.py
    padded_search, Hypothesis: targets found     search.py
    encode_copyable, decode_copied: what a vocabulary lacks, copied   copying.py

Input is not lost silently:

    empty lines             an example of length 0 as a source; a pair without a target is left out
                            of training and counted
    very long lines         left out or cut at `max_length`, and counted
    unknown characters      UNKNOWN, written as ⁇; no other token of the line changes
    BOM, CRLF, CR, gzip     read as if they were not there
    other files             not UTF-8, a NUL, no line, one line more than the translation: a
                            `ValueError` that names the file and the line
"""

from attn_jax.text.batches import PairBatches
from attn_jax.text.copying import Copyable, decode_copied, encode_copyable
from attn_jax.text.files import read_text
from attn_jax.text.padding import Padded, in_order, padded_batches
from attn_jax.text.parallel import read_lines, read_parallel
from attn_jax.text.search import LENGTHS, Hypothesis, padded_search
from attn_jax.text.specials import END, PAD, START, UNKNOWN
from attn_jax.text.vocabulary import Vocabulary

__all__ = [
    "END",
    "LENGTHS",
    "PAD",
    "START",
    "UNKNOWN",
    "Copyable",
    "Hypothesis",
    "Padded",
    "PairBatches",
    "Vocabulary",
    "decode_copied",
    "encode_copyable",
    "in_order",
    "padded_batches",
    "padded_search",
    "read_lines",
    "read_parallel",
    "read_text",
]
