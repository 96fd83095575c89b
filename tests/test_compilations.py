"""After the first call of a shape nothing compiles again, and no cache grows."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax import Causal, Entmax, Kernel, Softmax, kernels, metrics, regression, slots, streaming
from attn_jax.nn import NadarayaWatson
from attn_jax.regression import chunks
from tests.members import (
    DENSE,
    MASKS,
    NORMALIZERS,
    SCORE_MODS,
    SCORES,
    STREAMING,
    in_turn,
    inputs,
)

compiled = collections.Counter()


def _count(event, seconds, **_):
    compiled["programs"] += event.endswith("/backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_count)


def caches():
    """Entries of the caches that live as long as the process."""
    return streaming._compiled._cache_size(), slots._run._cache_size()


def compilations(function):
    """Programs that the second and the third call compile; what they leave in the caches."""
    jax.block_until_ready(function())
    before, held = compiled["programs"], caches()
    jax.block_until_ready([function(), function()])
    grown = [now - then for now, then in zip(caches(), held, strict=True)]
    return compiled["programs"] - before, *grown


def assert_compiled_once(function):
    assert compilations(function) == (0, 0, 0)


def test_what_compiles_is_counted():
    assert compilations(lambda: jax.jit(lambda x: 3 * x)(jnp.ones(5)))[0] == 2


# Attention: every member in some combination

COMBINATIONS = in_turn(score=SCORES, score_mod=SCORE_MODS, mask=MASKS, normalizer=NORMALIZERS)


@pytest.mark.parametrize("implementation", [DENSE, STREAMING], ids=str)
@pytest.mark.parametrize("members", COMBINATIONS, ids=lambda row: "-".join(map(str, row.values())))
def test_attention(members, implementation):
    arrays = inputs()

    def call():
        return implementation.attention(*arrays, **{n: m.slot() for n, m in members.items()})

    assert_compiled_once(call)


def functions_of_arrays():
    query, key, value = inputs()
    weights = jax.nn.softmax(query @ key.T)
    heads = [jnp.stack([each, each], axis=1)[None] for each in (query, key, value)]
    lengths, tokens = np.array([4]), np.array([[1, 0, 2, 1, 1]])
    logits = jnp.stack([query])
    window = {"local_window_size": (2, 1), "key_value_seq_lengths": lengths}
    streamed = {"implementation": "streaming", "is_causal": True}
    yield "weights", lambda: attn_jax.attention_weights(query, key, mask=Causal())
    yield "logsumexp", lambda: DENSE.attention_and_logsumexp(query, key, value)
    yield "merge", lambda: attn_jax.merge(jnp.stack([query, query]), jnp.zeros((2, 5)))
    yield "pairwise", lambda: attn_jax.pairwise(jnp.dot)(query, key)
    yield "drop-in", lambda: attn_jax.dot_product_attention(*heads, **window)
    yield "drop-in streaming", lambda: attn_jax.dot_product_attention(*heads, **streamed)
    yield "drop-in of flax", lambda: attn_jax.flax_attention_fn()(*heads)
    for name in ("softmax", "logsumexp", "sparsemax", "entmax15", "entmax", "sigmoid"):
        normalizer = getattr(attn_jax, name)
        yield f"{name} function", lambda f=normalizer: f(weights, where=weights > 0.1)
    for name, kernel in kernels.BY_NAME.items():
        yield name, lambda f=kernel: f(query)
    yield "cross entropy", lambda: metrics.cross_entropy(logits, tokens)
    yield "mean cross entropy", lambda: metrics.mean_cross_entropy(logits, tokens)
    yield "token accuracy", lambda: metrics.token_accuracy(logits, tokens)


ARRAYS = dict(functions_of_arrays())


@pytest.mark.parametrize("name", ARRAYS)
def test_functions_of_arrays(name):
    assert_compiled_once(ARRAYS[name])


# Regression, whole and in chunks

RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = RNG.normal(size=(13, 2)), RNG.normal(size=(13, 2)), RNG.normal(size=(13, 3))
ROWS = RNG.permutation(13)  # shapes are all alike: operations of one function serve the others
OPTIONS = {  # two that do not meet go together
    "lines, compact": {"degree": 1, "score": Kernel(kernels.biweight, 0.3)},
    "entmax": {"normalizer": Entmax(1.5)},
    "sink": {"normalizer": Softmax(0.3), "outside": "mean"},
}


@pytest.fixture(params=["whole", "chunks"])
def size(request, monkeypatch):
    """As it is, and as if the 13 keys were too many for all queries at once."""
    if request.param == "chunks":
        monkeypatch.setattr(chunks, "WHOLE", 1)
        monkeypatch.setattr(chunks, "CHUNK", 3 * 13)
    slots._run.clear_cache()  # which knows shapes, not these limits
    yield
    slots._run.clear_cache()


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_regression(options):
    """New slots and new numbers in them at each call, as training makes them."""
    number = itertools.count(1)

    def call():
        score = options.get("score", Kernel())
        score = Kernel(score.kernel, score.bandwidth * (1 + 0.01 * next(number)))
        here = options | {"score": score}
        if "degree" in here:
            here["mask"] = Causal(1)
        return [
            regression.kernel_regression(QUERY, KEY, VALUE, **here),
            regression.smoother(QUERY, KEY, **here),
            regression.leave_one_out(KEY, VALUE, **here),
            regression.leave_one_out(KEY, VALUE, rows=ROWS, **here),
            regression.leave_one_out_error(KEY, VALUE, rows=jnp.asarray(ROWS), **here),
            regression.aicc(KEY, VALUE, **here),
            regression.degrees_of_freedom(KEY, rows=ROWS, **here),
            regression.confidence_band(QUERY, KEY, VALUE, **here),
            regression.r_squared(VALUE, VALUE + 1),
        ]

    assert_compiled_once(call)


@pytest.mark.usefixtures("size")
def test_module():
    model = NadarayaWatson(0.7)

    def call():
        return [
            model(QUERY, KEY, VALUE),
            model.weights(QUERY, KEY),
            model.smoother(QUERY, KEY),
            model.effective_neighbours(QUERY, KEY),
            model.entropy(QUERY, KEY),
            model.noise_variance(KEY, VALUE, rows=ROWS),
        ]

    assert_compiled_once(call)


@pytest.mark.parametrize(
    "options", [{}, {"rows": ROWS[:4], "criterion": "aicc"}], ids=["all", "rows"]
)
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("few", [2**24, 1], ids=["everywhere", "by stages"])
def test_search(options, per_feature, few, monkeypatch):
    monkeypatch.setattr(regression.search, "FEW_PAIRS", few)
    options = options | {"per_feature": per_feature}
    assert_compiled_once(lambda: regression.search_bandwidth(KEY, VALUE, **options).bandwidth)


@pytest.mark.usefixtures("size")
def test_functions_of_others_stay_in_no_cache():
    """What they close over may be traced, or change: they are compiled at each call, and gone."""

    def call():
        mask = lambda i, j: (i + j) % 3 != 0  # noqa: E731
        score = Kernel(lambda u: -u)
        return [
            regression.leave_one_out(KEY, VALUE, rows=ROWS, mask=mask),
            regression.leave_one_out(KEY, VALUE, mask=mask, score=score),
            regression.per_query(lambda weights: weights.sum(1), QUERY, KEY, score=score),
            attn_jax.attention(QUERY, KEY, VALUE, mask=mask, implementation="streaming"),
        ]

    assert compilations(call)[1:] == (0, 0)
