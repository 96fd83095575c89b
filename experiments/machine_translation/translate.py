"""Translation of the standard input, with the alignments and a picture beside it."""

import math
import sys

from experiments.data import lines
from experiments.harness.errors import UserError
from experiments.machine_translation.options import Translate
from experiments.machine_translation.report import NAME
from experiments.seq2seq import output
from experiments.seq2seq.evaluate import load, load_ensemble
from experiments.seq2seq.translator import Translator

CHUNK = 64  # lines translated together


def translate(options: Translate) -> None:
    """Translate the standard input, line by line and in order, to the standard output."""
    links = output.writable(options.alignments, output.ALIGNMENTS)
    plot = output.picture(options.plot)
    loaded = load(NAME, options)
    runs = [loaded, *load_ensemble(NAME, options, loaded.vocabularies)]
    aligned = links is not None or plot is not None
    if aligned and not any(each.attends for each in runs):
        raise UserError("--alignments and --plot need a model with attention. Got --score none.")
    members = [each.model for each in runs]
    align_up_to = math.inf if aligned else 0
    translator = Translator(members, loaded.target, options.search, align_up_to=align_up_to)
    lines.as_utf8(sys.stdout)
    with output.opened(links) as stream:
        chunks = lines.chunks(sys.stdin, CHUNK)
        for number, source, best in translator.stream(chunks, loaded.source.encode_batch):
            for each in best:  # several as Moses prints them
                scored = f"{number - 1} ||| {each.text} ||| {each.score:.4f}"
                print(scored if options.search.n_best > 1 else each.text, flush=True)
            if stream is not None:
                output.write_links(stream, source, best, loaded.vocabularies)
            if plot is not None and output.draw(plot, source, best[0], loaded.vocabularies):
                plot = None
    if plot is not None:
        print("--plot: no line had anything to draw", file=sys.stderr)
