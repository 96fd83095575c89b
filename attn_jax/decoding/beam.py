"""Beam search: the most probable hypotheses of each example, approximately."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from attn_jax import meshes
from attn_jax.checks import all_hold, require, require_scalar
from attn_jax.decoding.hypotheses import History, Hypotheses
from attn_jax.decoding.logits import allowed_only, log_probabilities
from attn_jax.decoding.step import Decoded, Search, Step, prepare, require_count

MOST_PENALTY = float(np.finfo(np.float32).max)


def beam_search(
    step: Step,
    state: Any,
    *,
    start: Int[ArrayLike, "*b"],
    end: int,
    max_length: int,
    min_length: int = 0,
    limit: Int[ArrayLike, " b"] | None = None,
    forbidden: tuple[int, ...] = (),
    beam_size: int = 5,
    n_best: int = 1,
    length_penalty: Float[ArrayLike, ""] | int = 0.6,
) -> Decoded:
    """Keep the `beam_size` most probable hypotheses at every step; return the `n_best` by score.

    score = log P / lp(length), lp = ((5 + length) / 6)^length_penalty. (Wu et al. 2016, eq. 14.)
    Of the `beam_size` best continuations at a step, those that end leave the beam, and the others
    go on. An example is done when no live hypothesis can get among its n_best finished ones any
    more, a penalty of ((5 + limit) / 6)^length_penalty and no further loss assumed. Finished
    hypotheses come before unfinished ones, which fill up where fewer than n_best finish; places
    without a hypothesis have length 0 and score -inf. A beam of 1 is `greedy`.

    >>> def step(token, state):
    ...     return jnp.log(jnp.array([[0.3, 0.7]] * len(token))), state, None
    >>> best = beam_search(step, jnp.zeros(1), start=0, end=0, max_length=2, n_best=3)
    >>> best.tokens.tolist(), best.lengths.tolist(), best.finished.tolist()
    ([[[0, 0], [1, 0], [1, 1]]], [[1, 2, 2]], [[True, True, False]])
    """
    require_count(beam_size, "beam_size", least=1)
    require_count(n_best, "n_best", least=1, most=beam_size)
    require_scalar(length_penalty, "length_penalty")
    proper = all_hold(length_penalty, lambda value: (value >= 0) & (value <= MOST_PENALTY))
    require(proper, "length_penalty", "be finite in float32 and not negative", length_penalty)
    search = prepare(
        step,
        state,
        start=start,
        end=end,
        max_length=max_length,
        min_length=min_length,
        limit=limit,
        forbidden=forbidden,
        copies=beam_size,
        deciding=length_penalty,
    )

    def body(beam):
        logits, state, weights = search.step(beam.tokens.reshape(-1), beam.state)
        rest = beam._replace(state=())
        after, parents = meshes.automatic(
            functools.partial(_advance, search),
            *(rest, logits, weights, search.limit, length_penalty),
            specs=(meshes.specs_of(rest), search.by_example),
        )
        state = _reordered(beam.state, state, parents)
        return meshes.alike(after._replace(state=state), beam)

    first = _first(search, beam_size, n_best)
    last = jax.lax.while_loop(lambda beam: jnp.any(beam.running), body, first)
    return meshes.automatic(
        functools.partial(_decoded, search),
        *(length_penalty, last._replace(state=())),
        specs=search.by_example,
    )


class _Beam(NamedTuple):
    """The loop's carry: s live hypotheses of each example, and its n best finished ones."""

    t: Int[Array, ""]
    tokens: Int[Array, "b s"]
    state: Any
    running: Bool[Array, " b"]
    failure: Float[Array, " b"]  # -inf where it ended because nothing was possible; NaN; else 0
    live: Hypotheses
    finished: Hypotheses
    history: History


class _Choice(NamedTuple):
    """The best continuations of an example's live hypotheses, best first."""

    log_probabilities: Float[Array, "b s"]
    tokens: Int[Array, "b s"]
    parents: Int[Array, "b s"]
    failure: Float[Array, " b"]


def _first(search: Search, beam_size: int, n_best: int) -> _Beam:
    b, t = search.limit.shape[0], search.max_length
    zeros = search.zeros(t, b, beam_size)
    slots = zeros[0] + jnp.arange(beam_size, dtype=jnp.int32)[None]
    impossible = jnp.full_like(slots, -jnp.inf, search.dtype)
    none = Hypotheses(impossible, zeros[0], slots)
    # All slots begin alike: only one of them is a hypothesis, or each would be followed s times.
    first = jnp.where(slots == 0, jnp.zeros_like(impossible), impossible)
    return _Beam(
        t=jnp.zeros((), jnp.int32),
        tokens=search.token.reshape(b, beam_size),
        state=search.state,
        running=search.limit > 0,
        failure=jnp.zeros_like(search.limit, search.dtype),
        live=none._replace(log_probabilities=first),
        finished=jax.tree.map(lambda part: part[:, :n_best], none),
        history=History(zeros, zeros, search.buffer(t, b, beam_size)),
    )


