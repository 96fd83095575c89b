"""How fast open models' families run here, with weights of their own, beside transformers' PyTorch.

Small models of each family with random weights: all logits at once, the gradient of their mean
square in all weights, a prompt into an empty cache, and one more token from it. Where transformers
is installed (`pip install '.[peers]'`) its model of the same weights gives logits that agree before
anything is timed, and takes turns with ours. Float32, one text.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.nn import interop
from experiments.benchmark import OpenModels
from experiments.benchmark.timing import interleaved
from experiments.harness import tables
from experiments.harness.errors import UserError
from experiments.harness.runs import start as start_run

AGREE = 1e-3  # largest difference of logits over the largest logit
Calls = dict[str, Callable[[], Any]]


def configurations(options: OpenModels) -> dict[str, dict[str, Any]]:
    """Return a configuration of each family, all of one size."""
    width, layers, heads = options.features, options.layers, options.heads
    wide = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    grouped = {**wide, "num_key_value_heads": heads // 2, "intermediate_size": 3 * width}
    grouped |= {"head_dim": width // heads, "sliding_window": options.tokens // 4}
    grouped |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    neox = {**wide, "intermediate_size": 4 * width, "rotary_pct": 0.25}
    neox |= {"rope_parameters": {**grouped["rope_parameters"], "partial_rotary_factor": 0.25}}
    longest = 2 * options.tokens
    short = {"n_layer": layers, "n_head": heads}
    each = {
        "gpt2": {"n_embd": width, "n_positions": longest, **short},
        "llama": grouped,
        "mistral": grouped,
        "qwen3": grouped,
        "gemma2": {**grouped, "query_pre_attn_scalar": width // heads},
        "gpt_neox": {**neox, "max_position_embeddings": longest},
        "bloom": {"hidden_size": width, **short},
        "mpt": {"d_model": width, "n_layers": layers, "n_heads": heads, "max_seq_len": longest},
    }
    both = {"vocab_size": options.vocabulary, "tie_word_embeddings": True}
    return {name: {"model_type": name, **both, **config} for name, config in each.items()}


CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "bloom": "BloomForCausalLM",
    "mpt": "MptForCausalLM",
}


def run(options: OpenModels) -> None:
    """Measure each family, print and write its rows."""
    output = start_run("benchmark-open-models", options, options.output)
    rows: list[dict[str, Any]] = []
    peer = importlib.util.find_spec("transformers") and importlib.util.find_spec("torch")
    if not peer:
        print("transformers and PyTorch are not installed: ours alone (pip install '.[peers]')")
    shape = (1, options.tokens + 1)
    tokens = np.random.default_rng(0).integers(1, options.vocabulary, shape)
    families = list(configurations(options).items())
    for name, config in families[:2] if options.smoke else families:
        theirs = _peer(name, config) if peer else None
        if theirs is None:
            ours: Any = interop.FAMILIES[name](config, ()).build(nnx.Rngs(0))
        else:
            ours = interop.from_torch(theirs, dtype=jnp.float32)
        calls = {"attn_jax": _ours(ours, tokens)}
        if theirs is not None:
            calls["PyTorch"] = _theirs(theirs, tokens)
            one, other = (np.asarray(each["forward"]()) for each in calls.values())
            if np.abs(one - other).max() > AGREE * np.abs(other).max():
                raise UserError(f"{name}: our logits and transformers' differ.")
        row: dict[str, Any] = {"family": name}
        for what in calls["attn_jax"]:
            taken = interleaved([each[what] for each in calls.values()], options.seconds)
            medians = np.median(taken, axis=1)
            row[f"{what}\nms"] = 1e3 * medians[0]
            if theirs is not None:
                row[f"{what}\nPyTorch's"] = medians[1] / medians[0]
        rows.append(row)
        output.write_metrics({"rows": rows})  # what is done stays
    tables.print_table(rows)


def _ours(model: Any, tokens: np.ndarray) -> Calls:
    """Return what is timed, compiled."""
    graphdef, state = nnx.split(model)
    prompt, token = jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, -1])
    unrolled, parameters = nnx.split(model.unrolled())

    def logits(state, tokens):
        return nnx.merge(graphdef, state)(tokens)

    def loss(state, tokens):
        return jnp.mean(logits(state, tokens) ** 2)

    def prefill(state, tokens):
        return nnx.merge(graphdef, state).prefill(tokens, longest=2)

    def step(parameters, token, cache):
        return nnx.merge(unrolled, parameters).step(token, cache)[:2]

    step = jax.jit(step)
    forward, gradient, prefill = map(jax.jit, (logits, jax.grad(loss), prefill))
    cache = prefill(state, jnp.asarray(tokens))
    calls = {
        "forward": lambda: forward(state, prompt),
        "gradient": lambda: gradient(state, prompt),
        "prefill": lambda: prefill(state, jnp.asarray(tokens)),
        "token": lambda: step(parameters, token, cache),
    }
    for call in calls.values():
        jax.block_until_ready(call())  # compiles
    return {name: lambda call=call: jax.block_until_ready(call()) for name, call in calls.items()}


def _peer(name: str, config: dict[str, Any]) -> Any:
    import torch
    import transformers

    kind = getattr(transformers, CLASSES[name])
    torch.manual_seed(0)
    settings = kind.config_class(
        **{key: value for key, value in config.items() if key != "model_type"}
    )
    return kind(settings).eval()


def _theirs(model: Any, tokens: np.ndarray) -> Calls:
    import torch

    prompt, token = torch.tensor(tokens[:, :-1]), torch.tensor(tokens[:, -1:])

    def gradient() -> None:
        model.zero_grad(set_to_none=True)
        (model(prompt, use_cache=False).logits ** 2).mean().backward()

    @torch.no_grad()
    def forward() -> Any:
        return model(prompt, use_cache=False).logits

    @torch.no_grad()
    def prefill() -> Any:
        return model(prompt, use_cache=True, logits_to_keep=1).past_key_values

    full, slides = prefill(), getattr(model.config, "sliding_window", None)

    @torch.no_grad()
    def step() -> Any:
        logits = model(token, past_key_values=full, use_cache=True).logits
        if not slides:  # what a window has dropped does not come back: there it grows by a token
            full.crop(-1)
        return logits

    return {"forward": forward, "gradient": gradient, "prefill": prefill, "token": step}
