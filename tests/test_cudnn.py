"""cudnn.py: outside its domain every call is refused, and the message names what lies outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import Causal, Cosine, Entmax, ScaledDot, SoftCap, Softmax, attention
from tests.tolerance import TOLERANCE, assert_close


def arrays(query=(4, 8), key=(6, 8), value=(6, 8), dtype="bfloat16"):
    return tuple(jnp.ones(shape, dtype) for shape in (query, key, value))


OUTSIDE = {
    "the score is Dot, or ScaledDot": [
        {"score": Cosine()},
        {"score": lambda q, k: q @ k.T},
        {"score": ScaledDot(jnp.array(0.5))},
    ],
    "the normalizer is Softmax without a sink": [
        {"normalizer": Entmax(1.5)},
        {"normalizer": Softmax(0.0)},
        {"normalizer": lambda s, where=None, axis=-1: s},
    ],
    "there is no score_mod": [{"score_mod": SoftCap(1.0)}],
    r"the mask is None or Causal\(\)": [
        {"mask": Causal(1)},
        {"mask": Causal(jnp.array(0))},
        {"mask": Causal() & Causal()},
        {"mask": lambda i, j: j <= i},
    ],
    "there is no dropout": [{"dropout": attn_jax.Dropout(0.1, jax.random.key(0))}],
}


@pytest.mark.parametrize(
    ("rule", "slots"), [(rule, slots) for rule, rows in OUTSIDE.items() for slots in rows]
)
def test_slots_outside_are_named(rule, slots):
    with pytest.raises(ValueError, match=rf"^implementation must not be 'cudnn' unless {rule}"):
        attention(*arrays(), **slots, implementation="cudnn")


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("rule", "query_key_value"),
    [
        ("query, key and value are all float16 or all bfloat16", arrays(dtype="float32")),
        ("query, key and value are all float16", (*arrays()[:2], arrays(dtype="float16")[2])),
        ("value has as many features as key", arrays(value=(6, 16))),
        ("the features are a multiple of 8", arrays((4, 12), (6, 12), (6, 12))),
        ("the features are a multiple of 8, up to 128", arrays((4, 136), (6, 136), (6, 136))),
    ],
)
def test_arrays_outside_are_named(rule, query_key_value):
    with pytest.raises(ValueError, match=rf"^implementation must not be 'cudnn' unless {rule}"):
        attention(*query_key_value, implementation="cudnn")


def test_the_logsumexp_is_refused():
    with pytest.raises(ValueError, match=r"^implementation .* unless the output alone is asked"):
        attn_jax.attention_and_logsumexp(*arrays(), implementation="cudnn")


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is one")
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
@pytest.mark.parametrize("normalizer", [Softmax(), attn_jax.softmax])
def test_without_a_gpu_all_else_is_right(mask, normalizer):
    rule = "unless an NVIDIA GPU is the default device. Got cpu"
    with pytest.raises(ValueError, match=rule):
        attention(*arrays(), mask=mask, normalizer=normalizer, implementation="cudnn")


def as_on_a_gpu(monkeypatch):
    """jax.nn computes what it is asked for by XLA; the shapes that it is asked with."""
    asked, attend = [], jax.nn.dot_product_attention

    def by_xla(query, key, value, *, implementation, **options):
        assert implementation == "cudnn"
        asked.append((query.shape, key.shape))
        return attend(query, key, value, **options)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    return asked


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_all_heads_are_one_call(monkeypatch, batch, causal):
    rng = np.random.default_rng(0)
    shapes = [(*batch, 5, 6, 8), (*batch, 7, 3, 8), (*batch, 7, 3, 8)]  # three groups of heads
    query, key, value = (jnp.asarray(rng.normal(size=each), "bfloat16") for each in shapes)
    with monkeypatch.context() as patch:
        asked = as_on_a_gpu(patch)
        got = attn_jax.dot_product_attention(
            query, key, value, is_causal=causal, implementation="cudnn"
        )
    expected = attn_jax.dot_product_attention(query, key, value, is_causal=causal)
    assert_close(got, expected, tolerance=TOLERANCE["bfloat16"])
    assert [each[-3:] for each in asked[0]] == [(5, 6, 8), (7, 3, 8)]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("there is no score_mod", {"bias": np.ones((2, 3, 4, 4), "float32")}),
        ("the mask is None", {"mask": np.ones((2, 1, 4, 4), bool)}),
        ("the mask is None", {"key_value_seq_lengths": np.array([1, 2])}),
        ("the output alone is asked for", {"return_residual": True}),
    ],
)
def test_what_heads_have_of_their_own_is_named(rule, options):
    query = jnp.ones((2, 4, 3, 8), "bfloat16")
    with pytest.raises(ValueError, match=rf"^implementation must not be 'cudnn' unless {rule}"):
        attn_jax.dot_product_attention(query, query, query, **options, implementation="cudnn")
