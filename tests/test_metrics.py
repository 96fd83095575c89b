"""Losses against optax and NumPy loops, scores and alignments against brute force."""

from collections import Counter
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attn_jax import metrics
from attn_jax.metrics import cross_entropy, mean_cross_entropy
from tests.tolerance import assert_close, assert_derivatives, assert_exactly_zero

ROWS, VOCABULARY = (3, 5), 7
RNG = np.random.default_rng(17)
LOGITS = RNG.normal(size=(*ROWS, VOCABULARY)) * 3
LABELS = RNG.integers(0, VOCABULARY, ROWS)
REAL = RNG.random(ROWS) < 0.7
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.3])


def losses_of(logits, labels, smoothing=0.0):
    """Each row's -Σ q log p, entry by entry."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    losses = np.zeros(labels.shape)
    for row in np.ndindex(labels.shape):
        top = logits[row].max()
        p = np.exp(logits[row] - top) / np.sum(np.exp(logits[row] - top))
        for token in range(logits.shape[-1]):
            q = smoothing / logits.shape[-1] + (1 - smoothing) * (token == labels[row])
            losses[row] -= q * np.log(p[token]) if q else 0
    return losses


# Cross-entropy: values


@SMOOTHINGS
def test_cross_entropy_is_the_formula(smoothing):
    got = cross_entropy(LOGITS, LABELS, where=REAL, label_smoothing=smoothing)
    assert got.dtype == jnp.float64
    assert_close(got, np.where(REAL, losses_of(LOGITS, LABELS, smoothing), 0))


@SMOOTHINGS
def test_cross_entropy_and_its_gradient_are_optax_s(smoothing):
    logits, labels = jnp.asarray(LOGITS), jnp.asarray(LABELS)
    expected = optax.softmax_cross_entropy_with_integer_labels
    if smoothing:
        targets = optax.smooth_labels(jax.nn.one_hot(labels, VOCABULARY), smoothing)
        expected = lambda x, _: optax.softmax_cross_entropy(x, targets)  # noqa: E731
    ours, pull = jax.vjp(lambda x: cross_entropy(x, labels, label_smoothing=smoothing), logits)
    theirs, pull_theirs = jax.vjp(lambda x: expected(x, labels), logits)
    assert_close(ours, theirs)
    cotangent = jnp.asarray(RNG.normal(size=ROWS))
    assert_close(pull(cotangent)[0], pull_theirs(cotangent)[0])


def test_large_logits_do_not_overflow():
    assert_close(cross_entropy(LOGITS + 1e6, LABELS), losses_of(LOGITS, LABELS), tolerance=1e-9)


def test_a_confident_token_keeps_its_digits():
    loss = cross_entropy(jnp.array([100.0, 100.0 - 12], jnp.float32), jnp.array(0))
    assert_close(loss / np.log1p(np.exp(-12.0)), 1.0, tolerance=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype):
    logits = jnp.asarray(RNG.normal(size=(2, 4099)), dtype)
    labels = jnp.array([4098, 5])
    loss, gradient = jax.value_and_grad(lambda x: jnp.sum(cross_entropy(x, labels)))(logits)
    assert loss.dtype == jnp.float32
    assert gradient.dtype == dtype
    assert_close(loss, losses_of(logits, labels).sum())


def test_labels_of_few_bits():
    logits, labels = RNG.normal(size=(3, 307)), np.array([0, 45, 255], np.uint8)
    loss, gradient = jax.value_and_grad(lambda x: jnp.sum(cross_entropy(x, labels)))(logits)
    assert_close(loss, losses_of(logits, labels).sum())
    hits = np.arange(307) == labels[:, None]
    assert_close(gradient, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) - hits)


# Cross-entropy: derivatives


@SMOOTHINGS
def test_derivatives_of_any_mode_and_order(smoothing):
    weights = jnp.asarray(RNG.normal(size=ROWS))

    def loss(logits):
        losses = cross_entropy(logits, LABELS, where=REAL, label_smoothing=smoothing)
        return jnp.sum(weights * losses**2)

    assert_derivatives(loss, jnp.asarray(LOGITS), tolerance=1e-6)
    assert jax.value_and_grad(loss)(LOGITS)[0] == loss(LOGITS)


def test_hessian_is_the_covariance_of_the_token():
    logits = jnp.asarray(LOGITS[0, 0])
    p = np.exp(LOGITS[0, 0]) / np.exp(LOGITS[0, 0]).sum()
    for mixture in (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f))):
        hessian = mixture(lambda x: cross_entropy(x, jnp.array(2)))(logits)
        assert_close(hessian, np.diag(p) - np.outer(p, p))


def test_gradient_keeps_nothing_of_the_logits_size():
    """One array of that size is the logits and then, in the same place, their gradient."""
    hidden, readout = jnp.zeros((211, 3), jnp.float32), jnp.zeros((3, 4001), jnp.float32)
    labels, real = jnp.zeros(211, int), jnp.ones(211, bool)

    def loss(parameters):
        logits = parameters[0] @ parameters[1]
        return mean_cross_entropy(logits, labels, where=real, label_smoothing=0.1)[0]

    compiled = jax.jit(jax.grad(loss)).lower((hidden, readout)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1.1 * 211 * 4001 * 4


def test_vmap_is_the_batch():
    each = jax.vmap(lambda x, y, w: cross_entropy(x, y, where=w, label_smoothing=0.1))
    whole = cross_entropy(LOGITS, LABELS, where=REAL, label_smoothing=0.1)
    assert_close(each(LOGITS, LABELS, REAL), whole)


# Cross-entropy: masked = deleted, impossible tokens, what is not a number


@SMOOTHINGS
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300])
def test_a_token_that_is_not_real_is_deleted(smoothing, poison):
    poisoned = np.where(REAL[..., None], LOGITS, poison)
    poisoned[..., 3] = np.where(REAL, LOGITS[..., 3], 1.0)
    labels = np.where(REAL, LABELS, -100)

    def loss(logits):
        return mean_cross_entropy(logits, labels, where=REAL, label_smoothing=smoothing)[0]

    def change(logits):
        tangent = jnp.asarray(np.where(REAL[..., None], 1.5 * LOGITS, np.nan))
        return jax.jvp(loss, (logits,), (tangent,))[1]

    value, gradient = jax.value_and_grad(loss)(poisoned)
    kept = losses_of(LOGITS[REAL], LABELS[REAL], smoothing)
    assert_close(value, kept.mean())
    assert_exactly_zero(gradient[~REAL])
    assert np.isfinite(change(poisoned))
    second = jax.grad(change)(poisoned)
    assert_exactly_zero(second[~REAL])
    assert np.all(np.isfinite(second))
    assert np.abs(second[REAL]).max() > 0


def test_without_real_tokens_loss_and_gradient_are_zero():
    def loss(logits):
        return mean_cross_entropy(logits, LABELS, where=np.zeros(ROWS, bool))

    (value, counts), gradient = jax.value_and_grad(loss, has_aux=True)(
        jnp.full_like(LOGITS, np.nan)
    )
    assert value == 0
    assert counts["tokens"] == 0
    assert_exactly_zero(gradient)


def test_mean_is_over_real_tokens():
    value, counts = mean_cross_entropy(LOGITS, LABELS, where=REAL)
    assert_close(value, losses_of(LOGITS, LABELS)[REAL].mean())
    assert counts["tokens"] == REAL.sum()
    assert_close(mean_cross_entropy(LOGITS, LABELS)[0], losses_of(LOGITS, LABELS).mean())


def test_impossible_tokens():
    logits = jnp.array([[-np.inf, 0.0, 1.0], [-np.inf, 0.0, 1.0], [-np.inf] * 3])
    labels = jnp.array([1, 0, 2])
    losses = cross_entropy(logits, labels)
    assert_close(losses, [np.log1p(np.e), np.inf, np.inf])
    p = np.array([0, 1, np.e]) / (1 + np.e)
    gradient = jax.grad(lambda x: jnp.sum(cross_entropy(x, labels)))(logits)
    assert_close(gradient, [p - [0, 1, 0], p - [1, 0, 0], [0, 0, -1]])
    smoothed = cross_entropy(logits, labels, label_smoothing=0.1)
    assert_close(smoothed, [np.inf] * 3)


@SMOOTHINGS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_logits_of_a_real_token_show(bad, smoothing):
    """Beside a label that is possible, and one that is not; its gradient shows them too."""
    logits, labels = LOGITS.copy(), np.full(ROWS, 3)
    logits[1, 2:4, 0] = bad
    logits[1, 3, 3] = -np.inf
    got = cross_entropy(logits, labels, label_smoothing=smoothing)
    expected = losses_of(LOGITS, labels, smoothing)
    expected[1, 2:4] = np.nan
    assert_close(got, expected)
    gradient = jax.grad(lambda x: jnp.sum(cross_entropy(x, labels)))(logits)
    np.testing.assert_array_equal(np.isnan(gradient).any(-1), np.isnan(expected))


@pytest.mark.usefixtures("without_shape_hook")
def test_smoothing_may_be_a_number_of_numpy():
    expected = cross_entropy(LOGITS, LABELS, label_smoothing=0.25)
    for kind in (np.float16, np.float32, np.float64):
        got = cross_entropy(LOGITS, LABELS, label_smoothing=kind(0.25))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("label", [-1, VOCABULARY])
def test_a_label_that_is_no_token(label):
    labels = np.full(ROWS, label)
    with pytest.raises(ValueError, match=r"labels must be tokens, 0 to 6 here.*Got \["):
        cross_entropy(LOGITS, labels)
    assert np.all(np.isnan(jax.jit(cross_entropy)(LOGITS, labels)))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((LOGITS, LABELS[0]), {}, "labels must be integers, one for each row of logits"),
        ((LOGITS, LABELS * 1.0), {}, "labels must be integers"),
        ((LOGITS, LABELS), {"where": REAL[0]}, "where must be booleans, one for each row"),
        ((LOGITS, LABELS), {"where": REAL * 1}, "where must be booleans"),
        ((LOGITS, LABELS), {"label_smoothing": 1.0}, "label_smoothing must be .* below 1. Got 1.0"),
        ((np.zeros((3, 0)), np.zeros(3, int)), {}, "logits must have an axis of tokens"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_cross_entropy_refuses(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        cross_entropy(*arguments, **options)


# Perplexity, accuracy, exact match


def test_perplexity():
    assert metrics.perplexity(11 * np.log(13), 11) == pytest.approx(13)
    assert metrics.perplexity(1e6, 1) == np.inf
    with pytest.raises(ValueError, match="tokens must be positive"):
        metrics.perplexity(0.0, 0)


def test_token_accuracy_of_tokens_and_of_logits():
    right = [LOGITS[row].argmax() == LABELS[row] for row in np.ndindex(ROWS) if REAL[row]]
    assert 0 < sum(right) < len(right)
    for predictions in (LOGITS, LOGITS.argmax(-1)):
        assert_close(metrics.token_accuracy(predictions, LABELS, where=REAL), np.mean(right))
    poisoned = np.where(np.arange(VOCABULARY) == 3, np.nan, LOGITS)
    assert metrics.token_accuracy(poisoned, poisoned.argmax(-1)) == 0
    assert metrics.token_accuracy(LABELS, LABELS, where=np.zeros(ROWS, bool)) == 0


@pytest.mark.usefixtures("without_shape_hook")
def test_token_accuracy_refuses():
    with pytest.raises(ValueError, match="predictions must be tokens of the labels' shape"):
        metrics.token_accuracy(LABELS[0], LABELS)
    with pytest.raises(ValueError, match="where must be booleans"):
        metrics.token_accuracy(LABELS, LABELS, where=REAL[0])


@pytest.mark.parametrize("widths", [(5, 7), (7, 5)])
def test_exact_matches_looks_at_lengths_and_what_is_before_them(widths):
    rng = np.random.default_rng(3)
    tokens, labels = (rng.integers(0, 2, (211, width)) for width in widths)
    length, label_length = (rng.integers(0, 4, 211) for _ in widths)
    got = metrics.exact_matches(tokens, labels, length=length, label_length=label_length)
    ours = [row[:n].tolist() for row, n in zip(tokens, length, strict=True)]
    theirs = [row[:n].tolist() for row, n in zip(labels, label_length, strict=True)]
    expected = [one == other for one, other in zip(ours, theirs, strict=True)]
    assert 20 < sum(expected) < 190
    np.testing.assert_array_equal(got, expected)
    assert metrics.exact_match(ours, theirs) == np.mean(expected)


def test_exact_match_refuses():
    with pytest.raises(ValueError, match="1 hypotheses, 2 references"):
        metrics.exact_match(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="hypotheses must not be empty"):
        metrics.exact_match([], [])
    with pytest.raises(ValueError, match="hypotheses must be a list"):
        metrics.exact_match("ab", "ab")


# BLEU and chrF


def bleu_of(hypotheses, references):
    """Corpus BLEU of token lists where every order has a match: no smoothing. (Papineni 2002.)"""
    logs = []
    for n in range(1, 5):
        found = total = 0
        for pair in zip(hypotheses, references, strict=True):
            ours, theirs = (
                Counter(tuple(s[i : i + n]) for i in range(len(s) - n + 1)) for s in pair
            )
            found += sum(min(count, theirs[gram]) for gram, count in ours.items())
            total += sum(ours.values())
        logs.append(np.log(found / total))
    lengths = [sum(map(len, side)) for side in (hypotheses, references)]
    return 100 * np.exp(min(0, 1 - lengths[1] / lengths[0]) + np.mean(logs))


def test_token_bleu_is_the_formula():
    rng = np.random.default_rng(5)
    references = [rng.integers(0, 50, n).tolist() for n in (11, 17, 5)]
    hypotheses = [[*row[:-2], 51] for row in references]
    score = metrics.token_bleu(hypotheses, references)
    assert score.score == pytest.approx(bleu_of(hypotheses, references), rel=1e-12)
    assert "tok:none" in score.signature
    assert score.text.startswith(f"BLEU = {score.score:.2f}")


def test_bleu_passes_its_options_on():
    lines, references = ["The cat sat on the mat ."], ["the cat sat on the mat."]
    assert metrics.bleu(lines, references, lowercase=True).score == pytest.approx(100)
    assert metrics.bleu(lines, references).score < 90
    assert metrics.bleu(lines, references, tokenize="none", lowercase=True).score < 90
    assert metrics.bleu(["我喜欢猫和狗"], ["我喜欢猫和狗"], tokenize="zh").score == pytest.approx(
        100
    )
    for tokenize in ("13a", "char", "zh", "none"):
        signature = metrics.bleu(lines, references, tokenize=tokenize).signature
        assert f"tok:{tokenize}|" in signature
        assert "version:" in signature


@pytest.mark.parametrize("score", [metrics.bleu, metrics.chrf])
def test_several_references_belong_to_their_hypothesis(score):
    lines = ["a small dog runs home", "two birds sing at night"]
    references = [["something else", lines[0]], [lines[1]]]
    assert score(lines, references).score == pytest.approx(100)
    assert score(lines, list(reversed(references))).score < 30


def test_chrf_and_chrf_plus_plus():
    plain, plus = (metrics.chrf(["the cat"], ["the bat"], word_order=n) for n in (0, 2))
    assert "nc:6|nw:0" in plain.signature
    assert "nc:6|nw:2" in plus.signature
    assert 0 < plus.score < plain.score < 100


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "hypotheses must not be empty"),
        (["a"], ["a", "b"], "references must be one for each hypothesis.*1 hypotheses, 2"),
        ("ab", ["a", "b"], "hypotheses must be a list of strings"),
        (["a", "b"], "ab", "references must be a list"),
        ([1], ["a"], "hypotheses must be a list of strings"),
        (["a"], [[]], "references must not be empty"),
    ],
)
def test_scores_refuse(hypotheses, references, message):
    for score in (metrics.bleu, metrics.chrf):
        with pytest.raises(ValueError, match=message):
            score(hypotheses, references)


def test_options_are_refused_by_name():
    with pytest.raises(ValueError, match=r"tokenize must be one of 13a, .*Got 'flores'"):
        metrics.bleu(["a"], ["a"], tokenize="flores")
    with pytest.raises(ValueError, match="word_order must not be negative"):
        metrics.chrf(["a"], ["a"], word_order=-1)
    with pytest.raises(ValueError, match="tokens must not be empty or hold spaces"):
        metrics.token_bleu([["a b"]], [["a"]])


# Alignments


def random_links(rng, sources=5, targets=7, share=0.3):
    return {(int(s), int(t)) for s, t in np.argwhere(rng.random((sources, targets)) < share)}


def test_alignment_error_rate_is_the_formula():
    rng = np.random.default_rng(7)
    predicted, sure, others = ([random_links(rng) for _ in range(11)] for _ in range(3))
    a = {(i, link) for i, links in enumerate(predicted) for link in links}
    s = {(i, link) for i, links in enumerate(sure) for link in links}
    p = s | {(i, link) for i, links in enumerate(others) for link in links}
    error_rate = 1 - (len(a & s) + len(a & p)) / (len(a) + len(s))
    expected = (error_rate, len(a & p) / len(a), len(a & s) / len(s))
    assert metrics.alignment_score(predicted, sure, others) == pytest.approx(expected)
    assert metrics.alignment_error_rate(predicted, sure, others) == pytest.approx(error_rate)
    all_possible = [one | other for one, other in zip(sure, others, strict=True)]
    assert metrics.alignment_error_rate(predicted, sure, all_possible) == pytest.approx(error_rate)


def test_alignment_score_at_its_ends():
    links = [{(0, 0), (1, 1)}]
    assert metrics.alignment_score(links, links) == (0, 1, 1)
    assert metrics.alignment_score([set()], links) == (1, 1, 0)
    assert metrics.alignment_score([set()], [set()]) == (0, 1, 1)
    assert metrics.alignment_score([{(0, 1)}], links) == (1, 0, 0)
    with pytest.raises(ValueError, match=r"predicted must have one set .* Got \[1, 2, 2\]"):
        metrics.alignment_error_rate(links, links * 2)


def test_hard_alignment_takes_the_first_of_the_most_attended():
    weights = RNG.dirichlet(np.ones(5), size=7)
    expected = {(max(range(5), key=lambda s: weights[t, s]), t) for t in range(7)}
    assert metrics.hard_alignment(weights) == expected
    assert metrics.hard_alignment(jnp.asarray(weights)) == expected
    above = {(s, t) for s in range(5) for t in range(7) if weights[t, s] >= 0.25}
    assert metrics.hard_alignment(weights, threshold=0.25) == above
    assert metrics.hard_alignment(np.array([[0.5, 0.5], [0.0, 0.0]])) == {(0, 0)}
    assert (
        metrics.hard_alignment(np.zeros((0, 3)))
        == metrics.hard_alignment(np.zeros((3, 0)))
        == set()
    )


@pytest.mark.usefixtures("without_shape_hook")
def test_hard_alignment_refuses():
    with pytest.raises(ValueError, match=r"weights must have shape \[t, s\]"):
        metrics.hard_alignment(np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        metrics.hard_alignment(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match="threshold must be positive"):
        metrics.hard_alignment(np.array([[0.5, 0.5]]), threshold=0.0)


def grow_diag_final(forward, backward, final):
    """Koehn, Och & Marcu's procedure on tables [target, source], every cell visited."""
    shape = (7, 5)
    tables = [np.zeros(shape, bool) for _ in range(2)]
    for table, links in zip(tables, (forward, backward), strict=True):
        for source, target in links:
            table[target, source] = True
    union, aligned = tables[0] | tables[1], tables[0] & tables[1]
    while True:
        before = aligned.copy()
        for t, s in np.ndindex(shape):
            if aligned[t, s]:
                for ds, dt in [(-1, 0), (0, -1), (1, 0), (0, 1), *product((-1, 1), (-1, 1))]:
                    u, r = t + dt, s + ds
                    inside = 0 <= u < shape[0] and 0 <= r < shape[1]
                    if inside and union[u, r] and not (aligned[u].any() and aligned[:, r].any()):
                        aligned[u, r] = True
        if np.array_equal(before, aligned):
            break
    for table in tables if final else ():
        for t, s in np.ndindex(shape):
            free = (not aligned[t].any(), not aligned[:, s].any())
            if table[t, s] and (all(free) if final == "and" else any(free)):
                aligned[t, s] = True
    return {(int(s), int(t)) for t, s in np.argwhere(aligned)}


