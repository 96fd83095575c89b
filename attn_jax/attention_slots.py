"""The slots of one attention as one value: what is computed, whatever computes it."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array

from attn_jax.checks import require, require_function
from attn_jax.dropout import Dropout
from attn_jax.masks import MaskFunction
from attn_jax.normalizers import Normalizer, Softmax
from attn_jax.score_mods import ScoreMod
from attn_jax.scores import ScaledDot, Score
from attn_jax.slots import require_one_head

SIGNATURES = {
    "score": "(query, key) -> scores",
    "normalizer": "(scores, where=None, axis=-1) -> weights",
    "score_mod": "(scores, query_index, key_index) -> scores",
    "mask": "(query_index, key_index) -> bool; masks.Dense(array) wraps an array",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class AttentionSlots:
    """score → score_mod → mask → normalizer → dropout; a pytree of theirs."""

    score: Score = ScaledDot()
    normalizer: Normalizer = Softmax()
    score_mod: ScoreMod | None = None
    mask: MaskFunction | None = None
    dropout: Dropout | None = None

    def check(self, query: Array, key: Array) -> None:
        """Refuse what is no slot, and slots that do not fit the arrays."""
        require_slots(**{name: getattr(self, name) for name in SIGNATURES})
        is_dropout = self.dropout is None or isinstance(self.dropout, Dropout)
        require(is_dropout, "dropout", "be a Dropout or None", self.dropout)
        require_one_head(self)
        if hasattr(self.score, "check"):
            self.score.check(query, key)
        for slot in (self.score_mod, self.mask):
            if hasattr(slot, "check"):
                slot.check(query.shape[0], key.shape[0])


def require_slots(**slots: Any) -> None:
    """Refuse what is no slot, and a slot's class; None stands for no score_mod and no mask."""
    for name, slot in slots.items():
        if slot is not None or name in ("score", "normalizer"):
            require_function(slot, name, f"a function {SIGNATURES[name]}")
