"""A prompt in the terminal: what is typed is answered, with the turns before it as context."""

import contextlib
import itertools
import sys
from collections.abc import Iterator

from experiments.data import lines
from experiments.data.conversations import TURN_SEPARATOR
from experiments.dialogue import Chat
from experiments.dialogue.report import NAME, answering
from experiments.harness.errors import UserError, as_user_errors
from experiments.seq2seq import output
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
    for line in filter(str.strip, typed()):
        said.append(line.strip())
        with as_user_errors(ValueError):
            source = TURN_SEPARATOR.join(said[-context:])
            encoded = loaded.source.encode(source)
        ((answer, *_),) = translator(cut([encoded], translator.most_source))
        print(answer.text, flush=True)
        said.append(answer.text)
        if picture is not None:
            path = picture.with_stem(f"{picture.stem}_{len(said) // 2}")
            output.draw(path, source, answer, loaded.vocabularies)


def typed() -> Iterator[str]:
    """Yield what is typed at a prompt, or the lines of the standard input, until it ends."""
    if sys.stdin is None or not sys.stdin.isatty():
        lines.as_utf8(sys.stdout)
        yield from itertools.chain.from_iterable(lines.chunks(sys.stdin, 1))
        return
    print("Answers are unmoderated. Ctrl-D ends.")
    with contextlib.suppress(EOFError):
        while True:
            yield input(PROMPT)
    print()
