"""What sound files say, one line for each."""

import sys
from functools import partial

import numpy as np

from experiments.data import lines, speech_features
from experiments.data.speech import Utterance
from experiments.data.speech_features import SECONDS
from experiments.harness.errors import UserError
from experiments.seq2seq import output
from experiments.seq2seq.evaluate import load, load_ensemble
from experiments.speech_recognition import NAME, ModelOptions, Transcribe, figures
from experiments.speech_recognition.report import transcriptions


def transcribe(options: Transcribe) -> None:
    """Print what each file says; a file that cannot be read is told, and the others go on."""
    if not options.files:
        raise UserError("transcribe needs a sound file or several.")
    picture = output.picture(options.plot)
    loaded = load(NAME, options, kind=ModelOptions)
    if picture is not None and not loaded.attends:
        raise UserError("--plot needs a model with attention. Got --score none.")
    others = load_ensemble(NAME, options, loaded.vocabularies, kind=ModelOptions)
    models = [each.model for each in (loaded, *others)]
    lines.as_utf8(sys.stdout)
    failed = 0
    for path in options.files:
        try:
            samples = speech_features.read(path)
            features = speech_features.log_mel(samples)
        except UserError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        most = options.search.max_source
        if len(features) > most:
            told = f"{path} is {len(features) * SECONDS:.0f} seconds long"
            print(f"{told}: the first {most * SECONDS:.0f} are transcribed", file=sys.stderr)
        utterance = Utterance(features[:most], "", np.zeros((0, 2)), "")
        (best,) = transcriptions(models, loaded.target, options.search, [utterance])
        print(best.text if len(options.files) == 1 else f"{path}\t{best.text}", flush=True)
        if picture is not None and best.weights is not None:
            drawn = utterance, best, loaded.model.memory_length
            figure = partial(figures.alignment, *drawn)
            output.save(picture, figure, partial(figures.page, samples, *drawn), best.text)
            picture = None
    if failed:
        raise UserError(f"{failed} of {len(options.files)} files could not be read.")
