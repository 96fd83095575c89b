"""Families with an encoder: how each is built of our parts, and the names of its arrays."""

from typing import Any

import jax.numpy as jnp

from attn_jax.nn.interop.arrays import (
    SAME,
    TRANSPOSED,
    Change,
    Row,
    first_row,
    patches,
    without_rows,
)
from attn_jax.nn.interop.decoders import QKV, linear, norm
from attn_jax.nn.interop.settings import (
    Config,
    Family,
    Names,
    activation,
    layer_norm,
    rms,
    tied,
)
from attn_jax.nn.transformer_encoder import Patches, TransformerEncoder
from attn_jax.nn.transformer_seq2seq import TransformerDecoder, TransformerSeq2Seq
from attn_jax.score_mods import RelativeBias
from attn_jax.scores import ScaledDot

ONE_EXAMPLE = Change(lambda array: array[0], lambda array: array[None])


def bert(config: Config, names: Names) -> Family:
    """BERT, without a head. (Devlin et al. 2019.)"""
    del names
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    made = layer_norm(config.get("layer_norm_eps", 1e-12))
    options = {"hidden": config["intermediate_size"], "residual": "post_norm", "norm": made}
    options |= {"activation": activation(config.get("hidden_act", "gelu"))}
    options |= {"longest": config.get("max_position_embeddings", 512)}
    types = config.get("type_vocab_size", 2)
    options |= {"embedding": {"scale": 1.0, "norm": made, "types": types}}
    sizes = config["vocab_size"], config["hidden_size"], heads, layers
    rows = [Row("bert.embeddings.word_embeddings.weight", "embedding.tokens", SAME)]
    rows += [Row("bert.embeddings.position_embeddings.weight", "embedding.learned", SAME)]
    rows += [Row("bert.embeddings.token_type_embeddings.weight", "embedding.types", SAME)]
    rows += norm("bert.embeddings.LayerNorm", "embedding.norm")
    for i in range(layers):
        here, there = f"stack.{i}", f"bert.encoder.layer.{i}"
        for each in QKV:
            rows += linear(f"{there}.attention.self.{each}", f"{here}.attention.{each}")
        rows += linear(f"{there}.attention.output.dense", f"{here}.attention.out")
        rows += norm(f"{there}.attention.output.LayerNorm", f"{here}.attention_norm")
        rows += linear(f"{there}.intermediate.dense", f"{here}.forward.up")
        rows += linear(f"{there}.output.dense", f"{here}.forward.down")
        rows += norm(f"{there}.output.LayerNorm", f"{here}.forward_norm")
    return Family(
        lambda rngs: TransformerEncoder(*sizes, rngs=rngs, **options),
        rows,
        "bert.",
        copies=("bert.embeddings.position_ids",),
        heads=("bert.pooler.", "cls.", "classifier.", "qa_outputs."),
    )


def vit(config: Config, names: Names) -> Family:
    """The vision Transformer, without a head. (Dosovitskiy et al. 2021.)"""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    width, patch = config["hidden_size"], config.get("patch_size", 16)
    size, channels = config.get("image_size", 224), config.get("num_channels", 3)
    bias = config.get("qkv_bias", True)
    options = {"hidden": config["intermediate_size"]}
    options |= {"norm": layer_norm(config.get("layer_norm_eps", 1e-12))}
    options |= {"bias": [*QKV * bias, "out", "up", "down"]}
    options |= {"activation": activation(config.get("hidden_act", "gelu"))}

    def build(rngs: Any) -> TransformerEncoder:
        stem = Patches(size, patch, width, channels=channels, rngs=rngs)
        return TransformerEncoder(None, width, heads, layers, stem=stem, rngs=rngs, **options)

    rows = [Row("vit.embeddings.cls_token", "stem.first", first_row())]
    rows += [Row("vit.embeddings.position_embeddings", "stem.learned", ONE_EXAMPLE)]
    change = patches(channels, patch)
    rows += linear("vit.embeddings.patch_embeddings.projection", "stem.map", change=change)
    rows += norm("vit.layernorm", "stack.norm")
    new = any(name.endswith("layers.0.attention.q_proj.weight") for name in names)
    layer = "layers" if new else "encoder.layer"  # names of transformers 5, and of 4
    own = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    own = own if new else {each: f"attention.{each}" for each in QKV}
    out, up, down = "attention.o_proj", "mlp.fc1", "mlp.fc2"
    if not new:
        out, up, down = "attention.output.dense", "intermediate.dense", "output.dense"
    for i in range(layers):
        here, there = f"stack.{i}", f"vit.{layer}.{i}"
        for each in QKV:
            rows += linear(f"{there}.attention.{own[each]}", f"{here}.attention.{each}", bias)
        rows += linear(f"{there}.{out}", f"{here}.attention.out")
        rows += norm(f"{there}.layernorm_before", f"{here}.attention_norm")
        rows += norm(f"{there}.layernorm_after", f"{here}.forward_norm")
        rows += linear(f"{there}.{up}", f"{here}.forward.up")
        rows += linear(f"{there}.{down}", f"{here}.forward.down")
    heads_of = ("classifier.", "vit.pooler.", "vit.embeddings.mask_token")
    return Family(build, rows, "vit.", heads=heads_of)