def _advance(
    search: Search,
    beam: _Beam,
    logits: Float[Array, "n v"],
    weights: Float[Array, "n k"] | None,
    limit: Int[Array, " b"],
    length_penalty: Float[ArrayLike, ""] | int,
) -> tuple[_Beam, Int[Array, "b s"]]:
    """After a step of every hypothesis, and the slots that they go on from.

    Examples that are done keep what they have.
    """
    choice = _choose(search, beam, logits.astype(search.dtype))
    going = beam.running & (choice.failure == 0)
    live, ended = _parted(search, beam, choice, going)
    n_best = beam.finished.slots.shape[1]
    finished = beam.finished.beside(ended).best(n_best, length_penalty, longest=beam.t + 1)
    hope = _can_win(live, finished, limit, length_penalty)
    after = _Beam(
        t=beam.t + 1,
        tokens=choice.tokens,
        state=beam.state,
        running=going & hope & (beam.t + 1 < limit),
        failure=jnp.where(beam.running, choice.failure, beam.failure),
        live=live,
        finished=finished,
        history=beam.history.write(beam.t, choice.tokens, choice.parents, weights),
    )
    return after, choice.parents


def _choose(search: Search, beam: _Beam, logits: Float[Array, "n v"]) -> _Choice:
    """The s most probable continuations of all live hypotheses together."""
    live = beam.live.log_probabilities
    (b, s), c = live.shape, min(live.shape[1], logits.shape[1])
    # The best of each hypothesis, then of these: at v = 10,000 half the time of s · v at once.
    logits_of_best, tokens = jax.lax.top_k(allowed_only(search, logits, beam.t), c)
    steps = log_probabilities(logits, logits_of_best).reshape(b, s, c)
    # A slot without a hypothesis may hold anything, NaN included.
    total = jnp.where(beam.live.real[..., None], live[..., None] + steps, -jnp.inf)
    best, places = jax.lax.top_k(total.reshape(b, s * c), s)
    broken = jnp.any(jnp.isnan(total), axis=(1, 2))
    failure = jnp.where(broken, jnp.nan, jnp.where(best[:, 0] > -jnp.inf, 0.0, -jnp.inf))
    return _Choice(
        log_probabilities=best,
        tokens=jnp.take_along_axis(tokens.reshape(b, s * c), places, axis=1),
        parents=places // c,
        failure=failure.astype(best.dtype),
    )


def _parted(
    search: Search, beam: _Beam, choice: _Choice, going: Bool[Array, " b"]
) -> tuple[Hypotheses, Hypotheses]:
    """The hypotheses that are live after a step, and those that ended in it."""
    going = going[:, None]
    longer = Hypotheses(
        choice.log_probabilities, jnp.full_like(choice.tokens, beam.t + 1), beam.live.slots
    )
    ended = choice.tokens == search.end
    live = jax.tree.map(lambda new, old: jnp.where(going, new, old), longer.only(~ended), beam.live)
    return live, longer.only(going & ended)


def _reordered(before: Any, after: Any, parents: Int[Array, "b s"]) -> Any:
    """The state of each slot's parent."""

    def of_parents(new, parents):
        b, s = parents.shape
        rows = (parents + s * jnp.arange(b, dtype=jnp.int32)[:, None]).reshape(-1)
        return new.at[rows].get(mode="promise_in_bounds")

    def reordered(old, new):
        # Handed on untouched, it is the same in all slots of an example: nothing to move.
        if new is old:
            return old
        return meshes.automatic(of_parents, new, parents, specs=meshes.specs_of(old))

    return jax.tree.map(reordered, before, after)


def _can_win(
    live: Hypotheses,
    finished: Hypotheses,
    limit: Int[Array, " b"],
    length_penalty: Float[ArrayLike, ""] | int,
) -> Bool[Array, " b"]:
    """Whether a live hypothesis could still get among the finished ones.

    log P only falls and lp only grows, so no continuation of one scores more than
    log P / lp(limit); where it scores as much as a finished one, that was first.
    """
    worst = Hypotheses(*(part[:, -1:] for part in finished))
    bar = worst.scores(length_penalty, like=limit[:, None])[:, 0]
    return jnp.max(live.log_probabilities, axis=1) > bar


def _decoded(search: Search, length_penalty: Float[ArrayLike, ""] | int, beam: _Beam) -> Decoded:
    """The finished hypotheses, then the best live ones in the places that are left."""
    n = beam.finished.slots.shape[1]
    both = beam.finished.beside(beam.live)
    places = jnp.argsort(~both.real, axis=1, stable=True)[:, :n]
    best = both.take(places)
    finished = (places < n) & best.real & ~jnp.isnan(beam.failure)[:, None]
    best = best._replace(lengths=jnp.where(best.real, best.lengths, 0))
    tokens, weights = beam.history.trace(best, search.end)
    failure = jnp.where(finished, 0.0, beam.failure[:, None])
    return Decoded(
        tokens=tokens,
        lengths=best.lengths,
        scores=best.scores(length_penalty) + failure,
        finished=finished,
        weights=weights,
        log_probabilities=best.log_probabilities + failure,
    )
