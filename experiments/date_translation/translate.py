"""Dates that are given, or the lines of the standard input, as ISO dates."""

import sys
from collections.abc import Sequence

from experiments.data import dates, lines
from experiments.date_translation import NAME, Translate, report
from experiments.harness.errors import UserError, as_user_errors, listed, unknown
from experiments.seq2seq import saved

CHUNK = 64  # lines translated together


def translate(options: Translate) -> None:
    """Print the ISO date of each date that is given, or of each line of the standard input."""
    loaded = saved.load(options.output.directory(NAME))
    languages, language = dates.languages_of(loaded.source), options.language
    if language is None:
        raise UserError(f"translate needs --language. Known: {listed(languages)}.")
    if language not in languages:
        raise unknown("language", language, languages)

    def encode(chunk: Sequence[str]) -> list[list[int]]:
        with as_user_errors(ValueError):
            return dates.sources([(line, language) for line in chunk], loaded.source)

    chunks = [options.text] if options.text else lines.chunks(sys.stdin, CHUNK)
    translator = report.translator(loaded.model, loaded.target, options.search)
    for number, line, best in translator.stream(chunks, encode):
        if unseen := dates.unseen(line, loaded.source):
            print(f"line {number}: never seen in training: {unseen}", file=sys.stderr)
        print("\t".join(each.text for each in best), flush=True)