def t5(config: Config, names: Names) -> Family:
    """T5 and its version 1.1. (Raffel et al. 2020.)"""
    layers, heads, width = config["num_layers"], config["num_heads"], config["d_model"]
    below = config.get("num_decoder_layers") or layers
    is_tied = tied(config, names)
    name = config.get("feed_forward_proj", "relu").split("-")
    gated = name[0] == "gated"
    act = "gelu_new" if config.get("feed_forward_proj") == "gated-gelu" else name[-1]
    buckets = config.get("relative_attention_num_buckets", 32)
    far = config.get("relative_attention_max_distance", 128)

    def relative(both: bool) -> RelativeBias:
        return RelativeBias(jnp.zeros((heads, buckets)), bidirectional=both, max_distance=far)

    options = {"hidden": config["d_ff"], "head_features": config["d_kv"], "bias": False}
    options |= {"score": ScaledDot(1.0), "norm": rms(config.get("layer_norm_epsilon", 1e-6))}
    options |= {"activation": activation(act, gated), "positions": "none", "shared": True}
    scaled = width**-0.5 if config.get("scale_decoder_outputs", is_tied) else 1.0
    embedding = {"scale": 1.0, "tied": is_tied, "output_bias": False, "output_scale": scaled}
    options |= {"embedding": embedding, "encoder": {"score_mod": relative(True)}}
    options |= {"decoder": {"score_mod": relative(False), "layers": below}}
    sizes = config["vocab_size"], config["vocab_size"], width, heads, layers
    rows = [Row("shared.weight", "decoder.embedding.tokens", SAME)]
    if not is_tied:
        rows += [Row("lm_head.weight", "decoder.embedding.output", SAME)]
    for side, stack, count in (("encoder", "encoder", layers), ("decoder", "decoder.stack", below)):
        rows += norm(f"{side}.final_layer_norm", f"{stack}.norm", bias=False)
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        for i in range(count):
            here, there = f"{stack}.{i}", f"{side}.block.{i}.layer"
            rows += [Row(table, f"{here}.attention.slots.score_mod.table", TRANSPOSED)]
            parts = [("SelfAttention", "attention")]
            parts += [("EncDecAttention", "cross")] * (side == "decoder")
            for number, (theirs, ours) in enumerate(parts):
                for each in (*QKV, "out"):
                    letter = {"out": "o"}.get(each, each[0])
                    name = f"{there}.{number}.{theirs}.{letter}"
                    rows += linear(name, f"{here}.{ours}.{each}", bias=False)
                rows += norm(f"{there}.{number}.layer_norm", f"{here}.{ours}_norm", bias=False)
            last = f"{there}.{len(parts)}"
            maps = {"wi_0": "gate", "wi_1": "up"} if gated else {"wi": "up"}
            for theirs, ours in (maps | {"wo": "down"}).items():
                name = f"{last}.DenseReluDense.{theirs}"
                rows += linear(name, f"{here}.forward.{ours}", bias=False)
            rows += norm(f"{last}.layer_norm", f"{here}.forward_norm", bias=False)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    copies += ("lm_head.weight",) if is_tied else ()
    return Family(lambda rngs: TransformerSeq2Seq(*sizes, rngs=rngs, **options), rows, "", copies)


def _attention(there: str, here: str, without: tuple[str, ...] = ()) -> list[Row]:
    """A layer's attention as BART, Marian and Whisper name it."""
    rows = linear(f"{there}.out_proj", f"{here}.out")
    for each in QKV:
        rows += linear(f"{there}.{each[0]}_proj", f"{here}.{each}", each not in without)
    return rows


