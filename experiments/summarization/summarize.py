"""Summaries of what comes in, line by line."""

import sys
from functools import partial

from experiments.data import lines
from experiments.harness.errors import UserError
from experiments.seq2seq import output
from experiments.seq2seq.evaluate import load, load_ensemble
from experiments.summarization import NAME, ModelOptions, Summarize, figures
from experiments.summarization.report import summaries

CHUNK = 64  # lines summarized together


def summarize(options: Summarize) -> None:
    """Print the summary of each line of the standard input."""
    picture = output.picture(options.plot)
    loaded = load(NAME, options, kind=ModelOptions)
    if picture is not None and not loaded.attends:
        raise UserError("--plot needs a model with attention. Got --score none.")
    others = load_ensemble(NAME, options, loaded.vocabularies, kind=ModelOptions)
    models = [each.model for each in (loaded, *others)]
    lines.as_utf8(sys.stdout)
    for chunk in lines.chunks(sys.stdin, CHUNK):
        found = summaries(models, loaded, options.search, chunk)
        for line, best in zip(chunk, found, strict=True):
            print(best.text, flush=True)
            if picture is not None and best.weights is not None and best.ids:
                figure = partial(figures.summary, loaded, line, best)
                explored = partial(figures.page, loaded, line, best)
                output.save(picture, figure, explored, line, best.text)
                picture = None
