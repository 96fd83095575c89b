import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attn_jax import Entmax, Kernel, Sigmoid, Softmax, Sparsemax, kernels, regression, training
from attn_jax.nn import NadarayaWatson
from attn_jax.normalizers import entmax15
from tests import data_sets
from tests.members import KERNELS
from tests.tolerance import assert_close, assert_trees_close

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = RNG.normal(size=(7, 2)), RNG.normal(size=(13, 2)), RNG.normal(size=(13, 3))
NORMALIZERS = [Softmax(), Softmax(-1.0), Sparsemax(), Entmax(1.3), Sigmoid(0.5), entmax15]


def loss(model, key=KEY, value=VALUE):
    return model.leave_one_out_error(key, value)


@functools.partial(jax.jit, static_argnames=("graph", "transform"))
def step(graph, state, opt_state, transform):
    """One step on the parameters that training may change."""
    model = nnx.merge(graph, state)
    gradient = nnx.grad(loss)(model)
    parameters = nnx.state(model, nnx.Param)
    updates, opt_state = transform.update(gradient, opt_state, parameters)
    nnx.update(model, optax.apply_updates(parameters, updates))
    return nnx.state(model), opt_state


def trained(model, transform, steps):
    """Take steps and yield the model after each."""
    graph, state = nnx.split(model)
    opt_state = transform.init(nnx.state(model, nnx.Param))
    for _ in range(steps):
        state, opt_state = step(graph, state, opt_state, transform)
        yield nnx.merge(graph, state)


# The module wires; the mathematics is attn_jax.regression's


@pytest.mark.parametrize("row", KERNELS, ids=str)
def test_any_kernel(row):
    model = NadarayaWatson(1.7, kernel=kernels.BY_NAME[row.name])
    score = Kernel(kernels.BY_NAME[row.name], 1.7)
    expected = regression.kernel_regression(QUERY, KEY, VALUE, score=score)
    assert_close(model(QUERY, KEY, VALUE), expected)


@pytest.mark.parametrize(
    "normalizer", NORMALIZERS, ids=lambda each: getattr(each, "__name__", type(each).__name__)
)
@pytest.mark.parametrize("bandwidth", [1.3, np.array([0.9, 1.7])], ids=["scalar", "per feature"])
def test_any_normalizer_and_bandwidth(normalizer, bandwidth):
    model = NadarayaWatson(bandwidth, normalizer=normalizer)
    options = {"score": Kernel(bandwidth=bandwidth), "normalizer": normalizer}
    assert_close(model.bandwidth, bandwidth)
    expected = regression.kernel_regression(QUERY, KEY, VALUE, **options)
    assert_close(model(QUERY, KEY, VALUE), expected)


def test_every_method_passes_every_option():
    bandwidth = np.array([0.9, 1.4])
    chosen = {"kernel": kernels.epanechnikov, "normalizer": Sigmoid(0.5)}
    model = NadarayaWatson(bandwidth, outside="mean", degree=1, **chosen)
    options = {
        "score": Kernel(kernels.epanechnikov, bandwidth),
        "normalizer": Sigmoid(0.5),
        "outside": "mean",
        "degree": 1,
    }

    def of(owner, predict, **options):
        methods = (owner.leave_one_out, owner.leave_one_out_error, owner.aicc)
        return [
            predict(QUERY, KEY, VALUE, **options),
            owner.smoother(QUERY, KEY, **options),
            *(each(KEY, VALUE, **options) for each in methods),
            owner.confidence_band(QUERY, KEY, VALUE, level=0.7, **options),
        ]

    got = jax.jit(lambda: of(model, model))()
    expected = jax.jit(lambda: of(regression, regression.kernel_regression, **options))()
    assert_trees_close(got, expected)
    default = NadarayaWatson(bandwidth)
    assert np.abs(default(QUERY, KEY, VALUE) - got[0]).max() > 1e-3


