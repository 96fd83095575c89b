"""Open models' weights: the same numbers as their published forward passes, and back again."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import decoding
from attn_jax.nn import Encoded, LanguageModel, interop
from tests import oracle_models
from tests.tolerance import assert_close

ROPE = {"rope_type": "default", "rope_theta": 100.0}
WIDE = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**WIDE, "intermediate_size": 10, "num_key_value_heads": 2, "vocab_size": 13}
LLAMA |= {"rms_norm_eps": 1e-6, "rope_parameters": ROPE, "head_dim": 4}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.5}
YARN |= {"original_max_position_embeddings": 32, "truncate": False}
SLIDING = ["sliding_attention", "full_attention"]
SEQ2SEQ = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "vocab_size": 13}
SEQ2SEQ |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
SEQ2SEQ |= {f"{side}_ffn_dim": 10 for side in ("encoder", "decoder")}
T5 = {"model_type": "t5", "d_model": 8, "d_kv": 3, "d_ff": 10, "num_layers": 1, "num_heads": 2}
T5 |= {"num_decoder_layers": 2, "vocab_size": 13, "layer_norm_epsilon": 1e-6}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}

CONFIGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 13}
    | {"n_positions": 12},
    "llama": {**LLAMA, "model_type": "llama", "tie_word_embeddings": False},
    "llama 3": {**LLAMA, "model_type": "llama", "rope_parameters": LLAMA3, "attention_bias": True}
    | {"mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 3},
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3"},
    "gemma2": {**LLAMA, "model_type": "gemma2", "sliding_window": 3, "tie_word_embeddings": True}
    | {"query_pre_attn_scalar": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    | {"hidden_activation": "gelu_pytorch_tanh"},
    "gpt_oss": {**LLAMA, "model_type": "gpt_oss", "sliding_window": 3, "num_local_experts": 4}
    | {"num_experts_per_tok": 2, "rope_parameters": YARN, "layer_types": SLIDING}
    | {"tie_word_embeddings": False},
    "gpt_neox": {**WIDE, "model_type": "gpt_neox", "hidden_size": 32, "intermediate_size": 10}
    | {"vocab_size": 13, "rotary_pct": 0.25, "rope_parameters": ROPE}
    | {"tie_word_embeddings": False},
    "bloom": {
        "model_type": "bloom",
        "hidden_size": 12,
        "n_layer": 2,
        "n_head": 3,
        "vocab_size": 13,
    },
    "mpt": {"model_type": "mpt", "d_model": 12, "n_layers": 2, "n_heads": 3, "vocab_size": 13},
    "bert": {**WIDE, "model_type": "bert", "intermediate_size": 10, "vocab_size": 13},
    "vit": {**WIDE, "model_type": "vit", "intermediate_size": 10, "image_size": 8, "patch_size": 4},
    "t5": {**T5, "feed_forward_proj": "relu", "tie_word_embeddings": True},
    "t5 1.1": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    | {"scale_decoder_outputs": False},
    "bart": {**SEQ2SEQ, "model_type": "bart", "activation_function": "gelu"},
    "marian": {**SEQ2SEQ, "model_type": "marian", "activation_function": "swish"}
    | {"scale_embedding": True},
    "whisper": {**SEQ2SEQ, "model_type": "whisper", "max_target_positions": 12},
}
DECODERS = [name for name in CONFIGS if CONFIGS[name]["model_type"] in interop.decoders.FAMILIES]
RNG = np.random.default_rng(0)
TOKENS, TARGETS = RNG.integers(0, 13, (2, 9)), RNG.integers(0, 13, (2, 7))
TYPES, LENGTHS = RNG.integers(0, 2, (2, 9)), np.array([9, 6])
PICTURES, MEMORY = RNG.normal(size=(2, 8, 8, 3)), RNG.normal(size=(2, 5, 8))


def random_state(name):
    """A state dict of this configuration, weights large enough for attention that is not flat."""
    config, rng = CONFIGS[name], np.random.default_rng(1)
    family = interop.FAMILIES[config["model_type"]](config, ())
    graphdef, state = nnx.split(family.build(nnx.Rngs(0)))
    drawn = jax.tree.map(lambda array: 0.7 * rng.normal(size=array.shape), state)
    model = nnx.merge(graphdef, drawn)
    model.torch_config, model.torch_names = json.dumps(config), ()
    return interop.to_torch(model)


def inputs_of(name):
    kind = CONFIGS[name]["model_type"]
    if kind in interop.decoders.FAMILIES:
        return (TOKENS,)
    several = {"bert": (TOKENS, LENGTHS, TYPES), "vit": (PICTURES,), "whisper": (TARGETS, MEMORY)}
    return several.get(kind, (TOKENS, LENGTHS, TARGETS))


def called(model, kind, *inputs):
    if kind == "bert":
        return model(inputs[0], lengths=inputs[1], types=inputs[2])
    if kind == "whisper":
        memory = jnp.asarray(inputs[1])
        return model(inputs[0], Encoded(memory, jnp.full(2, memory.shape[1]), memory[:, 0]))
    return model(*inputs)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_is_its_published_forward_pass_and_comes_back(name):
    config, state = CONFIGS[name], random_state(name)
    model, inputs = interop.from_torch(state, config), inputs_of(name)
    expected = oracle_models.forward(state, config, *inputs)
    got = called(model, config["model_type"], *inputs)
    if name == "bert":  # what padding becomes is nobody's matter
        inside = np.arange(9)[None, :] < LENGTHS[:, None]
        got, expected = np.asarray(got)[inside], expected[inside]
    assert_close(got, expected)
    again = interop.to_torch(model)
    assert again.keys() == state.keys()
    for key, array in state.items():
        if "embed_positions" in key and name == "bart":  # two rows that are never looked up
            array = np.concatenate([np.zeros_like(array[:2]), array[2:]])
        np.testing.assert_allclose(again[key], array, rtol=1e-15)


def test_a_window_that_is_off_by_one_differs():
    state = random_state("mistral")
    model = interop.from_torch(state, {**CONFIGS["mistral"], "sliding_window": 4})
    expected = oracle_models.forward(state, CONFIGS["mistral"], TOKENS)
    assert np.abs(np.asarray(model(TOKENS)) - expected).max() > 1e-3


PADDED = ["gpt2", "llama 3", "mistral", "gemma2", "gpt_oss", "bloom", "mpt"]


@pytest.mark.parametrize("name", PADDED)
def test_prompts_of_several_lengths_decode_as_each_alone(name):
    """Padded before or behind, at once or token by token from a cache: as without padding."""
    model = interop.from_torch(random_state(name), CONFIGS[name])
    lengths, longest = [6, 4], 5
    texts = [TOKENS[0, :6], TOKENS[1, :4]]
    before, behind = np.zeros((2, 6), int), np.full((2, 6), 12)
    for row, text in enumerate(texts):
        before[row, 6 - len(text) :] = behind[row, : len(text)] = text
    padding = np.array([0, 2])
    alone = [np.asarray(model(text[None]))[0] for text in texts]
    for got, first in (model(before, padding=padding), [0, 2]), (model(behind), [0, 0]):
        for row, (logits, start) in enumerate(zip(alone, first, strict=True)):
            assert_close(np.asarray(got)[row, start : start + len(logits)], logits)

    @jax.jit
    def greedy(model, start, **how):
        step, cache = model.begin(before if "padding" in how else behind, longest=longest, **how)
        return decoding.greedy(step, cache, start=start, end=-1 % 13, max_length=longest).tokens

    last = jnp.array([text[-1] for text in texts])
    graphdef, state = nnx.split(model)
    decoded = [
        np.asarray(greedy(nnx.merge(graphdef, state), last, padding=padding)),
        np.asarray(greedy(nnx.merge(graphdef, state), last, lengths=np.array(lengths))),
    ]
    np.testing.assert_array_equal(*decoded)
    for row, text in enumerate(texts):
        written = list(text)
        for token in decoded[0][row]:
            logits = oracle_models.forward(
                interop.to_torch(model), CONFIGS[name], np.array([written])
            )[0, -1]
            assert logits[token] >= logits.max() - 1e-9
            if token == 12:
                break
            written.append(token)


def test_a_cache_of_windows_holds_what_they_look_back_to():
    model = interop.from_torch(random_state("gemma2"), CONFIGS["gemma2"])
    cache = model.cache(2, 9)
    assert [each.key.shape[2] for each in cache] == [2, 9]
    logits, cache = model.extend(TOKENS[:, :4], cache)
    others = []
    for at in range(4, 9):
        new, cache = model.extend(TOKENS[:, at : at + 1], cache)
        others.append(new)
    assert_close(jnp.concatenate([logits, *others], axis=1), model(TOKENS))


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_an_unrolled_model_goes_out_as_well(name):
    state = random_state(name)
    again = interop.to_torch(interop.from_torch(state, CONFIGS[name]).unrolled())
    assert again.keys() == state.keys()
    for key, array in state.items():
        np.testing.assert_allclose(again[key], array, rtol=1e-15)


# Bad input


def test_what_is_missing_left_over_or_of_another_size_is_named():
    state, config = random_state("llama"), CONFIGS["llama"]
    name = "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        (
            {key: array for key, array in state.items() if key != name},
            f"1 more weights. Got {name}",
        ),
        ({**state, "model.layers.2.x": state[name]}, r"no other weights .* Got model\.layers\.2"),
        ({**state, name: state[name][:3]}, r"stack.1.forward.up.kernel of shape \(12, 10\)"),
    ):
        with pytest.raises(ValueError, match=message):
            interop.from_torch(changed, config)
    with pytest.raises(ValueError, match=r"config must have a model_type of \['bart', "):
        interop.from_torch(state, {"model_type": "gpt5"})
    with pytest.raises(ValueError, match="config must have 'intermediate_size', as llama has"):
        interop.from_torch(
            state, {key: value for key, value in config.items() if key != "intermediate_size"}
        )
    with pytest.raises(ValueError, match=r"rope_type of .* Got 'longrope'"):
        interop.from_torch(state, {**config, "rope_parameters": {"rope_type": "longrope"}})
    for name, setting in (
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt_oss", {"swiglu_alpha": 1.0}),
        ("bloom", {"apply_residual_connection_post_layernorm": True}),
        ("mpt", {"attn_config": {"clip_qkv": 6.0}}),
    ):
        with pytest.raises(ValueError, match=r"^config must have "):
            interop.from_torch(random_state(name), CONFIGS[name] | setting)
    with pytest.raises(ValueError, match="config must be given with a state dict"):
        interop.from_torch(state)
    with pytest.raises(ValueError, match="source must be a folder, a model of transformers"):
        interop.from_torch(3)
    with pytest.raises(ValueError, match="module must be one that from_torch made"):
        interop.to_torch(LanguageModel(5, 4, 2, 1, rngs=nnx.Rngs(0)))


def test_a_folder_is_read_and_a_damaged_file_is_named(tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(ValueError, match=r"source must be a folder with a config.json"):
        interop.from_torch(tmp_path)
    state, config = random_state("gpt2"), CONFIGS["gpt2"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"source must hold \*.safetensors files"):
        interop.from_torch(tmp_path)
    names = sorted(state)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: state[name] for name in part}, tmp_path / f"{number}.safetensors")
    model = interop.from_torch(tmp_path)
    assert_close(model(TOKENS), interop.from_torch(state, config)(TOKENS))
    half = interop.from_torch(tmp_path, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half))} == {jnp.dtype("bfloat16")}
    whole = (tmp_path / "1.safetensors").read_bytes()
    (tmp_path / "1.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"1.safetensors is damaged, or no safetensors file"):
        interop.from_torch(tmp_path)


# Beside the models of transformers, where these are installed


@pytest.fixture(scope="module")
def peers():
    reason = "transformers and PyTorch are optional: pip install '.[peers]'"
    torch = pytest.importorskip("torch", reason=reason)
    return SimpleNamespace(torch=torch, models=pytest.importorskip("transformers", reason=reason))


PEERS = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "llama 3": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "bloom": "BloomForCausalLM",
    "mpt": "MptForCausalLM",
}


@pytest.mark.parametrize("name", PEERS)
def test_logits_and_gradients_are_those_of_transformers(name, peers):
    torch, config = peers.torch, CONFIGS[name] | {"pad_token_id": None}  # whose row does not learn
    kind = getattr(peers.models, PEERS[name])
    made = kind.config_class(**config)
    made._attn_implementation = "eager"
    peer = kind(made).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    model, tokens = interop.from_torch(peer), torch.tensor(TOKENS)
    logits = peer(tokens, use_cache=False).logits
    factor = np.random.default_rng(2).normal(size=logits.shape)
    (logits * torch.tensor(factor)).sum().backward()
    close = 1e-12 if name == "gpt2" else 2e-5  # the others' norms or softmax round to float32

    def assert_alike(got, expected):
        scale = max(1.0, np.abs(expected).max())
        assert np.abs(np.asarray(got) - expected).max() <= close * scale

    assert_alike(model(TOKENS), logits.detach().numpy())
    gradient = nnx.grad(lambda model: jnp.sum(model(TOKENS) * factor))(model)
    graphdef, _ = nnx.split(model)
    ours = interop.to_torch(nnx.merge(graphdef, _filled(model, gradient)))
    for key, parameter in peer.named_parameters():
        if key in ours:
            plus = key.endswith("norm.weight") and name == "gemma2"
            assert_alike(ours[key] + plus, parameter.grad.numpy())


def _filled(model, gradient):
    """The gradient in the place of the parameters; variables that have none are 0."""
    state = nnx.state(model)
    zeros = jax.tree.map(jnp.zeros_like, state)
    flat = nnx.to_flat_state(zeros)
    found = dict(nnx.to_flat_state(gradient))
    return nnx.from_flat_state({path: found.get(path, zero) for path, zero in flat})
