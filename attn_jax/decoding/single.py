"""One hypothesis for each example: the best token at every step, or a drawn one."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key

from attn_jax import meshes
from attn_jax.checks import all_hold, require, require_positive, require_scalar
from attn_jax.decoding.filters import draw
from attn_jax.decoding.logits import allowed_only, best_token, log_probabilities
from attn_jax.decoding.step import Decoded, Search, Step, prepare, require_count

# what it needs beside the logits and the time, arrays, it gets as arguments
Pick = Callable[..., Int[Array, " b"]]


def greedy(
    step: Step,
    state: Any,
    *,
    start: Int[ArrayLike, "*b"],
    end: int,
    max_length: int,
    min_length: int = 0,
    limit: Int[ArrayLike, " b"] | None = None,
    forbidden: tuple[int, ...] = (),
) -> Decoded:
    """Take the most probable token at every step.

    >>> def step(token, state):  # counts up
    ...     return 9.0 * jax.nn.one_hot(token + 1, 4), state, None
    >>> greedy(step, (), start=jnp.array([0, 1]), end=3, max_length=4).tokens.tolist()
    [[1, 2, 3, 3], [2, 3, 3, 3]]
    """
    search = prepare(
        step,
        state,
        start=start,
        end=end,
        max_length=max_length,
        min_length=min_length,
        limit=limit,
        forbidden=forbidden,
    )
    return _follow(search, lambda logits, t: best_token(logits), ())


def sample(
    step: Step,
    state: Any,
    *,
    rng: Key[Array, "*examples"],
    start: Int[ArrayLike, "*b"],
    end: int,
    max_length: int,
    min_length: int = 0,
    limit: Int[ArrayLike, " b"] | None = None,
    forbidden: tuple[int, ...] = (),
    temperature: Float[ArrayLike, ""] | int = 1.0,
    top_k: int | None = None,
    top_p: Float[ArrayLike, ""] | int | None = None,
) -> Decoded:
    """Draw every token from softmax(logits / temperature), cut to the most probable ones.

    `top_k` leaves the k most probable tokens (Fan et al. 2018), then `top_p` the fewest of them
    that hold this share of what is left (the nucleus: Holtzman et al. 2020). An example's draws
    depend on its key and the step alone; one `rng` is folded with each example's place in the
    batch (inside `jax.shard_map` that is the shard: give each example its key there).

    >>> def step(token, state):
    ...     return jnp.zeros((2, 4)), state, None
    >>> drawn = sample(step, jnp.zeros(2), rng=jax.random.key(0), start=0, end=0, max_length=5)
    >>> drawn.tokens.shape, drawn.log_probabilities.shape
    ((2, 5), (2,))
    """
    _check_filters(temperature, top_k, top_p)
    search = prepare(
        step,
        state,
        start=start,
        end=end,
        max_length=max_length,
        min_length=min_length,
        limit=limit,
        forbidden=forbidden,
        deciding=(rng, temperature, top_p),
    )
    rngs = _row_rngs(rng, search.token.shape[0])

    def pick(logits, t, rngs, temperature, top_p):
        now = jax.vmap(jax.random.fold_in, (0, None))(rngs, t)
        return draw(now, logits, temperature=temperature, top_k=top_k, top_p=top_p)

    return _follow(search, pick, (rngs, temperature, top_p))


class _Path(NamedTuple):
    """The loop's carry; what it has produced is kept time first: a step writes one slice."""

    t: Int[Array, ""]
    token: Int[Array, " b"]
    state: Any
    running: Bool[Array, " b"]
    lengths: Int[Array, " b"]
    scores: Float[Array, " b"]
    finished: Bool[Array, " b"]
    tokens: Int[Array, "t b"]
    weights: Float[Array, "t b k"] | None


def _follow(search: Search, pick: Pick, arrays: tuple[Any, ...]) -> Decoded:
    """Step until every example has ended; `pick` takes a token from the allowed logits."""
    shape = search.max_length, search.token.shape[0]
    tokens = search.zeros(*shape)
    first = _Path(
        t=jnp.zeros((), jnp.int32),
        token=search.token,
        state=search.state,
        running=search.limit > 0,
        lengths=tokens[0],
        scores=tokens[0].astype(search.dtype),
        finished=tokens[0] > 0,
        tokens=tokens + search.end,
        weights=search.buffer(*shape),
    )

    def body(path):
        logits, state, weights = search.step(path.token, path.state)
        rest = path._replace(state=())
        after = meshes.automatic(
            functools.partial(_advance, search, pick),
            *(rest, logits, weights, search.limit, *arrays),
            specs=meshes.specs_of(rest),
        )
        return meshes.alike(after._replace(state=state), path)

    last = jax.lax.while_loop(lambda path: jnp.any(path.running), body, first)
    return Decoded(
        tokens=last.tokens.T,
        lengths=last.lengths,
        scores=last.scores,
        finished=last.finished,
        weights=None if last.weights is None else jnp.swapaxes(last.weights, 0, 1),
        log_probabilities=last.scores,
    )


def _advance(
    search: Search,
    pick: Pick,
    path: _Path,
    logits: Float[Array, "b v"],
    weights: Float[Array, "b k"] | None,
    limit: Int[Array, " b"],
    *arrays: Any,
) -> _Path:
    """After a step of every example; those that have ended stay as they are."""
    logits = logits.astype(search.dtype)
    allowed = allowed_only(search, logits, path.t)
    token = pick(allowed, path.t, *arrays)
    chosen = jnp.take_along_axis(allowed, token[:, None], axis=1)
    log_probability = log_probabilities(logits, chosen)[:, 0]
    wrote = path.running & (log_probability > -jnp.inf)  # not where it is NaN either
    token = jnp.where(wrote, token, search.end)
    ended = wrote & (token == search.end)
    return _Path(
        t=path.t + 1,
        token=token,
        state=path.state,
        running=wrote & ~ended & (path.t + 1 < limit),
        lengths=path.lengths + wrote,
        scores=jnp.where(path.running, path.scores + log_probability, path.scores),
        finished=path.finished | ended,
        tokens=path.tokens.at[path.t].set(token),
        weights=_written(path.weights, path.t, weights, wrote),
    )


def _written(
    buffer: Float[Array, "t b k"] | None,
    t: Int[Array, ""],
    weights: Float[Array, "b k"] | None,
    wrote: Bool[Array, " b"],
) -> Float[Array, "t b k"] | None:
    """The buffer with this step's weights, 0 where nothing was written."""
    if buffer is None:
        return None
    return buffer.at[t].set(jnp.where(wrote[:, None], weights, 0))


def _check_filters(temperature: Any, top_k: Any, top_p: Any) -> None:
    require_scalar(temperature, "temperature")
    rule = "not be 0, where sampling becomes `greedy`"
    require(all_hold(temperature, lambda value: value != 0), "temperature", rule, temperature)
    require_positive(temperature, "temperature")
    if top_k is not None:
        require_count(top_k, "top_k", least=1)
    if top_p is not None:
        require_scalar(top_p, "top_p")
        proper = all_hold(top_p, lambda value: (value > 0) & (value <= 1))
        require(proper, "top_p", "be above 0 and at most 1", top_p)


def _row_rngs(rng: Key[Array, "*examples"], examples: int) -> Key[Array, " b"]:
    """One key for each example."""
    typed = jax.dtypes.issubdtype(getattr(rng, "dtype", None), jax.dtypes.prng_key)
    rule = "be a key of jax.random.key, or one for each example"
    require(typed and rng.shape in ((), (examples,)), "rng", rule, rng)
    if rng.shape:
        return rng
    return jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(examples))
