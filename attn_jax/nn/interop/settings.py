"""What families say in their configurations by the same words: activations, norms, positions."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from flax import nnx

from attn_jax.checks import require
from attn_jax.nn.interop.arrays import Row
from attn_jax.position_encodings import (
    LinearScaling,
    Llama3Scaling,
    Rotary,
    Scaling,
    YarnScaling,
)

Config = Mapping[str, Any]
Names = Collection[str]  # of a state dict

ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Family(NamedTuple):
    """How a model of a family is built, and which of its arrays is which of ours."""

    build: Callable[[nnx.Rngs], nnx.Module]
    rows: list[Row]
    prefix: str = ""  # of names in the class with a head, which the bare model does without
    copies: tuple[str, ...] = ()  # names of arrays that are another one
    heads: tuple[str, ...] = ()  # beginnings of names that our module has no place for
    constants: Mapping[str, Any] = {}  # ours that no state dict has


def refuse(config: Config, name: str, only: Any) -> None:
    """Refuse a setting that our modules have one way alone."""
    got = config.get(name, only)
    require(got == only, "config", f"have {name} {only}", got)


def activation(name: str, gated: bool = False) -> str:
    """Ours, by theirs."""
    require(name in ACTIVATIONS, "config", f"have an activation of {list(ACTIVATIONS)}", repr(name))
    ours = ACTIVATIONS[name]
    return {"silu": "swiglu", "gelu": "geglu"}.get(ours, ours) if gated else ours


def rms(epsilon: float) -> Callable[..., nnx.Module]:
    """The norm with this epsilon."""
    return partial(nnx.RMSNorm, epsilon=epsilon)


def layer_norm(epsilon: float, bias: bool = True) -> Callable[..., nnx.Module]:
    """The norm with this epsilon, its variance computed from differences as PyTorch does."""
    return partial(nnx.LayerNorm, epsilon=epsilon, use_bias=bias, use_fast_variance=False)


def rotary(config: Config, share: float = 1.0, base: float = 10_000.0) -> Rotary:
    """The rotary positions of a configuration, of transformers 4 or 5."""
    given = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    base = given.get("rope_theta", config.get("rope_theta", config.get("rotary_emb_base", base)))
    share = given.get("partial_rotary_factor", share)
    size = head_features(config)
    features = None if share == 1.0 else int(size * share)
    return Rotary(float(base), features, scaling=_scaling(given, config))


def _scaling(given: Mapping[str, Any], config: Config) -> Scaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    known = ("default", "linear", "llama3", "yarn")
    require(kind in known, "config", f"have a rope_type of {list(known)}", repr(kind))
    if kind == "default":
        return None
    factor = float(given["factor"])
    if kind == "linear":
        return LinearScaling(factor)
    name = "original_max_position_embeddings"
    original = given.get(name) or config["max_position_embeddings"]
    if kind == "llama3":
        return Llama3Scaling(factor, original, given["low_freq_factor"], given["high_freq_factor"])
    slow, fast = given.get("beta_slow") or 1.0, given.get("beta_fast") or 32.0
    magnitude = given.get("attention_factor")
    plain = given.get("mscale") is None and given.get("mscale_all_dim") is None
    require(plain or magnitude is not None, "config", "have no mscale in its rope", given)
    rounds = given.get("truncate", True)
    return YarnScaling(factor, original, slow, fast, magnitude, rounds)


def head_features(config: Config) -> int:
    """Features of a head."""
    given = config.get("head_dim")
    return given or config["hidden_size"] // config["num_attention_heads"]


def tied(config: Config, names: Names, output: str = "lm_head.weight") -> bool:
    """Whether the output layer is the embedding: as the configuration says, else as the names."""
    said = config.get("tie_word_embeddings")
    return output not in names if said is None else said
