"""The same language model from PyTorch's own Transformer layers, with the same weights.

For `language-model speed`: `nn.TransformerEncoder` with a causal mask, norms first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from flax import nnx
from torch import nn
from torch.nn import functional

from attn_jax.nn import LanguageModel
from experiments.benchmark.models.flax_language_model import EPSILON


class TorchLanguageModel(nn.Module):
    """A decoder-only Transformer, as PyTorch users write it."""

    def __init__(self, vocabulary: int, features: int, heads: int, layers: int, longest: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, features)
        self.positions = nn.Embedding(longest, features)
        how = {"dropout": 0.0, "layer_norm_eps": EPSILON, "batch_first": True, "norm_first": True}
        how["activation"] = partial(functional.gelu, approximate="tanh")  # JAX's default
        layer = nn.TransformerEncoderLayer(features, heads, 4 * features, **how)
        norm = nn.LayerNorm(features, EPSILON)
        self.stack = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each next token."""
        length = tokens.shape[1]
        positions = self.positions(torch.arange(length))
        outputs = self.tokens(tokens) * self.tokens.embedding_dim**0.5 + positions
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        outputs = self.stack(outputs, mask=mask, is_causal=True)
        return functional.linear(outputs, self.tokens.weight, self.bias)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of each token but the first, in nats."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def like(model: LanguageModel) -> TorchLanguageModel:
    """Return PyTorch's model with the weights of ours."""
    embedding, blocks = model.embedding, model.stack.blocks
    sizes = (*embedding.tokens.shape, blocks.attention.heads, model.stack.count)
    torchs = TorchLanguageModel(*sizes, embedding.learned.shape[0])
    named = {
        "self_attn.out_proj": blocks.attention.out,
        "linear1": blocks.forward.up,
        "linear2": blocks.forward.down,
        "norm1": blocks.attention_norm,
        "norm2": blocks.forward_norm,
    }
    projections = (blocks.attention.query, blocks.attention.key, blocks.attention.value)
    weights = {
        "tokens.weight": embedding.tokens[...],
        "positions.weight": embedding.learned[...],
        "bias": embedding.bias[...],
        **weights_of("stack.norm", model.stack.norm, ...),
    }
    for layer in range(model.stack.count):
        at = f"stack.layers.{layer}"
        for name, ours in named.items():
            weights |= weights_of(f"{at}.{name}", ours, layer)
        each = [weights_of("", projection, layer) for projection in projections]
        for kind in ("weight", "bias"):
            joined = np.concatenate([one[f".{kind}"] for one in each])
            weights[f"{at}.self_attn.in_proj_{kind}"] = joined
    torchs.load_state_dict({name: torch.tensor(np.array(each)) for name, each in weights.items()})
    return torchs


def weights_of(name: str, ours: nnx.Module, layer: Any) -> dict[str, np.ndarray]:
    """Return one layer's weights by PyTorch's names: of a linear map, transposed, or a norm."""
    weight = ours.kernel if hasattr(ours, "kernel") else ours.scale
    return {
        f"{name}.weight": np.asarray(weight[...][layer]).T,
        f"{name}.bias": np.asarray(ours.bias[...][layer]),
    }


def training(
    model: TorchLanguageModel, tokens: np.ndarray, learning_rate: float, clip_norm: float
) -> Callable[[], float]:
    """Return a call that does one more step of training on the same batch; it returns the loss."""
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, fused=True)
    batch = torch.tensor(tokens).long()

    def call() -> float:
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return loss.item()

    return call
