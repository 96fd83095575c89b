"""Encoder-decoders against float64 loops over one example at a time, and their invariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attn_jax import Entmax, Sparsemax, decoding
from attn_jax.nn import Attention, Decoder, RecurrentEncoder, Seq2Seq
from attn_jax.nn.attention import SCORES
from tests.nn import loops
from tests.nn.test_recurrent import randomized
from tests.tolerance import assert_close, assert_exactly_zero

V, W = 11, 13  # target and source tokens
RNG = np.random.default_rng(3)
SOURCE, LENGTH = RNG.integers(4, W, (3, 5)), np.array([5, 0, 3])
TOKENS = RNG.integers(4, V, (3, 4))
BATCH = {
    "source": SOURCE,
    "source_length": LENGTH,
    "target": TOKENS,
    "target_length": np.array([4, 2, 0]),
}


def model(**options):
    rngs = nnx.Rngs(0)
    encoder = RecurrentEncoder(3, 5, rngs=rngs)
    widths = (encoder.memory_features, encoder.summary_features)
    decoder = Decoder(V, *widths, rngs=rngs, **{"embedding": 3, "features": 7} | options)
    return randomized(Seq2Seq(W, encoder, decoder, embedding=3, rngs=rngs))


MODELS = {
    **{f"attend then step, {score}": {"attention": score} for score in SCORES},
    "attend then step, fixed context": {"attention": None},
    "step then attend, fed": {"order": "step_then_attend", "attention": "bilinear"},
    "step then attend": {"order": "step_then_attend", "input_feeding": False},
    "step then attend, fixed context": {"order": "step_then_attend", "attention": None},
    "deep lstm, tied": {"cell": "lstm", "layers": 2, "tied": True, "attention_features": 2},
    "deep, fed": {"layers": 3, "order": "step_then_attend", "readout": 6},
    "sparsemax": {"normalizer": Sparsemax()},
    "entmax": {"normalizer": Entmax(1.5), "order": "step_then_attend"},
    "location-aware": {"location": 2, "location_width": 3},
    "location-aware, coverage, window, gate": {
        "location": 3,
        "coverage": True,
        "window": (1, 2),
        "gate": True,
        "attention": "dot",
        "order": "step_then_attend",
    },
}
PAST = {"location": 2, "coverage": True, "window": (1, 2), "gate": True}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_decoder_is_the_loop_and_a_step_is_one_time_of_it(options):
    seq2seq = model(**options)
    graphdef, state = nnx.split(seq2seq)

    @jax.jit
    def all_at_once_and_step_by_step(state, source, length, tokens):
        merged = nnx.merge(graphdef, state)
        alignment = merged.decoder.weights(tokens, merged.encode(source, length))
        (step, now), steps = merged.begin(source, length), []
        for t in range(2):
            logits, now, weights = step(tokens[:, t], now)
            steps.append((logits, weights))
        return merged(source, length, tokens), alignment, steps

    logits, alignment, steps = all_at_once_and_step_by_step(state, SOURCE, LENGTH, TOKENS)
    for i, length in enumerate(LENGTH):
        embedded = loops.value(seq2seq.embedding)[SOURCE[i, :length]]
        memory, summary = loops.encoder(seq2seq.encoder, embedded)
        expected, weights = loops.decoder(seq2seq.decoder, TOKENS[i], memory, summary)
        assert_close(logits[i], expected)
        if weights is not None:
            assert_close(alignment[i, :, :length], weights)
            assert_exactly_zero(alignment[i, :, length:])
    for t, (stepped, weights) in enumerate(steps):
        assert_close(stepped, logits[:, t])
        if alignment is None:
            assert weights is None
        else:
            assert_close(weights, alignment[:, t])


@pytest.mark.parametrize("options", [{}, PAST], ids=["", "past weights"])
def test_hypotheses_share_a_memory(options):
    seq2seq = model(**options)
    step, state = seq2seq.begin(SOURCE, LENGTH)
    doubled = jax.tree.map(lambda each: jnp.repeat(each, 2, axis=0), state)
    tokens = TOKENS[:, :2]
    got, moved, weights = step(tokens.reshape(-1), doubled)
    for hypothesis in range(2):
        expected, expected_state, expected_weights = step(tokens[:, hypothesis], state)
        assert_close(got[hypothesis::2], expected)
        assert_close(moved.cells[0][hypothesis::2], expected_state.cells[0])
        assert_close(weights[hypothesis::2], expected_weights)


def test_any_normalizer_and_any_score():
    query, memory = RNG.normal(size=(3, 2, 7)), RNG.normal(size=(3, 5, 7))
    options = {"score": lambda q, k: -jnp.abs(q[:, None] - k[None]).sum(-1)}
    layer = Attention(7, 7, normalizer=Sparsemax(), rngs=nnx.Rngs(0), **options)
    weights = layer.weights(query, layer.keys(memory), LENGTH)
    assert_close(layer(query, layer.keys(memory), memory, LENGTH), weights @ memory)
    assert_close(weights.sum(-1), np.where(LENGTH > 0, 1.0, 0.0)[:, None] * np.ones(2))
    real = np.asarray(weights)[np.broadcast_to(np.arange(5) < LENGTH[:, None, None], (3, 2, 5))]
    assert 0 < (real == 0).sum() < real.size - 4  # four rows, none of them the winner's alone
    nearest = np.abs(query[0, :, None] - memory[0, None]).sum(-1).argmin(1)
    np.testing.assert_array_equal(weights[0].argmax(1), nearest)


def test_alpha_is_learned():
    seq2seq = model(normalizer=Entmax(1.3), learn_alpha=True)
    graphdef = nnx.graphdef(seq2seq)

    @jax.jit
    @jax.value_and_grad
    def loss(state):
        return nnx.merge(graphdef, state).loss(BATCH, start=2)[0]

    slope = loss(nnx.state(seq2seq))[1]["decoder"]["attention"]["free_alpha"][...]
    free = seq2seq.decoder.attention.free_alpha
    before = free[...]
    ends = []
    for step in (1e-5, -1e-5):
        free[...] = before + step
        ends.append(loss(nnx.state(seq2seq))[0])
    assert abs(slope) > 1e-6
    assert_close(slope, (ends[0] - ends[1]) / 2e-5, tolerance=1e-7)


# Padding, batches


def test_loss_is_the_mean_over_real_tokens():
    seq2seq = model()
    loss, numbers = seq2seq.loss(BATCH, start=2)
    before = np.concatenate([np.full((3, 1), 2), TOKENS[:, :-1]], axis=1)
    logits = np.asarray(seq2seq(SOURCE, LENGTH, before))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = np.arange(4)[None] < BATCH["target_length"][:, None]
    chosen = np.take_along_axis(log_p, TOKENS[:, :, None], axis=2)[:, :, 0]
    assert_close(loss, -chosen[real].mean())
    assert_close(numbers["accuracy"], (logits.argmax(-1) == TOKENS)[real].mean())


@pytest.mark.parametrize("past", [False, True])
def test_loss_does_not_depend_on_padding_or_company(past):
    """Summed over examples of other batches, in other order, with other padding: the same."""
    seq2seq = model(order="step_then_attend", **(PAST if past else {}))
    graphdef, state = nnx.split(seq2seq)
    penalties = {"doubly_stochastic": 0.7, "coverage": 0.3} if past else {}

    def total(state, batch):
        loss, numbers = nnx.merge(graphdef, state).loss(batch, start=2, **penalties)
        return loss * numbers["tokens"]

    value_and_grad = jax.jit(jax.value_and_grad(total))
    whole, gradient = value_and_grad(state, BATCH)
    padded = {
        **BATCH,
        "source": np.pad(SOURCE, [(0, 0), (0, 2)], constant_values=1),
        "target": np.pad(TOKENS, [(0, 0), (0, 3)], constant_values=-100),
    }
    assert_close(value_and_grad(state, padded)[0], whole)
    single = [value_and_grad(state, {n: b[[i]] for n, b in BATCH.items()}) for i in (2, 0, 1)]
    assert_close(sum(value for value, _ in single), whole)
    summed = jax.tree.map(lambda *parts: sum(parts), *(part for _, part in single))
    for one, other in zip(jax.tree.leaves(summed), jax.tree.leaves(gradient), strict=True):
        assert_close(one, other)


def test_penalties_are_what_the_papers_say():
    seq2seq = model(**PAST)
    before = np.concatenate([np.full((3, 1), 2), TOKENS[:, :-1]], axis=1)
    weights = np.asarray(seq2seq.decoder.weights(before, seq2seq.encode(SOURCE, LENGTH)))
    once = again = 0.0
    for i in range(3):
        real = weights[i, : BATCH["target_length"][i], : LENGTH[i]]
        once += ((1 - real.sum(0)) ** 2).sum() * (len(real) > 0)
        for t in range(len(real)):
            again += np.minimum(real[t], real[:t].sum(0)).sum()
    plain, numbers = seq2seq.loss(BATCH, start=2)
    loss, _ = seq2seq.loss(BATCH, start=2, doubly_stochastic=0.7, coverage=0.3)
    assert_close(loss - plain, (0.7 * once + 0.3 * again) / numbers["tokens"])


@pytest.mark.parametrize("past", [False, True])
def test_long_pairs_need_no_memory_of_keys_by_times(past, monkeypatch):
    """Scores are computed again for the derivative: [t, s, a] is nowhere."""
    monkeypatch.setattr("attn_jax.nn.decoder.MOST_KEPT", 64 * 64 * 16)
    seq2seq = model(attention_features=64, **PAST if past else {"attention": "additive"})
    graphdef, state = nnx.split(seq2seq)

    def compiled(times):
        batch = {
            "source": np.full((1, 64), 5),
            "source_length": np.array([64]),
            "target": np.full((1, times), 5),
            "target_length": np.array([times]),
        }
        loss = jax.grad(lambda state: nnx.merge(graphdef, state).loss(batch, start=2)[0])
        return jax.jit(loss).lower(state).compile()

    few, many = compiled(16), compiled(80)
    sizes = [each.memory_analysis().temp_size_in_bytes for each in (few, many)]
    assert (sizes[1] - sizes[0]) / (80 - 16) < 64 * 64 * 8 / 2
    if not past:
        monkeypatch.setattr("attn_jax.nn.decoder.MOST_KEPT", np.inf)
        for got, kept in zip(*map(jax.tree.leaves, (few(state), compiled(16)(state))), strict=True):
            assert_close(got, kept)


def test_no_real_token_no_loss_no_gradient():
    seq2seq = model()
    graphdef, state = nnx.split(seq2seq)
    empty = {**BATCH, "target_length": np.zeros(3, int)}
    total = jax.value_and_grad(lambda state: nnx.merge(graphdef, state).loss(empty, start=2)[0])
    loss, gradient = jax.jit(total)(state)
    assert loss == 0
    assert_exactly_zero(gradient)


def test_dropout_is_for_training():
    seq2seq = model(dropout=0.4, layers=2)
    losses = [
        seq2seq.loss(BATCH, start=2, rng=rng)[0]
        for rng in (None, None, jax.random.key(0), jax.random.key(0), jax.random.key(1))
    ]
    assert losses[0] == losses[1]
    assert len({float(each) for each in losses}) == 3


@pytest.mark.parametrize("attention", ["additive", None])
def test_an_empty_batch_has_an_empty_result(attention):
    seq2seq, none = model(attention=attention), jax.tree.map(lambda each: each[:0], BATCH)
    shape = jax.eval_shape(seq2seq, SOURCE[:0], LENGTH[:0], TOKENS[:0]).shape
    assert shape == (0, 4, V)
    assert jax.eval_shape(lambda: seq2seq.loss(none, start=2)[0]).shape == ()

    def stepped():
        step, state = seq2seq.begin(none["source"], none["source_length"])
        logits, _, weights = step(none["target"][:, 0], state)
        return logits, () if weights is None else weights

    logits, weights = jax.eval_shape(stepped)
    assert logits.shape == (0, V)
    assert weights == () if attention is None else weights.shape == (0, 5)


# Decoding


@pytest.mark.parametrize(
    "options", [{"layers": 2}, {"order": "step_then_attend"}, PAST], ids=["deep", "Luong", "past"]
)
def test_beam_search_is_what_teacher_forcing_says(options):
    """Each hypothesis' log-probability and alignment, computed again from its tokens."""
    seq2seq = model(**options)
    step, begun = seq2seq.begin(SOURCE, LENGTH)
    graphdef, state = nnx.split(seq2seq)

    @jax.jit
    def again(state, before):
        merged = nnx.merge(graphdef, state)
        weights = merged.decoder.weights(before, merged.encode(SOURCE, LENGTH))
        return merged(SOURCE, LENGTH, before), weights

    how = {"start": 2, "end": 3, "max_length": 6, "beam_size": 3, "n_best": 3}
    found = jax.jit(lambda state: decoding.beam_search(step, state, **how))(begun)
    for n in range(3):
        tokens, lengths = np.asarray(found.tokens[:, n]), np.asarray(found.lengths[:, n])
        before = np.concatenate([np.full((3, 1), 2), tokens[:, :-1]], axis=1)
        logits, weights = map(np.asarray, again(state, before))
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        real = np.arange(6)[None] < lengths[:, None]
        chosen = np.take_along_axis(log_p, tokens[:, :, None], axis=2)[:, :, 0]
        assert_close(found.log_probabilities[:, n], np.where(real, chosen, 0).sum(1))
        assert_close(found.weights[:, n], np.where(real[:, :, None], weights, 0))


