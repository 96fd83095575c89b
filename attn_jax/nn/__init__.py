"""Flax NNX modules: they hold parameters and wire pure functions together."""

from attn_jax.nn.attention import Attention
from attn_jax.nn.blocks import Block, FeedForward
from attn_jax.nn.cache import Cache, KeyValue, RollingCache
from attn_jax.nn.decoder import Decoder, DecoderState
from attn_jax.nn.embedding import Embedding
from attn_jax.nn.encoders import ConvolutionalEncoder, Encoded, RecurrentEncoder
from attn_jax.nn.experts import Experts
from attn_jax.nn.history import Attended, History
from attn_jax.nn.image_encoder import ImageEncoder
from attn_jax.nn.kernel_regression import NadarayaWatson
from attn_jax.nn.language_model import LanguageModel
from attn_jax.nn.memory import Memory
from attn_jax.nn.parts import Gated
from attn_jax.nn.pyramid import PyramidEncoder
from attn_jax.nn.recurrent import GRU, LSTM
from attn_jax.nn.self_attention import MultiHeadAttention
from attn_jax.nn.seq2seq import Seq2Seq
from attn_jax.nn.slots import Fixed, Slots
from attn_jax.nn.transformer import Stack
from attn_jax.nn.transformer_encoder import Patches, TransformerEncoder
from attn_jax.nn.transformer_seq2seq import TransformerDecoder, TransformerSeq2Seq
