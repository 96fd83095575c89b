"""Families of decoder-only models: how each is built of our parts, and the names of its arrays."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.masks import Window
from attn_jax.nn.experts import Experts
from attn_jax.nn.interop.arrays import (
    EVEN_AND_ODD,
    PLUS_ONE,
    SAME,
    TRANSPOSED,
    Change,
    Row,
    by_head,
    side_by_side,
)
from attn_jax.nn.interop.settings import (
    Config,
    Family,
    Names,
    activation,
    head_features,
    layer_norm,
    refuse,
    rms,
    rotary,
    tied,
)
from attn_jax.nn.language_model import LanguageModel
from attn_jax.nn.slots import Fixed
from attn_jax.normalizers import Softmax
from attn_jax.position_encodings import alibi_slopes
from attn_jax.score_mods import Alibi, SoftCap
from attn_jax.scores import ScaledDot

QKV = ("query", "key", "value")


def linear(theirs: str, ours: str, bias: bool = True, change: Change = TRANSPOSED) -> list[Row]:
    """A linear layer's arrays; `change` is the kernel's."""
    rows = [Row(f"{theirs}.weight", f"{ours}.kernel", change)]
    return rows + [Row(f"{theirs}.bias", f"{ours}.bias", SAME)] * bias


def norm(theirs: str, ours: str, bias: bool = True, change: Change = SAME) -> list[Row]:
    """A norm's arrays; `change` is the scale's."""
    rows = [Row(f"{theirs}.weight", f"{ours}.scale", change)]
    return rows + [Row(f"{theirs}.bias", f"{ours}.bias", SAME)] * bias


def fused(theirs: str, ours: str, bias: bool, kernel: Change, vector: Change) -> list[Row]:
    """Query, key and value in one array."""
    kernels, biases = (
        tuple(f"{ours}.{each}.{part}" for each in QKV) for part in ("kernel", "bias")
    )
    rows = [Row(f"{theirs}.weight", kernels, kernel)]
    return rows + [Row(f"{theirs}.bias", biases, vector)] * bias


def ends(
    theirs: str, last: str, is_tied: bool, *, bias: bool = True, change: Change = SAME
) -> list:
    """The embedding, the last norm, and the output layer if it is another one."""
    rows = [Row(theirs, "embedding.tokens", SAME), *norm(last, "stack.norm", bias, change)]
    return rows if is_tied else [*rows, Row("lm_head.weight", "embedding.output", SAME)]


def built(config: Config, layers: int, heads: int, is_tied: bool, **options: Any) -> Any:
    """What builds the language model."""
    width = config.get("hidden_size") or config.get("n_embd") or config["d_model"]
    embedding = {"scale": 1.0, "output_bias": False} | options.pop("embedding", {})
    fixed = (config["vocab_size"], width, heads, layers)
    return lambda rngs: LanguageModel(
        *fixed, tied=is_tied, embedding=embedding, rngs=rngs, **options
    )


def gpt2(config: Config, names: Names) -> Family:
    """GPT-2. (Radford et al. 2019.)"""
    layers, heads, width = config["n_layer"], config["n_head"], config["n_embd"]
    is_tied = tied(config, names)
    options = {"hidden": config.get("n_inner") or 4 * width, "positions": "learned"}
    options |= {"activation": activation(config.get("activation_function", "gelu_new"))}
    options |= {"norm": layer_norm(config.get("layer_norm_epsilon", 1e-5))}
    options |= {"longest": config.get("n_positions", 1024)}
    refuse(config, "scale_attn_by_inverse_layer_idx", False)
    if not config.get("scale_attn_weights", True):
        options |= {"score": ScaledDot(1.0)}
    rows = ends("transformer.wte.weight", "transformer.ln_f", is_tied)
    rows += [Row("transformer.wpe.weight", "embedding.learned", SAME)]
    for i in range(layers):
        here, there = f"stack.{i}", f"transformer.h.{i}"
        rows += norm(f"{there}.ln_1", f"{here}.attention_norm")
        rows += norm(f"{there}.ln_2", f"{here}.forward_norm")
        three = side_by_side(3)
        rows += fused(f"{there}.attn.c_attn", f"{here}.attention", True, three, three)
        rows += linear(f"{there}.attn.c_proj", f"{here}.attention.out", change=SAME)
        rows += linear(f"{there}.mlp.c_fc", f"{here}.forward.up", change=SAME)
        rows += linear(f"{there}.mlp.c_proj", f"{here}.forward.down", change=SAME)
    copies = ("lm_head.weight",) if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "transformer.", copies)


def _windows(config: Config) -> list[dict[str, Any]]:
    """Options of neighbouring layers: which of them have a window."""
    size, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if size is None:
        return [{}]
    default = {"gemma2": 2, "gpt_oss": 2, "mistral": 1}.get(config["model_type"], 0)
    kinds = config.get("layer_types")
    if kinds is None:  # every layer, every second one, or none
        slides = [default > 0 and i % default == 0 for i in range(layers)]
    else:
        slides = [kind == "sliding_attention" for kind in kinds]
    window = {"mask": Window(size - 1, 0)}
    least = next(
        n for n in range(1, layers + 1) if layers % n == 0 and slides == slides[:n] * (layers // n)
    )
    return [dict(window) if slides[i] else {} for i in range(least)]


def llama(config: Config, names: Names) -> Family:
    """Llama 2 and 3 (Touvron et al. 2023), Mistral (Jiang et al. 2023), Qwen 2 and 3 (2025)."""
    kind, layers, heads = (
        config["model_type"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
    )
    is_tied, size = tied(config, names), head_features(config)
    bias = kind == "qwen2" or config.get("attention_bias", False)
    out, maps = bias and kind != "qwen2", config.get("mlp_bias", False)
    epsilon = config.get("rms_norm_eps", 1e-6)
    places = [*QKV * bias, *["out"] * out, *["up", "gate", "down"] * maps]
    options = {"hidden": config["intermediate_size"], "bias": places, "norm": rms(epsilon)}
    options |= {"activation": activation(config.get("hidden_act", "silu"), gated=True)}
    options |= {"positions": rotary(config), "head_features": size}
    options |= {"key_value_heads": config.get("num_key_value_heads") or heads}
    options |= {"pattern": _windows(config)}
    normalized = kind == "qwen3"
    if normalized:
        options |= {"normalize_query_key": rms(epsilon)}
    rows = ends("model.embed_tokens.weight", "model.norm", is_tied, bias=False)
    for i in range(layers):
        here, there = f"stack.{i}", f"model.layers.{i}"
        rows += norm(f"{there}.input_layernorm", f"{here}.attention_norm", bias=False)
        rows += norm(f"{there}.post_attention_layernorm", f"{here}.forward_norm", bias=False)
        rows += _projections(there, here, bias, out)
        rows += _gated(there, here, maps)
        if normalized:
            for each in ("query", "key"):
                theirs = f"{there}.self_attn.{each[0]}_norm"
                rows += norm(theirs, f"{here}.attention.{each}_norm", bias=False)
    copies = ("lm_head.weight",) if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "model.", copies)


def _projections(there: str, here: str, bias: bool, out: bool) -> list[Row]:
    rows = linear(f"{there}.self_attn.o_proj", f"{here}.attention.out", out)
    for each in QKV:
        rows += linear(f"{there}.self_attn.{each[0]}_proj", f"{here}.attention.{each}", bias)
    return rows


def _gated(there: str, here: str, bias: bool) -> list[Row]:
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    rows = []
    for ours, theirs in names.items():
        rows += linear(f"{there}.mlp.{theirs}", f"{here}.forward.{ours}", bias)
    return rows


def gemma2(config: Config, names: Names) -> Family:
    """Gemma 2. (Gemma Team 2024.)"""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    is_tied, cap = tied(config, names), config.get("attn_logit_softcapping", 50.0)
    scale = config.get("query_pre_attn_scalar", 256) ** -0.5
    options = {"hidden": config["intermediate_size"], "residual": "sandwich_norm"}
    name = config.get("hidden_activation") or "gelu_pytorch_tanh"
    options |= {"activation": activation(name, gated=True)}
    options |= {"norm": rms(config.get("rms_norm_eps", 1e-6)), "score": ScaledDot(scale)}
    options |= {"bias": [*QKV, "out"] * config.get("attention_bias", False)}
    options |= {"score_mod": None if cap is None else SoftCap(cap)}
    options |= {"positions": rotary(config), "head_features": config.get("head_dim", 256)}
    options |= {"key_value_heads": config.get("num_key_value_heads") or heads}
    final = config.get("final_logit_softcapping", 30.0)
    options |= {"embedding": {"scale": config["hidden_size"] ** 0.5, "logit_cap": final}}
    how = {"bias": False, "change": PLUS_ONE}
    rows = ends("model.embed_tokens.weight", "model.norm", is_tied, **how)
    names = {"input_layernorm": "attention_norm", "pre_feedforward_layernorm": "forward_norm"}
    names |= {"post_attention_layernorm": "after.attention"}
    names |= {"post_feedforward_layernorm": "after.forward"}
    for i in range(layers):
        here, there = f"stack.{i}", f"model.layers.{i}"
        for theirs, ours in names.items():
            rows += norm(f"{there}.{theirs}", f"{here}.{ours}", **how)
        bias = config.get("attention_bias", False)
        rows += _projections(there, here, bias, bias) + _gated(there, here, False)
    options |= {"pattern": _windows(config)}
    copies = ("lm_head.weight",) if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "model.", copies)


def gpt_oss(config: Config, names: Names) -> Family:
    """gpt-oss, its weights not quantized. (OpenAI 2025.)"""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    is_tied = tied(config, names)
    refuse(config, "swiglu_alpha", 1.702)
    experts = partial(
        Experts,
        hidden=config["intermediate_size"],
        count=config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        limit=config.get("swiglu_limit", 7.0),
    )
    bias = config.get("attention_bias", True)
    options = {"feed_forward": experts, "normalizer": Softmax(jnp.zeros(heads))}
    options |= {"norm": rms(config.get("rms_norm_eps", 1e-5)), "pattern": _windows(config)}
    options |= {"bias": [*QKV, "out"] * bias, "positions": rotary(config, base=150_000.0)}
    options |= {"head_features": head_features(config)}
    options |= {"key_value_heads": config["num_key_value_heads"]}
    rows = ends("model.embed_tokens.weight", "model.norm", is_tied, bias=False)
    for i in range(layers):
        here, there = f"stack.{i}", f"model.layers.{i}"
        rows += norm(f"{there}.input_layernorm", f"{here}.attention_norm", bias=False)
        rows += norm(f"{there}.post_attention_layernorm", f"{here}.forward_norm", bias=False)
        rows += _projections(there, here, bias, bias)
        rows += [Row(f"{there}.self_attn.sinks", f"{here}.attention.slots.normalizer.sink", SAME)]
        rows += linear(f"{there}.mlp.router", f"{here}.forward.router")
        both, forward = f"{there}.mlp.experts.gate_up_proj", f"{here}.forward"
        for end, part in (("", "kernel"), ("_bias", "bias")):
            pair = (f"{forward}.gate_{part}", f"{forward}.up_{part}")
            rows += [Row(f"{both}{end}", pair, EVEN_AND_ODD)]
            down = f"{there}.mlp.experts.down_proj{end}"
            rows += [Row(down, f"{forward}.down_{part}", SAME)]
    copies = ("lm_head.weight",) if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "model.", copies)


def gpt_neox(config: Config, names: Names) -> Family:
    """GPT-NeoX (Black et al. 2022) and Pythia."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    output = "lm_head.weight" if "lm_head.weight" in names else "embed_out.weight"  # 5, and 4
    is_tied = tied(config, names, output)
    parallel, bias = config.get("use_parallel_residual", True), config.get("attention_bias", True)
    options = {"hidden": config["intermediate_size"]}
    options |= {"residual": "parallel" if parallel else "pre_norm"}
    options |= {"activation": activation(config.get("hidden_act", "gelu"))}
    options |= {"norm": layer_norm(config.get("layer_norm_eps", 1e-5))}
    options |= {"positions": rotary(config, config.get("rotary_pct", 0.25))}
    options |= {"bias": [*([*QKV, "out"] * bias), "up", "down"]}
    rows = ends("gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm", True)
    rows += [] if is_tied else [Row(output, "embedding.output", SAME)]
    for i in range(layers):
        here, there = f"stack.{i}", f"gpt_neox.layers.{i}"
        rows += _megatron_layer(there, here, heads, "attention", bias)
    copies = ("embed_out.weight", "lm_head.weight") if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "gpt_neox.", copies)


