"""Sources to translations, in order: greedy, beam search or sampling, ensembles, alignments."""

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax import decoding, text
from experiments.seq2seq.options import SamplingOptions, SearchOptions
from experiments.seq2seq.train import POSITIONS


class Translation(NamedTuple):
    """One hypothesis for one source."""

    text: str
    ids: list[int]  # of the target, its end not included
    score: float
    finished: bool
    weights: np.ndarray | None  # [target ids and the end, memory]: the source's ids, say


NOTHING = Translation("", [], 0.0, True, None)


class Translator:
    """Models of one target vocabulary, an ensemble where there are several, and how to search.

    An empty source has one translation, the empty text, for certain. Each shape is compiled once:
    sources are padded to one of `lengths`, and a batch holds at most so many `positions`, so that
    long ones come with few others. Weights, which need memory by the square of the length, are kept
    for sources that are padded to `align_up_to` at most. Other parameters of the same models may be
    assigned to `models`.
    """

    def __init__(
        self,
        models: Sequence[nnx.Module],
        target: text.Vocabulary,
        options: SearchOptions,
        *,
        batch_size: int = 128,
        positions: int = POSITIONS,
        lengths: Sequence[int] = text.LENGTHS,
        align_up_to: float = math.inf,
        forbidden: tuple[int, ...] = (text.PAD, text.START),
    ):
        self.models, self.target, self.options = models, target, options
        self.align_up_to, self.forbidden = align_up_to, forbidden
        drawn = isinstance(options, SamplingOptions) and options.temperature > 0
        self.sampling = options if drawn else None
        self.draws = itertools.count(options.draw_seed if drawn else 0)  # a seed for each batch
        self.batches = {"batch_size": batch_size, "batch_positions": positions, "lengths": lengths}

    @property
    def most_source(self) -> int:
        """The longest source that the options allow and that all models have positions for."""
        return min(self.options.max_source, *(each.most_positions for each in self.models))

    def __call__(
        self, sources: Sequence[Any], unknown: Sequence[Sequence[str]] | None = None
    ) -> list[list[Translation]]:
        """Return the n best translations of each encoded source.

        `unknown` are the pieces that each source's ids beyond the vocabulary stand for.
        """
        states = [nnx.split(model)[1] for model in self.models]

        def search(source, length):
            return self._search(states, jax.random.key(next(self.draws)), source, length)

        memory_length = self.models[0].memory_length
        found = text.padded_search(search, sources, memory_length=memory_length, **self.batches)
        pieces = [[]] * len(sources) if unknown is None else unknown
        return [
            [Translation(self._written(each.ids, lacking), *each) for each in hypotheses]
            if len(source)
            else [NOTHING]
            for source, hypotheses, lacking in zip(sources, found, pieces, strict=True)
        ]

    def _written(self, ids: Sequence[int], unknown: Sequence[str]) -> str:
        return text.decode_copied(self.target, ids, unknown)

    def stream(
        self, chunks: Iterable[Sequence[str]], encode: Callable[[Sequence[str]], Sequence[Any]]
    ) -> Iterator[tuple[int, str, list[Translation]]]:
        """Yield each line's number (from 1), the line and its translations, chunk by chunk."""
        done = 0
        for chunk in chunks:
            sources = cut(encode(chunk), self.most_source, first=done + 1)
            for number, found in enumerate(zip(chunk, self(sources), strict=True), done + 1):
                yield number, *found
            done += len(chunk)

    @functools.cached_property
    def _search(self) -> Any:
        graphdefs = [nnx.split(model)[0] for model in self.models]
        most = min(each.most_positions for each in self.models)
        options = self.options

        def search(states, rng, source, length):
            longest = min(int(options.longest * source.shape[1]) + 10, most)
            models = [nnx.merge(*each) for each in zip(graphdefs, states, strict=True)]
            begun = [each.begin(source, length, longest=longest) for each in models]
            (step, state), *others = begun
            if others:
                steps, state = zip(*begun, strict=True)
                step = decoding.ensemble(steps)
            if source.shape[1] > self.align_up_to:
                step = without_weights(step)
            how = {"start": text.START, "end": text.END, "forbidden": self.forbidden}
            limit = (options.longest * length).astype(jnp.int32) + 10
            how |= {"max_length": longest, "limit": limit}
            if self.sampling:
                how |= {"temperature": self.sampling.temperature, "top_p": self.sampling.top_p}
                return decoding.sample(step, state, rng=rng, **how)
            if options.beam == 1:
                return decoding.greedy(step, state, **how)
            how |= {"beam_size": options.beam, "n_best": options.n_best}
            return decoding.beam_search(step, state, length_penalty=options.length_penalty, **how)

        return jax.jit(search)


def without_weights(step: Any) -> Any:
    """Return a step function that returns no weights, so that no search keeps them."""
    return lambda token, state: (*step(token, state)[:2], None)


def cut(sources: Sequence[Any], most: int, *, first: int = 1) -> list[Any]:
    """Return sources of so many tokens at most; a message names each line that loses its end."""
    for number, source in enumerate(sources, first):
        if len(source) > most:
            what = f"line {number} has {len(source):,} tokens, more than --max-source"
            what += " or learned positions allow"
            print(f"{what}: cut to the first {most:,}", file=sys.stderr)
    return [source[:most] for source in sources]