def test_symmetrize_is_the_procedure():
    rng = np.random.default_rng(13)
    results = set()
    for _ in range(200):
        forward, backward = random_links(rng), random_links(rng)
        finals = {"grow-diag": None, "grow-diag-final": "or", "grow-diag-final-and": "and"}
        got = {method: metrics.symmetrize(forward, backward, method=method) for method in finals}
        for method, final in finals.items():
            assert got[method] == grow_diag_final(forward, backward, final)
        results.add(len({frozenset(links) for links in got.values()}))
        assert metrics.symmetrize(forward, backward, method="union") == forward | backward
        assert metrics.symmetrize(forward, backward, method="intersection") == forward & backward
    assert 3 in results  # the three methods do differ
    assert metrics.symmetrize({(0, 0)}, set()) == {(0, 0)}
    with pytest.raises(ValueError, match=r"method must be one of .* Got 'grow'"):
        metrics.symmetrize(set(), set(), method="grow")


def test_merge_links_to_words():
    source_words, target_words = [0, 0, 1, None], [0, 1, 1]
    links = {(0, 0), (1, 0), (1, 2), (2, 1), (3, 2)}
    merged = metrics.merge_links(links, source_words=source_words, target_words=target_words)
    assert merged == {(0, 0), (0, 1), (1, 1)}
    for outside in ((4, 0), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="links must lie within 4 source and 3 target tokens"):
            metrics.merge_links({outside}, source_words=source_words, target_words=target_words)