# Mistakes


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "rnn"}, "cell must be one of .*Got 'rnn'"),
        ({"order": "both"}, "order must be one of .*Got 'both'"),
        ({"attention": "luong"}, "score must be one of .*Got 'luong'"),
        (
            {"attention": None, "learn_alpha": True},
            "learn_alpha must be left out without attention",
        ),
        ({"attention": None, "attention_features": 2}, "attention_features must be left out"),
        ({"learn_alpha": True}, "learn_alpha must be False without an Entmax normalizer"),
        ({"tied": True, "readout": 5}, "readout must be the embedding where tied. Got 5"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1"),
        ({"layers": 0}, "layers must be a positive integer. Got 0"),
        ({"readout": 0}, "readout must be a positive integer. Got 0"),
        ({"attention_features": 0}, "features must be a positive integer. Got 0"),
        ({"attention": None, "location": 2}, "location must be left out without attention"),
        ({"attention": None, "gate": True}, "gate must be left out without attention"),
        ({"location": -1}, "location must .*Got -1"),
        ({"location": 2, "location_width": 4}, "location_width must be odd. Got 4"),
        ({"window": 3}, r"window must be \(left, right\) or None. Got 3"),
        ({"window": (-1, 3)}, "window must .*Got -1"),
        ({"coverage": "yes"}, "coverage must be True or False. Got 'yes'"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("source", "length", "message"),
    [
        (np.full((3, 5), W), LENGTH, "source must be from 0 to 12"),
        (-SOURCE, LENGTH, "source must be from 0 to 12"),
        (SOURCE, LENGTH + 1, "length must be at most 5, the width of what is padded"),
        (SOURCE, LENGTH - 1, "length must not be negative"),
        (SOURCE, LENGTH[:2], "length must be integers, one for each of the 3 examples"),
    ],
)
def test_sources_that_jax_would_clip_are_refused(source, length, message):
    with pytest.raises(ValueError, match=message):
        model().encode(source, length)


@pytest.mark.usefixtures("without_shape_hook")
def test_a_decoder_names_bad_tokens():
    seq2seq = model()
    encoded, state = seq2seq.encode(SOURCE, LENGTH), seq2seq.begin(SOURCE, LENGTH)[1]
    memory = seq2seq.decoder.project_memory(encoded)
    for tokens, rule in (
        (TOKENS + V, "from 0 to 10"),
        (TOKENS - V, "from 0 to 10"),
        (TOKENS[0], r"integers \[batch, length\]"),
        (TOKENS[:2], "of 3 examples, as the memory"),
    ):
        for ask in (seq2seq.decoder, seq2seq.decoder.weights):
            with pytest.raises(ValueError, match=f"tokens must be {rule}"):
                ask(tokens, encoded)
    for token, rule in (([V] * 3, "from 0 to 10"), ([4] * 5, "as many for each of the 3 sources")):
        with pytest.raises(ValueError, match=f"token must be {rule}"):
            seq2seq.decoder.step(token, state, memory)
