"""New pictures described."""

import sys
from functools import partial

from experiments.data import lines, pictures
from experiments.data.captions import Captioned
from experiments.harness.errors import UserError
from experiments.image_captioning import Caption, CaptionModel, figures
from experiments.image_captioning.report import NAME, described
from experiments.seq2seq import output
from experiments.seq2seq.evaluate import load, load_ensemble
from experiments.seq2seq.translator import Translator


def caption(options: Caption) -> None:
    """Print a line file<TAB>caption for each picture; name a file that is none."""
    if not options.files:
        raise UserError("caption needs a file: caption FILE …")
    path = output.picture(options.plot)
    loaded = load(NAME, options, kind=CaptionModel)
    if path is not None and not loaded.attends:
        raise UserError("--plot needs a model with attention. Got --score none.")
    others = load_ensemble(NAME, options, loaded.vocabularies, kind=CaptionModel)
    models = [each.model for each in (loaded, *others)]
    examples = []
    for file in options.files:
        try:
            examples.append(Captioned(pictures.read(file).pixels, (), name=str(file)))
        except UserError as error:
            print(error, file=sys.stderr)
    drawn = figures.words, figures.page
    lines.as_utf8(sys.stdout)
    found = described(Translator(models, loaded.target, options.search), examples)
    for number, (example, written) in enumerate(zip(examples, found, strict=True), 1):
        print(f"{example.name}\t{written.text}", flush=True)
        if path is not None:
            several = len(options.files) > 1
            to = path.with_stem(f"{path.stem}_{number}") if several else path
            kinds = (partial(of, example, written, loaded.target) for of in drawn)
            output.save(to, *kinds, written.text)
    if missing := len(options.files) - len(examples):
        raise UserError(f"{missing} of {len(options.files)} files are no pictures.")