def test_weights_are_those_of_the_prediction():
    model = NadarayaWatson(0.8)
    weights = model.weights(QUERY, KEY)
    assert_close(weights.sum(1), np.ones(7))
    assert_close(weights @ VALUE, model(QUERY, KEY, VALUE))


def test_mask_is_deletion():
    def first_five(i, j):
        return (j < 5) & (i >= 0)

    model = NadarayaWatson(0.8)

    @jax.jit
    def predictions_and_weights():
        masked = model(QUERY, KEY, VALUE, mask=first_five)
        weights = model.weights(QUERY, KEY, mask=first_five)
        return masked, model(QUERY, KEY[:5], VALUE[:5]), weights

    got, expected, weights = jax.device_get(predictions_and_weights())
    assert_close(got, expected)
    assert_close(weights[:, 5:], np.zeros((7, 8)))


# Parameters


@pytest.mark.parametrize("learn_bandwidth", [True, False])
@pytest.mark.parametrize("learn_alpha", [True, False])
def test_parameters_are_what_is_learned(learn_bandwidth, learn_alpha):
    model = NadarayaWatson(
        jnp.array([1.1, 1.4]),
        normalizer=Entmax(1.3),
        learn_bandwidth=learn_bandwidth,
        learn_alpha=learn_alpha,
    )
    found = {path[0] for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    wanted = {"free_bandwidth": learn_bandwidth, "free_alpha": learn_alpha}
    assert found == {name for name, learned in wanted.items() if learned}
    assert_close(model.normalizer.alpha, 1.3)
    assert_close(model.bandwidth, [1.1, 1.4])


@pytest.mark.parametrize("rate", [0.05, 100.0])
def test_learned_parameters_move_and_stay_in_their_domain(rate):
    model = NadarayaWatson(np.array([1.1, 1.4]), normalizer=Entmax(1.5), learn_alpha=True)
    graph, state = nnx.split(model)
    error = jax.jit(lambda state: loss(nnx.merge(graph, state)))
    before = error(state)
    for after in trained(model, optax.sgd(rate), 7):
        assert np.all(after.bandwidth > 0)
        assert np.isfinite(after.bandwidth).all()
        assert 1 < after.normalizer.alpha < 16
        assert np.isfinite(error(nnx.state(after)))
    assert np.abs(after.bandwidth - model.bandwidth).min() > 1e-3
    assert abs(after.normalizer.alpha - 1.5) > 1e-3
    if rate < 1:
        assert error(nnx.state(after)) < before


def test_fixed_bandwidth_does_not_move():
    options = {"normalizer": Entmax(1.5), "learn_alpha": True, "learn_bandwidth": False}
    model = NadarayaWatson(1.1, **options)
    (after,) = trained(model, optax.sgd(0.3), 1)
    assert np.array_equal(after.bandwidth, model.bandwidth)
    assert abs(after.normalizer.alpha - 1.5) > 1e-4


def test_fixed_alpha_does_not_move():
    (after,) = trained(NadarayaWatson(1.1, normalizer=Entmax(1.5)), optax.sgd(0.3), 1)
    assert after.normalizer.alpha == 1.5
    assert abs(after.bandwidth - 1.1) > 1e-4


def test_split_merge_jit():
    model = NadarayaWatson(np.array([1.1, 1.4]), normalizer=Entmax(1.3), learn_alpha=True)
    graph, state = nnx.split(model)

    @jax.jit
    def predict(state, query):
        return nnx.merge(graph, state)(query, KEY, VALUE)

    assert_close(predict(state, QUERY), model(QUERY, KEY, VALUE))
    copy = nnx.merge(graph, jax.tree.map(lambda leaf: leaf + 0.5, state))
    assert_close(copy.bandwidth, model.bandwidth * np.exp(0.5))
    assert_close(model.bandwidth, [1.1, 1.4])
    assert_close(nnx.jit(lambda m, q: m(q, KEY, VALUE))(model, QUERY), predict(state, QUERY))


@pytest.mark.parametrize("learn_bandwidth", [True, False])
def test_search_sets_the_bandwidth(learn_bandwidth):
    data = data_sets.textbook(50)
    model = NadarayaWatson(3.0, learn_bandwidth=learn_bandwidth)
    found = model.search(data.x, data.y)
    np.testing.assert_allclose(model.bandwidth, 0.20287538, rtol=1e-3)
    assert_close(model.bandwidth, found.bandwidth)
    assert_close(jax.jit(lambda: loss(model, data.x, data.y))(), found.value)


def test_search_per_feature_with_a_criterion():
    model = NadarayaWatson(jnp.array([1.0, 1.0]), kernel=kernels.logistic)

    def aicc():
        """Of the model as it is now."""
        return jax.jit(lambda: model.aicc(KEY, VALUE))()

    before = aicc()
    found = model.search(KEY, VALUE, criterion="aicc")
    assert model.bandwidth.shape == (2,)
    assert_close(aicc(), found.value, tolerance=1e-9)
    assert found.value < before


def test_training_reaches_the_searched_bandwidth():
    data = data_sets.textbook(50)
    result = training.fit(
        NadarayaWatson(1.0),
        lambda model, batch, rng: loss(model, batch["x"], batch["y"]),
        training.Batches({"x": data.x, "y": data.y}),
        steps=30,
        optimizer=optax.lbfgs(),
        progress=False,
    )
    np.testing.assert_allclose(result.model.bandwidth, 0.20287538, rtol=1e-3)


def test_vmap_over_data_sets_and_models_is_a_loop():
    keys, values = np.stack([KEY, KEY**2, -KEY]), np.stack([VALUE, VALUE - 3, VALUE**2])
    models = [NadarayaWatson(h) for h in (0.5, 1.1, 2.5)]
    graph, _ = nnx.split(models[0])
    states = [nnx.split(model)[1] for model in models]

    @jax.jit
    def predict(state, key, value):
        return nnx.merge(graph, state)(QUERY, key, value)

    @jax.jit
    def gradient(state, key, value):
        (slope,) = jax.tree.leaves(
            jax.grad(lambda state: loss(nnx.merge(graph, state), key, value))(state)
        )
        return slope

    together = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    for function in (predict, gradient):
        loop = [function(*each) for each in zip(states, keys, values, strict=True)]
        assert_close(jax.vmap(function)(together, keys, values), np.stack(loop))
    one = jax.jit(jax.vmap(models[1], in_axes=(None, 0, 0)))(QUERY, keys, values)
    assert_close(one[2], predict(states[1], keys[2], values[2]))


# The caller's mistakes


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NadarayaWatson(0.0), "bandwidth must be positive and finite. Got 0.0"),
        (lambda: NadarayaWatson([1.0, -2.0]), "bandwidth must be positive and finite"),
        (lambda: NadarayaWatson(np.ones((2, 2))), "bandwidth must be one number or one for each"),
        (lambda: NadarayaWatson(kernel="gaussian"), "kernel must"),
        (lambda: NadarayaWatson(learn_alpha=True), "learn_alpha must be False without an Entmax"),
        (lambda: NadarayaWatson(outside="far")(QUERY, KEY, VALUE), "outside must be one of"),
        (lambda: NadarayaWatson(degree=2)(QUERY, KEY, VALUE), "degree must be 0 or 1"),
        (lambda: NadarayaWatson(np.ones(3))(QUERY, KEY, VALUE), "bandwidth must be one number"),
        (lambda: NadarayaWatson()(QUERY, KEY, VALUE[1:]), "key and value must"),
        (lambda: NadarayaWatson().search(KEY, VALUE, criterion="gcv"), "criterion must be one of"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_alpha_at_its_limit_is_refused_or_kept_inside():
    """α = 16 is Entmax's own limit, where `between` has no finite free value."""
    model = NadarayaWatson(normalizer=Entmax(16.0), learn_alpha=True)
    assert np.isfinite(model(QUERY, KEY, VALUE)).all()
    assert np.isfinite(model.free_alpha[...])
