"""The same language model from the modules of `flax.nnx`, with the same weights.

For `language-model speed`: learned positions, layer norm before each part, GELU, tied embeddings.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from attn_jax import metrics
from attn_jax.nn import LanguageModel

EPSILON = 1e-6  # of nnx.LayerNorm


class Block(nnx.Module):
    """Causal self-attention and a feed-forward layer."""

    def __init__(self, features: int, heads: int, **how: Any):
        self.attention_norm = nnx.LayerNorm(features, **how)
        self.attention = nnx.MultiHeadAttention(heads, features, decode=False, **how)
        self.forward_norm = nnx.LayerNorm(features, **how)
        self.up = nnx.Linear(features, 4 * features, **how)
        self.down = nnx.Linear(4 * features, features, **how)

    def __call__(self, inputs: Any, mask: Any) -> Any:
        """All positions at once."""
        inputs = inputs + self.attention(self.attention_norm(inputs), mask=mask)
        return inputs + self.down(nnx.gelu(self.up(self.forward_norm(inputs))))


class FlaxLanguageModel(nnx.Module):
    """A decoder-only Transformer, as Flax users write it."""

    def __init__(self, vocabulary: int, features: int, heads: int, layers: int, longest: int):
        how = {"param_dtype": float, "rngs": nnx.Rngs(0)}
        self.tokens = nnx.Embed(vocabulary, features, **how)
        self.positions = nnx.Embed(longest, features, **how)
        self.blocks = nnx.List([Block(features, heads, **how) for _ in range(layers)])
        self.norm = nnx.LayerNorm(features, **how)
        self.bias = nnx.Param(jnp.zeros(vocabulary))

    def __call__(self, tokens: Any) -> Any:
        """Logits of each next token."""
        positions = self.positions(jnp.arange(tokens.shape[1]))[None]
        outputs = self.tokens(tokens) * self.tokens.features**0.5 + positions
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            outputs = block(outputs, mask)
        return self.tokens.attend(self.norm(outputs)) + self.bias[...][None, None]

    def loss(self, tokens: Any) -> Any:
        """Mean cross-entropy of each token but the first, in nats."""
        return metrics.mean_cross_entropy(self(tokens[:, :-1]), tokens[:, 1:])[0]


def like(model: LanguageModel) -> FlaxLanguageModel:
    """Return Flax's model with the weights of ours."""
    embedding, blocks = model.embedding, model.stack.blocks
    sizes = (*embedding.tokens.shape, blocks.attention.heads, model.stack.count)
    flaxs = FlaxLanguageModel(*sizes, embedding.learned.shape[0])
    flaxs.tokens.embedding[...] = embedding.tokens[...]
    flaxs.positions.embedding[...] = embedding.learned[...]
    flaxs.bias[...] = embedding.bias[...]
    copy(model.stack.norm, flaxs.norm, ...)
    for layer, block in enumerate(flaxs.blocks):
        for name in ("query", "key", "value", "out"):
            copy(getattr(blocks.attention, name), getattr(block.attention, name), layer)
        copy(blocks.forward.up, block.up, layer)
        copy(blocks.forward.down, block.down, layer)
        copy(blocks.attention_norm, block.attention_norm, layer)
        copy(blocks.forward_norm, block.forward_norm, layer)
    return flaxs


def copy(ours: nnx.Module, flaxs: nnx.Module, layer: Any) -> None:
    """Copy one layer's weights, in the shapes that Flax gives them."""
    for name in ("kernel", "scale", "bias"):
        weights = getattr(flaxs, name, None)
        if weights is not None:
            weights[...] = getattr(ours, name)[...][layer].reshape(weights.shape)
