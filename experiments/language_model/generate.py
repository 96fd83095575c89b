"""A language model writes on from a prompt, each token as soon as it is there."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from experiments.data import long_text as texts
from experiments.harness.errors import UserError


def generate(model: Any, vocabulary: Any, options: Any) -> None:
    """Write the prompt and what follows."""
    ids = texts.encode(vocabulary, options.prompt)
    if not len(ids):
        raise UserError(f"--prompt must hold a token at least. Got {options.prompt!r}.")
    require_positions(model, len(ids), options.count)
    sys.stdout.write(options.prompt)
    shown = texts.decode(vocabulary, ids)
    written = ids.tolist()
    for token in drawn(model, ids[None], options):
        written.append(token)
        text = texts.decode(vocabulary, written)
        if text.startswith(shown):  # a piece of a character waits for the rest
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
    sys.stdout.write("\n")


def require_positions(model: Any, prompt: int, count: int) -> None:
    """Refuse to go beyond positions that were learned; others have no end."""
    positions = model.embedding.most_positions
    most = positions + 1 - prompt  # the last token written is not read
    if count > most:
        got = f"a prompt of {prompt} tokens and --count {count}"
        rule = f"must stay within the {positions} positions that were learned"
        raise UserError(f"--prompt and --count {rule}: --count at most {max(most, 0)}. Got {got}.")


def drawn(model: Any, prompt: np.ndarray, options: Any) -> Iterator[int]:
    """Yield tokens one by one: the prompt fills the cache at once, then each token asks it."""
    import jax
    from flax import nnx

    from attn_jax import decoding, text

    forbidden = (text.PAD, text.UNKNOWN, text.START, text.END)
    how = {"end": text.END, "max_length": 1, "forbidden": forbidden}
    filters = {"top_k": options.top_k, "top_p": options.top_p}
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
        if options.temperature == 0:
            found = decoding.greedy(*one, start=token, **how)
        else:
            rules = how | filters | {"rng": rng, "temperature": options.temperature}
            found = decoding.sample(*one, start=token, **rules)
        return found.tokens[:, 0], caches

    token, rng = jax.numpy.asarray(prompt[:, -1]), jax.random.key(options.fit.seed)
    for number in range(options.count):
        token, caches = following(parameters, token, caches, jax.random.fold_in(rng, number))
        yield int(token[0])
