"""One call of streaming attention: what is static about it, and its arrays in blocks."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from attn_jax import masks
from attn_jax.attention_slots import AttentionSlots
from attn_jax.block_scores import attended, block_scores
from attn_jax.blocks import Block
from attn_jax.checks import require
from attn_jax.meshes import varying
from attn_jax.precision import accumulate, accumulation_dtype
from attn_jax.scores import Score
from attn_jax.slots import together
from attn_jax.streaming import forms
from attn_jax.streaming.grid import LOWER, PARTIAL, SKIPPED, UPPER, WHOLE, Grid
from attn_jax.streaming.hoisting import Hoisted, Hoisting, widened
from attn_jax.streaming.placement import Placement

INDEXED = "work on a block of pairs: index what it closes over with query_index and key_index"


class Arrays(NamedTuple):
    """The arguments of a `Problem`, in all of which it is differentiated."""

    query: Num[Array, "rows size d"]
    key: Num[Array, "columns size c"]
    value: Num[Array, "columns size e"]
    normalizer: list[Array | None]
    hoisted: list[Array]
    runtime_any: Bool[Array, "rows columns"] | None
    device: Int[Array, ""] | None = None  # whose queries these are, where they are placed


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Pure functions of `Arrays`, whose query, key and value are those of one block.

    `compare` has the scores of a block by (is_partial, is_half), `drop` the weights that dropout
    leaves, by is_half.
    """

    grid: Grid
    dtype: Any
    compare: Mapping[tuple[bool, bool], Hoisted]
    drop: Mapping[bool, Hoisted]
    compare_pair: Hoisted | None
    normalizer: tuple[Any, list[Any]]
    placement: Placement | None = None

    def form(self, x: Arrays) -> forms.Form:
        """The normalizer as functions of one score."""
        structure, fixed = self.normalizer
        return forms.form(structure.unflatten(together(x.normalizer, fixed)))

    def scores(
        self, x: Arrays, block: Block, is_partial: bool
    ) -> tuple[Float[Array, "q k"], Float[Array, "k e"]]:
        """Scores of a block, -inf where masked, and the values, 0 where no query may attend."""
        compare = self.compare[is_partial, self._is_half(block)]
        scores, allowed = compare(x.hoisted, x.query, x.key, *block.start)
        value = x.value
        if allowed is not None:
            scores = jnp.where(allowed, scores, -jnp.inf)
            value = jnp.where(attended(allowed), value, 0.0)
        return scores.astype(self.dtype), value

    def dropout(self, x: Arrays, weights: Float[Array, "q k"], block: Block) -> Float[Array, "q k"]:
        """The weights of a block after dropout."""
        if not self.drop:
            return weights
        return self.drop[self._is_half(block)](x.hoisted, weights, *block.start)

    def pair(self, x: Arrays, *pair: Any) -> Float[Array, ""]:
        """The score of (query, key, query_index, key_index, exists), 0 if it does not exist."""
        return self.compare_pair(x.hoisted, *pair)

    def _is_half(self, block: Block) -> bool:
        return block.size != self.grid.size


