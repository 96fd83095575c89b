r"""Translate from one language into another with attention, trained on your own pairs of lines.

    python -m experiments machine-translation train --name mine \
        --train-source a.de --train-target a.en --dev-source b.de --dev-target b.en
    python -m experiments machine-translation evaluate --name mine \
        --test-source c.de --test-target c.en
    python -m experiments machine-translation translate --name mine < new.de > new.en
    python -m experiments machine-translation speed

Files are UTF-8, one sentence a line, the same number of lines on both sides. Without files `train`
takes two Bibles; `--data greek-english` takes a New Testament with gold word alignments, and
reports the alignment error rate of attention beside IBM model 1's.

`train` writes vocabularies, checkpoints and a learning curve, and evaluates; `--twin` trains the
model without attention, of as many parameters, as well, and draws it beside. An interrupted run
goes on with `--resume`. What `evaluate` finds on other files than the training's is written to
evaluation/, beside the results of the training.
"""

from experiments.harness.commands import Command
from experiments.machine_translation.options import Evaluate, Speed, Train, Translate

COMMANDS = {
    "train": Command(Train, "machine_translation.train.train"),
    "evaluate": Command(Evaluate, "machine_translation.report.evaluate"),
    "translate": Command(Translate, "machine_translation.translate.translate"),
    "speed": Command(Speed, "machine_translation.train.speed"),
}
