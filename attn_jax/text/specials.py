"""The four ids that every vocabulary shares: a model knows them without one."""

PAD = 0
"""Fills a row up to its padded length; no loss, no attention."""
UNKNOWN = 1
"""Stands for what the training text did not hold."""
START = 2
"""The decoder's first input."""
END = 3
"""The last token of every target."""

NAMES = ("<pad>", "<unknown>", "<start>", "<end>")
