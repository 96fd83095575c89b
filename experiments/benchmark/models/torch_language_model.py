"""The same language model from PyTorch's own Transformer layers, with the same weights.

For `language-model speed`: `nn.TransformerEncoder` with a causal mask, norms first.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.benchmark.models.flax_language_model import EPSILON


def gelu(units):
    """The approximation that JAX computes by default."""
    return functional.gelu(units, approximate="tanh")


class Torch(nn.Module):
    """A decoder-only Transformer, as PyTorch users write it."""

    def __init__(self, vocabulary: int, features: int, heads: int, layers: int, longest: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, features)
        self.positions = nn.Embedding(longest, features)
        layer = nn.TransformerEncoderLayer(
            features,
            heads,
            4 * features,
            dropout=0.0,
            activation=gelu,
            layer_norm_eps=EPSILON,
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(features, EPSILON)
        self.stack = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens):
        """Logits of each next token."""
        length = tokens.shape[1]
        at = torch.arange(length)
        outputs = self.tokens(tokens) * self.tokens.embedding_dim**0.5 + self.positions(at)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        outputs = self.stack(outputs, mask=mask, is_causal=True)
        return functional.linear(outputs, self.tokens.weight, self.bias)

    def loss(self, tokens):
        """Mean cross-entropy of each token but the first, in nats."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def like(model: Any) -> Torch:
    """Return PyTorch's model with the weights of an `attn_jax.nn.LanguageModel`."""
    embedding, blocks = model.embedding, model.stack.blocks
    heads, layers = blocks.attention.heads, model.stack.count
    twin = Torch(*embedding.tokens.shape, heads, layers, embedding.learned.shape[0])

    def copy(weights, values, *, turned=False):
        values = np.asarray(values)
        weights.copy_(torch.tensor(values.T if turned else values))

    copy(twin.tokens.weight, embedding.tokens[...])
    copy(twin.positions.weight, embedding.learned[...])
    copy(twin.bias, embedding.bias[...])
    copy(twin.stack.norm.weight, model.stack.norm.scale[...])
    copy(twin.stack.norm.bias, model.stack.norm.bias[...])
    for number, layer in enumerate(twin.stack.layers):
        projections = [getattr(blocks.attention, name) for name in ("query", "key", "value")]
        kernels = np.concatenate([each.kernel[...][number] for each in projections], 1)
        copy(layer.self_attn.in_proj_weight, kernels, turned=True)
        biases = np.concatenate([each.bias[...][number] for each in projections])
        copy(layer.self_attn.in_proj_bias, biases)
        pairs = (
            (layer.self_attn.out_proj, blocks.attention.out),
            (layer.linear1, blocks.forward.up),
            (layer.linear2, blocks.forward.down),
        )
        for own, ours in pairs:
            copy(own.weight, ours.kernel[...][number], turned=True)
            copy(own.bias, ours.bias[...][number])
        norms = ((layer.norm1, blocks.attention_norm), (layer.norm2, blocks.forward_norm))
        for own, ours in norms:
            copy(own.weight, ours.scale[...][number])
            copy(own.bias, ours.bias[...][number])
    return twin


def training(twin: Torch, tokens: np.ndarray, learning_rate: float, clip_norm: float) -> Any:
    """Return a call that does one more step of training on the same batch; it returns the loss."""
    optimizer = torch.optim.Adam(twin.parameters(), learning_rate, fused=True)
    batch = torch.tensor(tokens).long()

    def call() -> float:
        loss = twin.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
        optimizer.step()
        return loss.item()

    return call