def _layers(there: str, here: str, count: int, crosses: bool, without: tuple = ()) -> list[Row]:
    """A stack as BART, Marian and Whisper name it."""
    rows = []
    for i in range(count):
        one, other = f"{there}.layers.{i}", f"{here}.{i}"
        rows += _attention(f"{one}.self_attn", f"{other}.attention", without)
        rows += norm(f"{one}.self_attn_layer_norm", f"{other}.attention_norm")
        if crosses:
            rows += _attention(f"{one}.encoder_attn", f"{other}.cross", without)
            rows += norm(f"{one}.encoder_attn_layer_norm", f"{other}.cross_norm")
        rows += linear(f"{one}.fc1", f"{other}.forward.up")
        rows += linear(f"{one}.fc2", f"{other}.forward.down")
        rows += norm(f"{one}.final_layer_norm", f"{other}.forward_norm")
    return rows


def bart(config: Config, names: Names) -> Family:
    """BART (Lewis et al. 2020) and Marian (Junczys-Dowmunt et al. 2018)."""
    del names
    marian = config["model_type"] == "marian"
    layers, below = config["encoder_layers"], config["decoder_layers"]
    heads, width, vocabulary = (
        config["encoder_attention_heads"],
        config["d_model"],
        config["vocab_size"],
    )
    alike = (config["encoder_attention_heads"], config["encoder_ffn_dim"]) == (
        config["decoder_attention_heads"],
        config["decoder_ffn_dim"],
    )
    shares = config.get("share_encoder_decoder_embeddings", True)
    if not (alike and shares):
        raise ValueError(
            "config must have an encoder and a decoder of the same heads, ffn_dim and embeddings"
        )
    made = layer_norm(1e-5)
    embedding = {"scale": width**0.5 if config.get("scale_embedding", marian) else 1.0}
    embedding |= {} if marian else {"norm": made}
    options = {"hidden": config["encoder_ffn_dim"], "residual": "post_norm", "norm": made}
    options |= {"activation": activation(config.get("activation_function", "gelu"))}
    options |= {"positions": "sinusoidal" if marian else "learned", "shared": True}
    options |= {"longest": config.get("max_position_embeddings", 1024), "embedding": embedding}
    options |= {"decoder": {"layers": below}}
    rows = [Row("model.shared.weight", "decoder.embedding.tokens", SAME)]
    rows += [Row("final_logits_bias", "decoder.embedding.bias", ONE_EXAMPLE, optional=True)]
    copies = ["lm_head.weight"]
    for side, ours in (("encoder", ""), ("decoder", "decoder.")):
        copies += [f"model.{side}.embed_tokens.weight"]
        places = f"model.{side}.embed_positions.weight"
        if marian:
            copies += [places]
        else:
            rows += [Row(places, f"{ours}embedding.learned", without_rows(2))]
            rows += norm(f"model.{side}.layernorm_embedding", f"{ours}embedding.norm")
    rows += _layers("model.encoder", "encoder", layers, False)
    rows += _layers("model.decoder", "decoder.stack", below, True)
    sizes = vocabulary, vocabulary, width, heads, layers
    build = lambda rngs: TransformerSeq2Seq(*sizes, rngs=rngs, **options)  # noqa: E731
    constants = {"decoder.embedding.bias": jnp.zeros(vocabulary)}
    return Family(build, rows, "model.", tuple(copies), constants=constants)


def whisper(config: Config, names: Names) -> Family:
    """Whisper's decoder, of what an encoder gives it. (Radford et al. 2022.)"""
    del names
    layers, heads, width = (
        config["decoder_layers"],
        config["decoder_attention_heads"],
        config["d_model"],
    )
    options = {"hidden": config["decoder_ffn_dim"], "norm": layer_norm(1e-5)}
    options |= {"activation": activation(config.get("activation_function", "gelu"))}
    options |= {"bias": ["query", "value", "out", "up", "down"], "positions": "learned"}
    options |= {"longest": config.get("max_target_positions", 448)}
    options |= {"embedding": {"scale": 1.0, "output_bias": False}}  # whatever scale_embedding says
    rows = [Row("model.decoder.embed_tokens.weight", "embedding.tokens", SAME)]
    rows += [Row("model.decoder.embed_positions.weight", "embedding.learned", SAME)]
    rows += norm("model.decoder.layer_norm", "stack.norm")
    rows += _layers("model.decoder", "stack", layers, True, ("key",))
    sizes = config["vocab_size"], width, heads, layers
    build = lambda rngs: TransformerDecoder(*sizes, rngs=rngs, **options)  # noqa: E731
    return Family(build, rows, "model.", ("proj_out.weight",), ("model.encoder.",))


FAMILIES = {"bart": bart, "bert": bert, "marian": bart, "t5": t5, "vit": vit, "whisper": whisper}
