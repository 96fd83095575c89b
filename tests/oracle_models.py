"""Open models in float64 NumPy, from a state dict with transformers' names and a configuration.

Each family is written out from its paper and its published code: `forward(state, config, …)` gives
logits, or the last hidden states of an encoder. It knows nothing of attn_jax.
"""

import math

import numpy as np

ERF = np.vectorize(math.erf)


def forward(state, config, *inputs):
    """The outputs of a model of this configuration."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}
    return FAMILIES[config["model_type"]](state, config, *inputs)


# Parts


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def gelu(x):
    return x * (1 + ERF(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x):
    return x / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


class Weights:
    """The arrays whose names begin alike."""

    def __init__(self, state, prefix=""):
        self.state, self.prefix = state, prefix

    def at(self, name):
        return Weights(self.state, f"{self.prefix}{name}.")

    def __getitem__(self, name):
        return self.state[self.prefix + name]

    def linear(self, name, x):
        y = x @ self[f"{name}.weight"].T
        bias = f"{self.prefix}{name}.bias"
        return y + self.state[bias] if bias in self.state else y

    def layer_norm(self, name, x, epsilon=1e-5):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * self[f"{name}.weight"]
        bias = f"{self.prefix}{name}.bias"
        return x + self.state[bias] if bias in self.state else x

    def rms_norm(self, name, x, epsilon, plus=0.0):
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
        return x * (self[f"{name}.weight"] + plus)


def heads_of(x, heads):
    """[b, t, h · d] -> [b, h, t, d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attend(q, k, v, allowed, *, scale=None, bias=0.0, cap=None, sinks=None):
    """[b, h, t, d] -> [b, t, h · e]; key heads are repeated."""
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = q @ k.swapaxes(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    scores = np.where(allowed, scores + bias, -1e300)
    if sinks is not None:
        sinks = np.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    weights = softmax(scores)[..., : k.shape[2]]
    out = (weights @ v).swapaxes(1, 2)
    return out.reshape(*out.shape[:2], -1)


def causal(t, window=None):
    i, j = np.arange(t)[:, None], np.arange(t)[None, :]
    return (j <= i) & (True if window is None else j > i - window)


def rotated(x, config, share=1.0):
    """The first features of each head [b, h, t, d], as a vector in the plane of i and i + half."""
    rope = config["rope_parameters"]
    size = int(x.shape[-1] * share)
    half, base = size // 2, rope["rope_theta"]
    rates, magnitude = base ** (-np.arange(half) / half), 1.0
    kind, factor = rope.get("rope_type", "default"), rope.get("factor")
    length = rope.get("original_max_position_embeddings")
    if kind == "linear":
        rates = rates / factor
    elif kind == "llama3":
        wavelength = 2 * math.pi / rates
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (length / wavelength - low) / (high - low)
        mixed = (1 - smooth) * rates / factor + smooth * rates
        rates = np.where(wavelength > length / low, rates / factor, mixed)
        rates = np.where(wavelength < length / high, base ** (-np.arange(half) / half), rates)
    elif kind == "yarn":
        ends = [
            half * math.log(length / (turns * 2 * math.pi)) / math.log(base)
            for turns in (rope["beta_fast"], rope["beta_slow"])
        ]
        ramp = np.clip((np.arange(half) - ends[0]) / (ends[1] - ends[0]), 0, 1)
        rates = rates * (1 - ramp) + rates / factor * ramp
        magnitude = 0.1 * math.log(factor) + 1
    angle = np.arange(x.shape[2])[:, None] * rates[None, :]
    turn = magnitude * np.exp(1j * angle)
    plane = (x[..., :half] + 1j * x[..., half:size]) * turn
    return np.concatenate([plane.real, plane.imag, x[..., size:]], axis=-1)


def alibi(heads, t, most=8):
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-most * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-most * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return np.array(slopes)[:, None, None] * (np.arange(t)[None, :] - np.arange(t)[:, None])


# Decoders


def gpt2(state, config, tokens):
    w = Weights(state, "transformer.")
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(config["n_layer"]):
        layer = w.at(f"h.{i}")

        def conv(name, x, layer=layer):
            return x @ layer[f"{name}.weight"] + layer[f"{name}.bias"]

        q, k, v = np.split(conv("attn.c_attn", layer.layer_norm("ln_1", x)), 3, axis=-1)
        q, k, v = (heads_of(each, config["n_head"]) for each in (q, k, v))
        x = x + conv("attn.c_proj", attend(q, k, v, causal(x.shape[1])))
        hidden = gelu_tanh(conv("mlp.c_fc", layer.layer_norm("ln_2", x)))
        x = x + conv("mlp.c_proj", hidden)
    return w.layer_norm("ln_f", x) @ w["wte.weight"].T


def _qkv(layer, x, config):
    own = layer.at("self_attn")
    heads = config["num_attention_heads"], *[config["num_key_value_heads"]] * 2
    return [heads_of(own.linear(f"{n}_proj", x), h) for n, h in zip("qkv", heads, strict=True)]


def _slides(config, i):
    kinds = config.get("layer_types")
    slides = kinds[i] == "sliding_attention" if kinds else config["model_type"] == "mistral"
    return config["sliding_window"] if slides else None


def llama(state, config, tokens):
    w, epsilon = Weights(state, "model."), config["rms_norm_eps"]
    x = w["embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"layers.{i}")
        q, k, v = _qkv(layer, layer.rms_norm("input_layernorm", x, epsilon), config)
        if config["model_type"] == "qwen3":
            q = layer.rms_norm("self_attn.q_norm", q, epsilon)
            k = layer.rms_norm("self_attn.k_norm", k, epsilon)
        q, k = rotated(q, config), rotated(k, config)
        heads = attend(q, k, v, causal(x.shape[1], _slides(config, i)))
        x = x + layer.linear("self_attn.o_proj", heads)
        normed, mlp = layer.rms_norm("post_attention_layernorm", x, epsilon), layer.at("mlp")
        hidden = silu(mlp.linear("gate_proj", normed)) * mlp.linear("up_proj", normed)
        x = x + mlp.linear("down_proj", hidden)
    x = w.rms_norm("norm", x, epsilon)
    return x @ state.get("lm_head.weight", w["embed_tokens.weight"]).T


def gemma2(state, config, tokens):
    w, epsilon = Weights(state, "model."), config["rms_norm_eps"]
    x = w["embed_tokens.weight"][tokens] * math.sqrt(config["hidden_size"])
    scale, cap = config["query_pre_attn_scalar"] ** -0.5, config["attn_logit_softcapping"]
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"layers.{i}")

        def norm(name, x, layer=layer):
            return layer.rms_norm(name, x, epsilon, plus=1.0)

        q, k, v = _qkv(layer, norm("input_layernorm", x), config)
        q, k = rotated(q, config), rotated(k, config)
        allowed = causal(x.shape[1], config["sliding_window"] if i % 2 == 0 else None)
        heads = attend(q, k, v, allowed, scale=scale, cap=cap)
        x = x + norm("post_attention_layernorm", layer.linear("self_attn.o_proj", heads))
        normed, mlp = norm("pre_feedforward_layernorm", x), layer.at("mlp")
        hidden = gelu_tanh(mlp.linear("gate_proj", normed)) * mlp.linear("up_proj", normed)
        x = x + norm("post_feedforward_layernorm", mlp.linear("down_proj", hidden))
    logits = w.rms_norm("norm", x, epsilon, plus=1.0) @ w["embed_tokens.weight"].T
    return config["final_logit_softcapping"] * np.tanh(logits / config["final_logit_softcapping"])


def gpt_oss(state, config, tokens):
    w, epsilon = Weights(state, "model."), config["rms_norm_eps"]
    x = w["embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"layers.{i}")
        q, k, v = _qkv(layer, layer.rms_norm("input_layernorm", x, epsilon), config)
        q, k = rotated(q, config), rotated(k, config)
        allowed = causal(x.shape[1], config["sliding_window"] if i % 2 == 0 else None)
        heads = attend(q, k, v, allowed, sinks=layer["self_attn.sinks"])
        x = x + layer.linear("self_attn.o_proj", heads)
        normed = layer.rms_norm("post_attention_layernorm", x, epsilon)
        logits, added = layer.linear("mlp.router", normed), np.zeros_like(x)
        experts = layer.at("mlp.experts")
        for place in np.ndindex(x.shape[:2]):
            best = np.argsort(-logits[place])[: config["num_experts_per_tok"]]
            for share, e in zip(softmax(logits[place][best]), best, strict=True):
                both = normed[place] @ experts["gate_up_proj"][e] + experts["gate_up_proj_bias"][e]
                gate, up = np.minimum(both[::2], 7.0), np.clip(both[1::2], -7.0, 7.0)
                hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                down = hidden @ experts["down_proj"][e] + experts["down_proj_bias"][e]
                added[place] += share * down
        x = x + added
    return w.rms_norm("norm", x, epsilon) @ state["lm_head.weight"].T


def _by_head(x, heads):
    parts = x.reshape(*x.shape[:2], heads, 3, -1)
    return [parts[:, :, :, i].swapaxes(1, 2) for i in range(3)]


def gpt_neox(state, config, tokens):
    w, heads = Weights(state, "gpt_neox."), config["num_attention_heads"]
    x = w["embed_in.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"layers.{i}")
        normed = layer.layer_norm("input_layernorm", x)
        q, k, v = _by_head(layer.linear("attention.query_key_value", normed), heads)
        q, k = (rotated(each, config, config["rotary_pct"]) for each in (q, k))
        attended = layer.linear("attention.dense", attend(q, k, v, causal(x.shape[1])))
        normed = layer.layer_norm("post_attention_layernorm", x)
        hidden = gelu(layer.linear("mlp.dense_h_to_4h", normed))
        x = x + attended + layer.linear("mlp.dense_4h_to_h", hidden)
    return w.layer_norm("final_layer_norm", x) @ state["embed_out.weight"].T


def bloom(state, config, tokens):
    w, heads = Weights(state, "transformer."), config["n_head"]
    x = w.layer_norm("word_embeddings_layernorm", w["word_embeddings.weight"][tokens])
    t = tokens.shape[1]
    for i in range(config["n_layer"]):
        layer = w.at(f"h.{i}")
        normed = layer.layer_norm("input_layernorm", x)
        q, k, v = _by_head(layer.linear("self_attention.query_key_value", normed), heads)
        attended = attend(q, k, v, causal(t), bias=alibi(heads, t))
        x = x + layer.linear("self_attention.dense", attended)
        normed = layer.layer_norm("post_attention_layernorm", x)
        hidden = gelu_tanh(layer.linear("mlp.dense_h_to_4h", normed))
        x = x + layer.linear("mlp.dense_4h_to_h", hidden)
    return w.layer_norm("ln_f", x) @ w["word_embeddings.weight"].T


def mpt(state, config, tokens):
    w, heads, t = Weights(state, "transformer."), config["n_heads"], tokens.shape[1]
    power = 2 ** math.ceil(math.log2(heads))
    slopes = np.array([2 ** (-8 * (i + 1) / power) for i in range(power)])
    slopes = np.concatenate([slopes[1::2], slopes[::2]])[:heads] if power != heads else slopes
    bias = slopes[:, None, None] * (np.arange(t)[None, :] - np.arange(t)[:, None])
    x = w["wte.weight"][tokens]
    for i in range(config["n_layers"]):
        layer = w.at(f"blocks.{i}")
        both = layer.linear("attn.Wqkv", layer.layer_norm("norm_1", x))
        q, k, v = (heads_of(each, heads) for each in np.split(both, 3, axis=-1))
        x = x + layer.linear("attn.out_proj", attend(q, k, v, causal(t), bias=bias))
        hidden = gelu(layer.linear("ffn.up_proj", layer.layer_norm("norm_2", x)))
        x = x + layer.linear("ffn.down_proj", hidden)
    return w.layer_norm("norm_f", x) @ w["wte.weight"].T


# Encoders, and encoder-decoders


def real(lengths, t):
    return (np.arange(t)[None, :] < np.asarray(lengths)[:, None])[:, None, None, :]


def bert(state, config, tokens, lengths, types):
    w, epsilon, heads = Weights(state, "bert."), 1e-12, config["num_attention_heads"]
    table = w.at("embeddings")
    x = table["word_embeddings.weight"][tokens] + table["token_type_embeddings.weight"][types]
    x = x + table["position_embeddings.weight"][: tokens.shape[1]]
    x = table.layer_norm("LayerNorm", x, epsilon)
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"encoder.layer.{i}")
        own = layer.at("attention.self")
        q, k, v = (heads_of(own.linear(n, x), heads) for n in ("query", "key", "value"))
        attended = attend(q, k, v, real(lengths, tokens.shape[1]))
        attended = layer.linear("attention.output.dense", attended)
        x = layer.layer_norm("attention.output.LayerNorm", x + attended, epsilon)
        hidden = layer.linear("output.dense", gelu(layer.linear("intermediate.dense", x)))
        x = layer.layer_norm("output.LayerNorm", x + hidden, epsilon)
    return x


def vit(state, config, pictures):
    """Pictures [b, h, w, c]."""
    w, patch, heads = Weights(state, "vit."), config["patch_size"], config["num_attention_heads"]
    kernel = w["embeddings.patch_embeddings.projection.weight"]
    count, rows = config["image_size"] // patch, []
    for y, x in np.ndindex(count, count):
        tile = pictures[:, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
        rows.append(np.einsum("bhwc,dchw->bd", tile, kernel))
    x = np.stack(rows, axis=1) + w["embeddings.patch_embeddings.projection.bias"]
    first = np.broadcast_to(w["embeddings.cls_token"], (len(x), 1, x.shape[2]))
    x = np.concatenate([first, x], axis=1) + w["embeddings.position_embeddings"]
    for i in range(config["num_hidden_layers"]):
        layer = w.at(f"encoder.layer.{i}")
        normed, own = (
            layer.layer_norm("layernorm_before", x, 1e-12),
            layer.at("attention.attention"),
        )
        q, k, v = (heads_of(own.linear(n, normed), heads) for n in ("query", "key", "value"))
        x = x + layer.linear("attention.output.dense", attend(q, k, v, True))
        hidden = gelu(
            layer.linear("intermediate.dense", layer.layer_norm("layernorm_after", x, 1e-12))
        )
        x = x + layer.linear("output.dense", hidden)
    return w.layer_norm("layernorm", x, 1e-12)


def _bucket(distance, config, both):
    """T5's bucket of j - i."""
    count, far = (
        config["relative_attention_num_buckets"],
        config["relative_attention_max_distance"],
    )
    bucket = 0
    if both:
        count //= 2
        bucket, distance = count * (distance > 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return bucket + distance
    steps = math.log(distance / exact) / math.log(far / exact) * (count - exact)
    return bucket + min(exact + int(steps), count - 1)


def t5(state, config, tokens, lengths, targets):
    heads, epsilon = config["num_heads"], config["layer_norm_epsilon"]
    gated = config["feed_forward_proj"] == "gated-gelu"

    def stack(side, tokens, allowed, memory=None, seen=None):
        w, t = Weights(state, f"{side}."), tokens.shape[1]
        table = w["block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        both = memory is None
        buckets = [[_bucket(j - i, config, both) for j in range(t)] for i in range(t)]
        bias = table[np.array(buckets)].transpose(2, 0, 1)
        x = state["shared.weight"][tokens]
        for i in range(config["num_layers" if both else "num_decoder_layers"]):
            layer = w.at(f"block.{i}.layer")
            parts = [("SelfAttention", None, allowed, bias)]
            parts += [] if both else [("EncDecAttention", memory, seen, 0.0)]
            for number, (name, rows, mask, added) in enumerate(parts):
                own = layer.at(f"{number}.{name}")
                normed = layer.rms_norm(f"{number}.layer_norm", x, epsilon)
                rows = normed if rows is None else rows
                q, k, v = (
                    heads_of(own.linear(n, each), heads)
                    for n, each in (("q", normed), ("k", rows), ("v", rows))
                )
                x = x + own.linear("o", attend(q, k, v, mask, scale=1.0, bias=added))
            last = layer.at(f"{len(parts)}")
            normed, dense = last.rms_norm("layer_norm", x, epsilon), last.at("DenseReluDense")
            if gated:
                hidden = gelu_tanh(dense.linear("wi_0", normed)) * dense.linear("wi_1", normed)
            else:
                hidden = relu(dense.linear("wi", normed))
            x = x + dense.linear("wo", hidden)
        return w.rms_norm("final_layer_norm", x, epsilon)

    seen = real(lengths, tokens.shape[1])
    x = stack("decoder", targets, causal(targets.shape[1]), stack("encoder", tokens, seen), seen)
    if "lm_head.weight" in state:
        return x @ state["lm_head.weight"].T
    return x * config["d_model"] ** -0.5 @ state["shared.weight"].T


def _post_norm_layer(layer, x, heads, allowed, act, memory=None, seen=None, pre=False):
    """A layer of BART, Marian or, with `pre`, Whisper."""
    parts = [("self_attn", None, allowed)]
    parts += [] if memory is None else [("encoder_attn", memory, seen)]
    for name, rows, mask in parts:
        own, norm = layer.at(name), f"{name}_layer_norm"
        asks = layer.layer_norm(norm, x) if pre else x
        rows = asks if rows is None else rows
        q, k, v = (
            heads_of(own.linear(f"{n}_proj", each), heads)
            for n, each in (("q", asks), ("k", rows), ("v", rows))
        )
        x = x + own.linear("out_proj", attend(q, k, v, mask))
        x = x if pre else layer.layer_norm(norm, x)
    asks = layer.layer_norm("final_layer_norm", x) if pre else x
    x = x + layer.linear("fc2", act(layer.linear("fc1", asks)))
    return x if pre else layer.layer_norm("final_layer_norm", x)


def bart(state, config, tokens, lengths, targets):
    marian, heads = config["model_type"] == "marian", config["encoder_attention_heads"]
    act = silu if config["activation_function"] == "swish" else gelu
    scale = math.sqrt(config["d_model"]) if config.get("scale_embedding") else 1.0

    def stack(side, tokens, allowed, memory=None, seen=None):
        w, (_, t) = Weights(state, f"model.{side}."), tokens.shape
        x = state["model.shared.weight"][tokens] * scale
        if marian:
            half = config["d_model"] // 2
            angle = np.arange(t)[:, None] * 10_000.0 ** (-np.arange(half) / half)[None, :]
            x = x + np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
        else:
            x = w.layer_norm("layernorm_embedding", x + w["embed_positions.weight"][2 : t + 2])
        for i in range(config[f"{side}_layers"]):
            x = _post_norm_layer(w.at(f"layers.{i}"), x, heads, allowed, act, memory, seen)
        return x

    seen = real(lengths, tokens.shape[1])
    x = stack("decoder", targets, causal(targets.shape[1]), stack("encoder", tokens, seen), seen)
    return x @ state["model.shared.weight"].T + state["final_logits_bias"]


def whisper(state, config, targets, memory):
    w = Weights(state, "model.decoder.")
    x = w["embed_tokens.weight"][targets] + w["embed_positions.weight"][: targets.shape[1]]
    for i in range(config["decoder_layers"]):
        given = w.at(f"layers.{i}"), x, config["decoder_attention_heads"], causal(x.shape[1]), gelu
        x = _post_norm_layer(*given, memory, True, pre=True)
    return w.layer_norm("layer_norm", x) @ w["embed_tokens.weight"].T


FAMILIES = {
    "bart": bart,
    "bert": bert,
    "bloom": bloom,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "llama": llama,
    "marian": bart,
    "mistral": llama,
    "mpt": mpt,
    "qwen2": llama,
    "qwen3": llama,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
}
