"""Continue a prompt by a language model, and write each token as soon as it is there."""

import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import decoding
from attn_jax.nn import LanguageModel
from attn_jax.text import END, PAD, START, UNKNOWN
from experiments.harness.errors import UserError
from experiments.harness.runs import Run
from experiments.language_model import Generate, data, figures, open_model, report
from experiments.language_model.evaluate import restored
from experiments.language_model.train import NAME


class Speaker(NamedTuple):
    """A model, and how text becomes its tokens and tokens become text."""

    model: LanguageModel
    encode: Callable[[str], np.ndarray]
    decode: Callable[[list[int]], str]
    token: Callable[[int], str]  # as it is drawn
    ends: Collection[int] = ()  # tokens after which there is nothing
    forbidden: tuple[int, ...] = ()  # tokens that are never generated


def run(options: Generate) -> None:
    """Write the prompt and what follows; draw the weights where that is asked for."""
    speaker = trained(options) if options.weights is None else Speaker(*open_model.load(options))
    ids = speaker.encode(options.prompt)
    if not len(ids):
        raise UserError(f"--prompt must hold a token at least. Got {options.prompt!r}.")
    positions = speaker.model.embedding.most_positions
    most = positions + 1 - len(ids)  # the last generated token is not read
    if options.count > most:
        got = f"a prompt of {len(ids)} tokens and --count {options.count}"
        rule = f"must stay within the {positions} positions that were learned"
        raise UserError(f"--prompt and --count {rule}: --count at most {max(most, 0)}. Got {got}.")
    sys.stdout.write(options.prompt)
    tokens = ids.tolist()
    written = speaker.decode(tokens)
    for token in drawn(speaker, ids[None], options):
        tokens.append(token)
        text = speaker.decode(tokens)
        if text.startswith(written):  # a piece of a character waits for the rest
            sys.stdout.write(text[len(written) :])
            sys.stdout.flush()
            written = text
    sys.stdout.write("\n")
    if options.plot:
        plot(speaker, tokens, options)


def trained(options: Generate) -> Speaker:
    """Return the model of a run."""
    model, vocabulary, *_ = restored(options.output)
    text = partial(data.encode, vocabulary), partial(data.decode, vocabulary), vocabulary.token
    return Speaker(model, *text, forbidden=(PAD, UNKNOWN, START, END))


def plot(speaker: Speaker, tokens: list[int], options: Generate) -> None:
    """Draw each head's weights on the first tokens, and write a page to explore them."""
    run = Run(options.output.directory(NAME))
    run.clear_figures("generated_*")
    tokens = tokens[: figures.MOST_TOKENS]
    names = [speaker.token(token) for token in tokens]
    maps = np.asarray(report.attention_maps(speaker.model, np.asarray([tokens]))[:, 0])
    for name, figure in figures.of_tokens(maps, names, title=speaker.decode(tokens)):
        run.write_figure(f"generated_{name}", figure)
    run.say_where()


def drawn(speaker: Speaker, prompt: np.ndarray, options: Generate) -> Iterator[int]:
    """Yield tokens one by one: the prompt fills the cache at once, then each token in turn."""
    stacked, parameters = nnx.split(speaker.model)

    @jax.jit
    def prefilled(parameters, prompt):
        return nnx.merge(stacked, parameters).prefill(prompt, longest=options.count)

    caches = prefilled(parameters, prompt)
    unrolled, parameters = nnx.split(speaker.model.unrolled())

    @partial(jax.jit, donate_argnums=2)
    def following(parameters, token, caches, rng):
        logits, caches, _ = nnx.merge(unrolled, parameters).step(token, caches)
        one = (lambda token, kept: (logits, kept, None), token)
        how = {"start": token, "end": END, "max_length": 1, "forbidden": speaker.forbidden}
        if options.temperature == 0:
            found = decoding.greedy(*one, **how)
        else:
            filters = {"top_k": options.top_k, "top_p": options.top_p}
            temperature = options.temperature
            found = decoding.sample(*one, rng=rng, temperature=temperature, **filters, **how)
        return found.tokens[:, 0], caches

    token, rng = jnp.asarray(prompt[:, -1]), jax.random.key(options.seed)
    for number in range(options.count):
        token, caches = following(parameters, token, caches, jax.random.fold_in(rng, number))
        if int(token[0]) in speaker.ends:
            return
        yield int(token[0])
