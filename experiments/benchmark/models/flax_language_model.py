"""The same language model from `flax.nnx`'s stock modules, with the same weights.

For `language-model speed`: learned positions, layer norm before each part, GELU, tied embeddings.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from attn_jax import metrics

EPSILON = 1e-6  # of nnx.LayerNorm


class Block(nnx.Module):
    """Causal self-attention and a feed-forward layer."""

    def __init__(self, features: int, heads: int, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(features, param_dtype=float, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=heads, in_features=features, decode=False, param_dtype=float, rngs=rngs
        )
        self.forward_norm = nnx.LayerNorm(features, param_dtype=float, rngs=rngs)
        self.up = nnx.Linear(features, 4 * features, param_dtype=float, rngs=rngs)
        self.down = nnx.Linear(4 * features, features, param_dtype=float, rngs=rngs)

    def __call__(self, inputs: Any, mask: Any) -> Any:
        """All positions at once."""
        inputs = inputs + self.attention(self.attention_norm(inputs), mask=mask)
        return inputs + self.down(nnx.gelu(self.up(self.forward_norm(inputs))))


class Stock(nnx.Module):
    """A decoder-only Transformer, as Flax users write it."""

    def __init__(
        self,
        vocabulary: int,
        features: int,
        heads: int,
        layers: int,
        longest: int,
        *,
        rngs: nnx.Rngs,
    ):
        self.tokens = nnx.Embed(vocabulary, features, param_dtype=float, rngs=rngs)
        self.positions = nnx.Embed(longest, features, param_dtype=float, rngs=rngs)
        self.blocks = nnx.List([Block(features, heads, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(features, param_dtype=float, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(vocabulary))

    def __call__(self, tokens: Any) -> Any:
        """Logits of each next token."""
        at = jnp.arange(tokens.shape[1])
        features = self.tokens.embedding.shape[1]
        outputs = self.tokens(tokens) * features**0.5 + self.positions(at)[None]
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            outputs = block(outputs, mask)
        return self.tokens.attend(self.norm(outputs)) + self.bias[...][None, None]

    def loss(self, tokens: Any) -> Any:
        """Mean cross-entropy of each token but the first, in nats."""
        return metrics.mean_cross_entropy(self(tokens[:, :-1]), tokens[:, 1:])[0]


def stock(model: Any) -> Stock:
    """Return Flax's model with the weights of an `attn_jax.nn.LanguageModel`."""
    embedding, blocks = model.embedding, model.stack.blocks
    vocabulary, features = embedding.tokens.shape
    heads, layers = blocks.attention.heads, model.stack.count
    twin = Stock(vocabulary, features, heads, layers, embedding.learned.shape[0], rngs=nnx.Rngs(0))
    twin.tokens.embedding[...] = embedding.tokens[...]
    twin.positions.embedding[...] = embedding.learned[...]
    twin.bias[...] = embedding.bias[...]
    copy(model.stack.norm, twin.norm, ...)
    for number, block in enumerate(twin.blocks):
        for name in ("query", "key", "value", "out"):
            ours, own = getattr(blocks.attention, name), getattr(block.attention, name)
            copy(ours, own, number)
        copy(blocks.forward.up, block.up, number)
        copy(blocks.forward.down, block.down, number)
        copy(blocks.attention_norm, block.attention_norm, number)
        copy(blocks.forward_norm, block.forward_norm, number)
    return twin


def copy(ours: Any, own: Any, layer: Any) -> None:
    """Copy one layer's weights, in the shapes that the other module gives them."""
    for name in ("kernel", "scale", "bias"):
        weights = getattr(own, name, None)
        if weights is not None:
            weights[...] = getattr(ours, name)[...][layer].reshape(weights.shape)
