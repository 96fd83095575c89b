"""Copying against the paper's equations in a float64 loop, and its meaning in loss and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Sparsemax, decoding, text
from attn_jax.nn import ConvolutionalEncoder, Decoder, RecurrentEncoder, Seq2Seq
from tests.nn import loops
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close

V, S = 9, 5
SOURCE = np.array([[4, 9, 4, 10, 6], [8, 8, 9, 0, 0], [0, 0, 0, 0, 0]])  # 9, 10: not in it
LENGTH = np.array([5, 3, 0])
TOKENS = np.array([[9, 10, 4], [7, 9, 5], [6, 5, 4]])
BATCH = {
    "source": SOURCE,
    "source_length": LENGTH,
    "target": TOKENS,
    "target_length": np.array([3, 2, 3]),
}


def model(encoder=RecurrentEncoder, **options):
    rngs = nnx.Rngs(0)
    encoder = encoder(3, 5, rngs=rngs)
    widths = (encoder.memory_features, encoder.summary_features)
    options = {"embedding": 3, "features": 7, "copy": True} | options
    decoder = Decoder(V, *widths, rngs=rngs, **options)
    return randomized(Seq2Seq(V, encoder, decoder, embedding=3, rngs=rngs))


MODELS = {
    "attend then step": {},
    "fed, with coverage": {"order": "step_then_attend", "coverage": True},
    "sparse": {"normalizer": Sparsemax(), "encoder": ConvolutionalEncoder},
}


def mixture(seq2seq, source, weights, readout):
    """See et al. 2017, eq. 9, of one step."""
    copying = seq2seq.decoder.copying.gate
    kernel, bias = map(loops.value, (copying.kernel, copying.bias))
    p_gen = loops.sigmoid(readout @ kernel + bias)[0] if len(source) else 1.0
    output = loops.value(seq2seq.decoder.output_kernel)
    logits = readout @ output + loops.value(seq2seq.decoder.output_bias)
    generated = np.exp(logits - logits.max())
    p = np.zeros(V + S)
    p[:V] = p_gen * generated / generated.sum()
    for token, weight in zip(source, weights, strict=True):
        p[token] += (1 - p_gen) * weight
    return p


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_probabilities_are_the_papers_and_a_step_is_one_time(options):
    seq2seq = model(**options)
    graphdef, state = nnx.split(seq2seq)

    @jax.jit
    def run(state):
        merged = nnx.merge(graphdef, state)
        encoded = merged.encode(SOURCE, LENGTH)
        times = merged.decoder.over_times(TOKENS, encoded)
        step, now = merged.begin(SOURCE, LENGTH)
        steps = []
        for t in range(2):
            logits, now, weights = step(jnp.asarray(TOKENS[:, t]), now)
            steps.append((logits, weights))
        alignment = merged.decoder.weights_of(times, encoded)
        return merged(SOURCE, LENGTH, TOKENS), times.readout, alignment, steps

    log_p, readout, alignment, steps = run(state)
    assert log_p.shape == (3, 3, V + S)
    for i, length in enumerate(LENGTH):
        for t in range(3):
            p = mixture(
                seq2seq, SOURCE[i, :length], alignment[i, t, :length], np.asarray(readout[t, i])
            )
            assert_close(np.exp(log_p[i, t]), p)
    for t, (stepped, weights) in enumerate(steps):
        assert_close(stepped, log_p[:, t])
        assert_close(weights, alignment[:, t])


def test_what_is_unknown_is_read_as_unknown_and_written_right():
    """Another id beyond the vocabulary changes no encoding; the loss asks for the right one."""
    seq2seq = model()
    graphdef, state = nnx.split(seq2seq)
    before = np.concatenate([np.full((3, 1), 2), TOKENS[:, :-1]], axis=1)
    swapped = np.where(SOURCE == 9, 10, np.where(SOURCE == 10, 9, SOURCE))

    @jax.jit
    def run(state, source):
        merged = nnx.merge(graphdef, state)
        return merged(source, LENGTH, before), merged.encode(source, LENGTH).memory

    (log_p, memory), (other, same) = run(state, SOURCE), run(state, swapped)
    assert_close(memory, same)
    assert_close(log_p[..., 9], other[..., 10])
    value_and_grad = jax.jit(
        jax.value_and_grad(lambda state: nnx.merge(graphdef, state).loss(BATCH, start=2)[0])
    )
    loss, gradient = value_and_grad(state)
    real = np.arange(3) < BATCH["target_length"][:, None]
    chosen = np.take_along_axis(np.asarray(log_p), TOKENS[:, :, None], axis=2)[..., 0]
    assert_close(loss, -chosen[real].mean())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient["decoder"]["copying"]["gate"]["kernel"][...]).max() > 0


def test_beams_hold_copied_tokens_and_are_what_teacher_forcing_says():
    seq2seq = model(order="step_then_attend")
    seq2seq.decoder.copying.gate.bias[...] = jnp.full(1, -3.0)  # it copies
    how = {"start": 2, "end": 3, "max_length": 4, "beam_size": 3, "n_best": 2}

    @jax.jit
    def run():
        step, begun = seq2seq.begin(SOURCE, LENGTH)
        return decoding.beam_search(step, begun, **how)

    found = run()
    assert (np.asarray(found.tokens)[:2] >= V).any()
    for n in range(2):
        tokens, lengths = np.asarray(found.tokens[:, n]), np.asarray(found.lengths[:, n])
        before = np.concatenate([np.full((3, 1), 2), tokens[:, :-1]], axis=1)
        log_p = np.asarray(seq2seq(SOURCE, LENGTH, before))
        chosen = np.take_along_axis(log_p, tokens[:, :, None], axis=2)[..., 0]
        real = np.arange(4)[None] < lengths[:, None]
        assert_close(found.log_probabilities[:, n], np.where(real, chosen, 0).sum(1))


def test_lines_go_through_ids_that_may_be_copied():
    words = text.Vocabulary.train(["the cat sat"], kind="word")
    source = text.encode_copyable(words, "the zebra sat, the zebra won")
    target = text.encode_copyable(words, "zebra won it", source.unknown)
    assert text.decode_copied(words, source.ids, source.unknown) == "the zebra sat, the zebra won"
    assert source.unknown[0] == "zebra"
    assert target.ids[0] == len(words)
    assert target.ids[-1] == text.UNKNOWN
    assert text.decode_copied(words, target.ids, source.unknown) == "zebra won ⁇"
    assert text.encode_copyable(words, "the cat") == ([*words.encode("the cat")], [])


@pytest.mark.usefixtures("without_shape_hook")
def test_mistakes_are_named():
    with pytest.raises(ValueError, match="copy must be left out without attention"):
        model(attention=None)
    seq2seq = model()
    with pytest.raises(ValueError, match="vocabulary must be the decoder's, 9, where it copies"):
        Seq2Seq(V + 1, seq2seq.encoder, seq2seq.decoder, embedding=3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="label_smoothing must be 0 with copying"):
        model().loss(BATCH, start=2, label_smoothing=0.1)
    with pytest.raises(ValueError, match="source must be from 0 to 13"):
        model().encode(SOURCE + 5, LENGTH)
