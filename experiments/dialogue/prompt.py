"""A prompt in the terminal: what is typed is answered, with the turns before it as context."""

import sys

from experiments.data.conversations import TURN
from experiments.dialogue import Chat
from experiments.dialogue.report import NAME, answering
from experiments.harness.errors import UserError
from experiments.machine_translation import output
from experiments.seq2seq.evaluate import load, load_ensemble
from experiments.seq2seq.translator import cut

PROMPT = "> "


def chat(options: Chat) -> None:
    """Read a line, answer it, until the input ends."""
    picture = output.picture(options.plot)
    loaded = load(NAME, options)
    if picture is not None and not loaded.attends:
        raise UserError("--plot needs a model with attention. Got --score none.")
    models = [each.model for each in (loaded, *load_ensemble(NAME, options, loaded.vocabularies))]
    translator = answering(models, loaded.target, options.search)
    context = loaded.options["corpus"]["context"]
    said: list[str] = []
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        print("Answers are unmoderated. Ctrl-D ends.")
    while True:
        try:
            line = input(PROMPT if interactive else "").strip()
        except EOFError:
            if interactive:
                print()
            return
        if not line:
            continue
        said.append(line)
        source = TURN.join(said[-context:])
        ((answer, *_),) = translator(cut([loaded.source.encode(source)], translator.most_source))
        print(answer.text, flush=True)
        said.append(answer.text)
        if picture is not None:
            path = picture.with_stem(f"{picture.stem}_{len(said) // 2}")
            output.draw(path, source, answer, loaded.vocabularies)