def make_problem(
    query: Num[Array, "q d"],
    key: Num[Array, "k c"],
    value: Num[Array, "k e"],
    slots: AttentionSlots,
    grid: Grid,
    runtime_any: Bool[Array, "rows columns"] | None,
    axes: frozenset,
    placement: Placement | None = None,
) -> tuple[Problem, Arrays]:
    """The problem, and its arguments; `axes` are the manual mesh axes over which they vary.

    With a `placement` query, and in a ring key and value, are those of one device.
    """
    form, on_blocks, hoisting = forms.form(slots.normalizer), _OnBlocks(slots, grid), Hoisting()
    kinds = {
        WHOLE: (False, False),
        PARTIAL: (True, False),
        UPPER: (True, True),
        LOWER: (True, True),
    }
    used = {kinds[kind] for kind in grid.kinds.ravel().tolist() if kind != SKIPPED}
    compare = {}
    for is_partial, is_half in sorted(used | {kinds[WHOLE]}):
        rows, columns = grid.block((0, 0), half=is_half).size
        of_block = functools.partial(on_blocks.scores, is_partial, is_half)
        compare[is_partial, is_half] = hoisting(of_block, query[:rows], key[:columns], 0, 0)
    dtype = accumulation_dtype(compare[kinds[WHOLE]].shapes[0].dtype, *form.offsets)
    (value,) = accumulate(value)
    value = value.astype(accumulation_dtype(value, dtype))
    drop, compare_pair = {}, None
    if slots.dropout is not None:
        for is_half in {is_half for _, is_half in compare}:
            weights = varying(jnp.zeros(grid.block((0, 0), half=is_half).size, dtype), axes)
            drop[is_half] = hoisting(functools.partial(on_blocks.dropout, is_half), weights, 0, 0)
    if form.moves:
        index = varying(jnp.zeros_like(query[0, 0], int), axes)
        compare_pair = hoisting(on_blocks.pair, query[0], key[0], index, index, index == 0)
    parameters, structure = jax.tree.flatten(slots.normalizer)
    learned = [  # a plain number has the scores' dtype, whatever it is traced as
        None if not isinstance(x, jax.Array) else x.astype(dtype) if x.weak_type else widened(x)
        for x in parameters
    ]
    fixed = [None if isinstance(x, jax.Array) else x for x in parameters]
    problem = Problem(grid, dtype, compare, drop, compare_pair, (structure, fixed), placement)
    query, key, value = grid.split(query, 0), grid.split(key, 1), grid.split(value, 1)
    device = None if placement is None else placement.here()
    return problem, Arrays(query, key, value, learned, hoisting.arrays, runtime_any, device)


@dataclasses.dataclass(frozen=True)
class _OnBlocks:
    """The slots on blocks of the grid: functions that close over what the slots hold."""

    slots: AttentionSlots
    grid: Grid

    def scores(self, is_partial: bool, is_half: bool, query: Any, key: Any, *start: Any) -> Any:
        """The block's scores, and what is allowed of it if it is partial."""
        block = self.grid.block(start, half=is_half)
        allowed = block.real if is_partial else None
        if is_partial and self.slots.mask is not None:
            with on_a_block("mask", INDEXED):
                inside = masks.in_block(self.slots.mask, block)
            allowed = inside if allowed is None else inside & allowed
        return self._compared(query, key, block, allowed), allowed

    def dropout(self, is_half: bool, weights: Any, *start: Any) -> Any:
        return self.slots.dropout(weights, *self.grid.block(start, half=is_half).indices)

    def pair(self, query: Any, key: Any, query_index: Any, key_index: Any, exists: Any) -> Any:
        block = dataclasses.replace(self.grid.block((query_index, key_index)), size=(1, 1))
        score = self._compared(query[None], key[None], block, exists[None, None])[0, 0]
        return jnp.where(exists, score, 0.0)

    def _compared(self, query: Any, key: Any, block: Block, allowed: Any) -> Any:
        slots = {"score": any_size(self.slots.score), "score_mod": self.slots.score_mod}
        with on_a_block("score_mod", INDEXED):
            return block_scores(query, key, block, **slots, allowed=allowed)


def any_size(score: Score) -> Score:
    """The score, refused by name where it compares a fixed number of queries and keys."""
    return on_a_block("score", "compare any number of queries and keys")(score)


@contextlib.contextmanager
def on_a_block(name: str, rule: str):
    """Say what is wrong where a function needs the arrays of all pairs."""
    try:
        yield
    except (TypeError, ValueError) as error:
        of_shapes = re.search("shape|broadcast|incompatible|rank", str(error))
        if re.match(r"[\w ]+ must ", str(error)) or not of_shapes:
            raise
        require(False, name, rule, f"{type(error).__name__}: {error}".rstrip("."))
