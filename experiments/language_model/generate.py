"""Continue a prompt by a language model, and write each token as soon as it is there."""

import sys
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import decoding
from attn_jax.nn import LanguageModel
from attn_jax.text import END, PAD, START, UNKNOWN
from experiments.harness.errors import UserError
from experiments.language_model import Generate, data
from experiments.language_model.evaluate import restored

SPECIAL = (PAD, UNKNOWN, START, END)  # never generated


def run(options: Generate) -> None:
    """Write the prompt and what follows."""
    model, vocabulary, *_ = restored(options.output)
    ids = data.encode(vocabulary, options.prompt)
    if not len(ids):
        raise UserError(f"--prompt must hold a token at least. Got {options.prompt!r}.")
    positions = model.embedding.most_positions
    most = positions + 1 - len(ids)  # the last generated token is not read
    if options.count > most:
        got = f"a prompt of {len(ids)} tokens and --count {options.count}"
        rule = f"must stay within the {positions} positions that were learned"
        raise UserError(f"--prompt and --count {rule}: --count at most {max(most, 0)}. Got {got}.")
    sys.stdout.write(options.prompt)
    written, tokens = data.decode(vocabulary, ids), ids.tolist()
    for token in drawn(model, ids[None], options):
        tokens.append(token)
        text = data.decode(vocabulary, tokens)
        if text.startswith(written):  # a piece of a character waits for the rest
            sys.stdout.write(text[len(written) :])
            sys.stdout.flush()
            written = text
    sys.stdout.write("\n")


def drawn(model: LanguageModel, prompt: np.ndarray, options: Generate) -> Iterator[int]:
    """Yield tokens one by one: the prompt fills the cache at once, then each token in turn."""
    stacked, parameters = nnx.split(model)

    @jax.jit
    def prefilled(parameters, prompt):
        return nnx.merge(stacked, parameters).prefill(prompt, longest=options.count)

    caches = prefilled(parameters, prompt)
    unrolled, parameters = nnx.split(model.unrolled())

    @partial(jax.jit, donate_argnums=2)
    def following(parameters, token, caches, rng):
        logits, caches, _ = nnx.merge(unrolled, parameters).step(token, caches)
        one = (lambda token, kept: (logits, kept, None), token)
        how = {"start": token, "end": END, "max_length": 1, "forbidden": SPECIAL}
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
        yield int(token[0])