def _megatron_layer(
    there: str, here: str, heads: int, attention: str, bias: bool = True
) -> list[Row]:
    """A layer as GPT-NeoX and BLOOM name it: query, key and value in one array, head by head."""
    rows = norm(f"{there}.input_layernorm", f"{here}.attention_norm")
    rows += norm(f"{there}.post_attention_layernorm", f"{here}.forward_norm")
    changes, both = (by_head(heads, TRANSPOSED), by_head(heads)), f"{attention}.query_key_value"
    rows += fused(f"{there}.{both}", f"{here}.attention", bias, *changes)
    rows += linear(f"{there}.{attention}.dense", f"{here}.attention.out", bias)
    rows += linear(f"{there}.mlp.dense_h_to_4h", f"{here}.forward.up")
    return rows + linear(f"{there}.mlp.dense_4h_to_h", f"{here}.forward.down")


def bloom(config: Config, names: Names) -> Family:
    """BLOOM. (BigScience 2022.)"""
    layers = config.get("n_layer") or config["num_hidden_layers"]
    heads = config.get("n_head") or config["num_attention_heads"]
    is_tied, epsilon = tied(config, names), config.get("layer_norm_epsilon", 1e-5)
    refuse(config, "apply_residual_connection_post_layernorm", False)
    options = {"positions": "alibi", "norm": layer_norm(epsilon), "activation": "gelu"}
    options |= {"embedding": {"norm": layer_norm(epsilon)}}
    rows = ends("transformer.word_embeddings.weight", "transformer.ln_f", is_tied)
    rows += norm("transformer.word_embeddings_layernorm", "embedding.norm")
    for i in range(layers):
        here, there = f"stack.{i}", f"transformer.h.{i}"
        rows += _megatron_layer(there, here, heads, "self_attention")
    copies = ("lm_head.weight",) if is_tied else ()
    return Family(built(config, layers, heads, is_tied, **options), rows, "transformer.", copies)


