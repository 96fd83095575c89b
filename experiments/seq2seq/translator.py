"""Lines to translations, in order: greedy or beam search, one model or several, alignments."""

import copy
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.harness.errors import UserError
from experiments.seq2seq.train import POSITIONS


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a translation."""

    beam: int = 1
    """Hypotheses kept at each step; 1 is greedy."""
    n_best: int = 1
    """Translations of each line."""
    length_penalty: float = 0.6
    """Exponent of GNMT's length penalty."""
    longest: float = 2.0
    """The most target tokens for each source token, plus 10."""
    max_source: int = 1000
    """The longest source, in tokens: a longer one is cut, and its line is named."""

    def __post_init__(self):
        if self.beam < 1:
            raise UserError(f"--beam must be at least 1. Got {self.beam}.")
        if not 1 <= self.n_best <= self.beam:
            raise UserError(f"--n-best must be 1 to --beam, {self.beam}. Got {self.n_best}.")
        if not 0 <= self.length_penalty < float("inf"):
            raise UserError(f"--length-penalty must not be negative. Got {self.length_penalty}.")
        if not 0 < self.longest < float("inf"):
            raise UserError(f"--longest must be positive. Got {self.longest}.")
        if self.max_source < 1:
            raise UserError(f"--max-source must be at least 1. Got {self.max_source}.")


@dataclass(frozen=True)
class Translation:
    """One hypothesis for one line."""

    text: str
    ids: list[int]  # of the target, its end not included
    score: float
    weights: np.ndarray | None  # [target ids and the end, source ids]
    finished: bool


NOTHING = Translation("", [], 0.0, None, True)


class Translator:
    """Models of one vocabulary, and how to search with them; several vote (an ensemble).

    An empty line has one translation, the empty line, for certain.
    Each shape is compiled once; rows that only fill a batch up change nothing. Sources are padded
    to one of `lengths`, and a batch holds so many `positions` at most: long ones come with few
    others. Weights, which need memory by the square of the length, are kept of sources that are
    padded to `align_up_to` at most.
    """

    def __init__(
        self,
        models: Sequence[Any],
        target: Any,
        options: SearchOptions = SearchOptions(),
        *,
        batch_size: int = 128,
        positions: int = POSITIONS,
        lengths: Sequence[int] | None = None,
        align_up_to: float = math.inf,
        forbidden: tuple[int, ...] | None = None,
    ):
        from attn_jax import text

        self.models, self.target, self.options = models, target, options
        self.batch_size, self.positions = batch_size, positions
        self.lengths = text.LENGTHS if lengths is None else lengths
        self.align_up_to = align_up_to
        self.forbidden = (text.PAD, text.START) if forbidden is None else forbidden
        self.most_positions = min(each.most_positions for each in models)
        self.most_source = most_source(models, options)

    def __call__(self, sources: Sequence[Sequence[int]]) -> list[list[Translation]]:
        """Return the n best translations of each encoded line."""
        from attn_jax import text

        found = text.padded_search(
            functools.partial(self._search, self._states),
            sources,
            batch_size=self.batch_size,
            batch_positions=self.positions,
            lengths=self.lengths,
        )
        return [
            [self._translation(each) for each in hypotheses] if len(source) else [NOTHING]
            for source, hypotheses in zip(sources, found, strict=True)
        ]

    def of(self, models: Sequence[Any]) -> "Translator":
        """Return a translator with other parameters of the same models: nothing compiles again."""
        other = copy.copy(self)
        other._search = self._search
        other.models = models
        other.__dict__.pop("_states", None)
        return other

    def _translation(self, found: Any) -> Translation:
        text = self.target.decode(found.ids)
        return Translation(text, found.ids, found.score, found.weights, found.finished)

    @functools.cached_property
    def _states(self) -> list[Any]:
        from flax import nnx

        return [nnx.split(model)[1] for model in self.models]

    @functools.cached_property
    def _search(self) -> Any:
        import jax
        import jax.numpy as jnp
        from flax import nnx

        from attn_jax import decoding, text

        graphdefs = [nnx.split(model)[0] for model in self.models]
        options = self.options

        def search(states, source, length):
            models = [nnx.merge(g, s) for g, s in zip(graphdefs, states, strict=True)]
            longest = min(int(options.longest * source.shape[1]) + 10, self.most_positions)
            step, state = begun([each.begin(source, length, longest=longest) for each in models])
            if source.shape[1] > self.align_up_to:
                step = without_weights(step)
            limit = (options.longest * length).astype(jnp.int32) + 10
            how = {
                "start": text.START,
                "end": text.END,
                "max_length": longest,
                "limit": limit,
                "forbidden": self.forbidden,
            }
            if options.beam == 1:
                found = decoding.greedy(step, state, **how)
                return jax.tree.map(lambda each: each[:, None], found)
            how |= {"beam_size": options.beam, "n_best": options.n_best}
            how["length_penalty"] = options.length_penalty
            return decoding.beam_search(step, state, **how)

        return jax.jit(search)


def begun(models: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return one step function and state of several."""
    from attn_jax import decoding

    if len(models) == 1:
        return models[0]
    steps, states = zip(*models, strict=True)
    return decoding.ensemble(steps), states


def without_weights(step: Any) -> Any:
    """Return a step function that tells no weights, so that no search keeps them."""
    return lambda token, state: (*step(token, state)[:2], None)


def most_source(models: Sequence[Any], options: SearchOptions) -> int:
    """Return the longest source that the options allow and that all models have positions for."""
    return min(options.max_source, *(each.most_positions for each in models))


def cut(sources: Sequence[Sequence[int]], most: int, *, first: int = 1) -> list[Sequence[int]]:
    """Return sources of so many tokens at most; a message names each line that loses its end."""
    for number, source in enumerate(sources, first):
        if len(source) > most:
            what = f"line {number} has {len(source):,} tokens, more than --max-source"
            what += " or learned positions allow"
            print(f"{what}: cut to the first {most:,}", file=sys.stderr)
    return [source[:most] for source in sources]