def test_merge_weights_to_words():
    """By loops; a word of one token each has the weights of its tokens."""
    weights = np.random.default_rng(3).dirichlet(np.ones(7), 5)
    source_words, target_words = [0, 0, 1, None, 3, 1, 3], [0, 2, None, 2, 2]
    expected = np.zeros((3, 4))
    for row, target in zip(weights, target_words, strict=True):
        for weight, source in zip(row, source_words, strict=True):
            if source is not None and target is not None:
                expected[target, source] += weight / target_words.count(target)
    words = {"source_words": source_words, "target_words": target_words}
    np.testing.assert_allclose(metrics.merge_weights(weights, **words), expected, atol=1e-12)
    own = metrics.merge_weights(weights, source_words=range(7), target_words=range(5))
    np.testing.assert_array_equal(own, weights)
    none = metrics.merge_weights(np.zeros((0, 0)), source_words=[], target_words=[])
    assert none.shape == (0, 0)
    with pytest.raises(ValueError, match=r"weights must have shape \[t, s\], here \[5, 6\]"):
        metrics.merge_weights(weights, source_words=[0] * 6, target_words=target_words)


def test_pharaoh_comes_back():
    rng = np.random.default_rng(19)
    for _ in range(20):
        sure, possible = random_links(rng), random_links(rng)
        got = metrics.from_pharaoh(metrics.to_pharaoh(sure, possible))
        assert got == (sure, sure | possible)
    assert metrics.to_pharaoh({(10, 2), (2, 10)}) == "2-10 10-2"
    assert metrics.from_pharaoh(" 0-0\t1?2 \n") == ({(0, 0)}, {(0, 0), (1, 2)})
    assert metrics.read_pharaoh(["", "0-1\n"]) == [(set(), set()), ({(0, 1)}, {(0, 1)})]


@pytest.mark.parametrize("bad", ["0", "0-", "0:1", "a-b", "-1-2", "0-1-2", "0-1,", "1-²"])
def test_pharaoh_names_the_line(bad):
    with pytest.raises(ValueError, match="line 3 must hold links like 0-0 or 3p4"):
        metrics.read_pharaoh(["0-0", "", f"1-1 {bad}"])
    with pytest.raises(ValueError, match="line must hold links"):
        metrics.from_pharaoh(bad)


def test_pharaoh_writes_no_negative_position():
    with pytest.raises(ValueError, match=r"links must be positions from 0 on. Got \[\(-1, 0\)\]"):
        metrics.to_pharaoh({(-1, 0)})