def mpt(config: Config, names: Names) -> Family:
    """MPT with ALiBi. (MosaicML 2023.)"""
    layers, heads, width = config["n_layers"], config["n_heads"], config["d_model"]
    is_tied = tied(config, names)
    attention = dict(config.get("attn_config") or {})
    given = attention.get("clip_qkv"), attention.get("alibi", True), attention.get("qk_ln", False)
    if given != (None, True, False):
        raise ValueError(f"config must have alibi, and no clip_qkv or qk_ln. Got {attention}")
    scale = attention.get("softmax_scale")
    options = {"norm": layer_norm(config.get("layer_norm_epsilon", 1e-5), bias=False)}
    options |= {"hidden": int(config.get("expansion_ratio", 4) * width), "bias": False}
    options |= {"activation": "gelu_exact", "score": ScaledDot(scale), "positions": "none"}
    slopes = _mpt_slopes(heads, attention.get("alibi_bias_max", 8))
    options |= {"score_mod": jax.tree.map(Fixed, Alibi(jnp.asarray(slopes)))}
    rows = ends("transformer.wte.weight", "transformer.norm_f", is_tied, bias=False)
    constants = {}
    for i in range(layers):
        here, there = f"stack.{i}", f"transformer.blocks.{i}"
        rows += norm(f"{there}.norm_1", f"{here}.attention_norm", bias=False)
        rows += norm(f"{there}.norm_2", f"{here}.forward_norm", bias=False)
        three = side_by_side(3, TRANSPOSED)
        rows += fused(f"{there}.attn.Wqkv", f"{here}.attention", False, three, three)
        rows += linear(f"{there}.attn.out_proj", f"{here}.attention.out", False)
        rows += linear(f"{there}.ffn.up_proj", f"{here}.forward.up", False)
        rows += linear(f"{there}.ffn.down_proj", f"{here}.forward.down", False)
        constants[f"{here}.attention.slots.score_mod.slope"] = slopes
    copies = ("lm_head.weight",) if is_tied else ()
    how = {"constants": constants}
    return Family(
        built(config, layers, heads, is_tied, **options), rows, "transformer.", copies, **how
    )


def _mpt_slopes(heads: int, most: float | int) -> np.ndarray:
    """MPT's order where the heads are no power of two: every second slope comes first."""
    power = 2 ** int(np.ceil(np.log2(heads)))
    slopes = np.asarray(alibi_slopes(power)) ** (most / 8)
    return slopes if power == heads else np.concatenate([slopes[1::2], slopes[::2]])[:heads]


FAMILIES = {
    "bloom": bloom,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "llama": llama,
    "mistral": llama,
    "mpt": mpt,
    "qwen2": llama,
    "qwen3": llama,
}
